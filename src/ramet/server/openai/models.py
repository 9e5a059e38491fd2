"""`GET /v1/models` and `/v1/models/{name}`."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ramet.server.context import Context
from ramet.server.responses import json_response


class Models:
    """The routes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def list(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._card()]})

    async def one(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == self._context.model.served_name:
            return json_response(self._card())
        error = {
            "message": f"The model '{name}' does not exist",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
        return json_response({"error": error}, 404)

    def _card(self) -> dict[str, Any]:
        model = self._context.model
        return {
            "id": model.served_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "ramet",
            "root": model.model_path,
            "parent": None,
            "max_model_len": self._context.live.limits.context_length,
        }
