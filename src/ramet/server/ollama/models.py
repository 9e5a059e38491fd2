"""`/api/tags`, `/api/show`, `/api/ps`, `/api/version`: the one model, as Ollama's clients look for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import ramet
from ramet.errors import RequestError
from ramet.server.body import Body, read_body
from ramet.server.context import Context
from ramet.server.info import server_info
from ramet.server.responses import json_response

#: The version of Ollama whose routes these are; its clients compare it before they use tools or logprobs.
API_VERSION = "0.12.11"

#: The model stays until the server ends.
NEVER = "9999-12-31T23:59:59Z"


class OllamaModelRequest(msgspec.Struct, kw_only=True):
    """Body of `/api/show`: the model under its present or its former key."""

    model: str | None = None
    name: str | None = None


class OllamaModels:
    """The routes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._body = Body(OllamaModelRequest)
        self._since = datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")

    async def version(self, request: Request) -> Response:
        return json_response({"version": API_VERSION, "ramet_version": ramet.__version__})

    async def tags(self, request: Request) -> Response:
        return json_response({"models": [{**await self._entry(), "modified_at": self._since}]})

    async def running(self, request: Request) -> Response:
        context_length = self._context.live.limits.context_length
        entry = {**await self._entry(), "expires_at": NEVER, "size_vram": 0, "context_length": context_length}
        return json_response({"models": [entry]})

    async def show(self, request: Request) -> Response:
        frontend, model = self._context.live, self._context.model
        body, _ = self._body.decode(await read_body(request, self._context.body_limit_bytes))
        if not (body.model or body.name):
            raise RequestError("model: give the name of a model.", field="model")
        family = model.model_type or "unknown"
        files = await self._files()
        vectors = frontend.vectors
        capabilities = ["completion"] if vectors is None else [] if vectors.labels else ["embedding"]
        if frontend.formats.tools is not None:
            capabilities.append("tools")
        if frontend.formats.reasoning is not None:
            capabilities.append("thinking")
        defaults = self._context.sampling_defaults()
        return json_response(
            {
                "modelfile": f"FROM {model.model_path}\n",
                "parameters": "\n".join(f"{name} {value}" for name, value in defaults.items()),
                "template": frontend.template.source if frontend.template is not None else "",
                "modified_at": self._since,
                "details": self._details(files),
                "model_info": {
                    "general.architecture": family,
                    f"{family}.context_length": frontend.limits.context_length,
                    f"{family}.vocab_size": frontend.limits.vocab_size,
                    **({f"{family}.embedding_length": vectors.size} if vectors is not None else {}),
                },
                "capabilities": capabilities,
            }
        )

    async def _entry(self) -> dict[str, Any]:
        files = await self._files()
        name = self._context.model.served_name
        return {
            "name": name,
            "model": name,
            "size": files.get("weight_bytes", 0),
            "digest": files.get("content_id", ""),
            "details": self._details(files),
        }

    async def _files(self) -> Mapping[str, Any]:
        """The engine's account of the files that the model's name stands for."""
        files: Mapping[str, Any] = (await server_info(self._context)).get("model", {})
        return files

    def _details(self, files: Mapping[str, Any]) -> dict[str, Any]:
        model = self._context.model
        family, path = model.model_type, files.get("path") or model.model_path
        return {
            "parent_model": "",
            "format": "gguf" if Path(path).suffix == ".gguf" else "safetensors",
            "family": family,
            "families": [family] if family else [],
            "parameter_size": "",
            "quantization_level": "",
        }
