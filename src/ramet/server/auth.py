"""API keys, as pure ASGI middleware: a stream passes through untouched."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ramet.server.errors import error_body
from ramet.server.responses import json_response

#: Open to everybody: load balancers and scrapers carry no key.
OPEN_PREFIXES = ("/health", "/ready", "/metrics")

#: Routes that the admin key guards, when there is one.
ADMIN_PATHS = frozenset(
    "/flush_cache /abort_request /pause_generation /continue_generation /set_internal_state /freeze_gc".split()
)


class Auth:
    """Checks `Authorization: Bearer KEY`, or `x-api-key: KEY` as Anthropic's clients send it.

    Admin routes want the admin key if one is set, else the api key; the others want the api key if one is set. Without
    keys everything is open.
    """

    def __init__(self, app: ASGIApp, *, api_key: str | None, admin_api_key: str | None) -> None:
        self._app = app
        self._api_key = api_key
        self._admin_api_key = admin_api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._allowed(scope):
            await self._app(scope, receive, send)
        else:
            body = error_body(scope["path"], "Unauthorized", 401) or {"error": "Unauthorized"}
            await json_response(body, 401)(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        path: str = scope["path"]
        if scope["method"] == "OPTIONS" or path.startswith(OPEN_PREFIXES):
            return True
        key = self._api_key
        if path in ADMIN_PATHS and self._admin_api_key:
            key = self._admin_api_key
        if not key:
            return True
        return carries(Headers(scope=scope), key)


def carries(headers: Mapping[str, str], key: str) -> bool:
    """Whether headers, or a gRPC call's metadata, have the key in one of the two ways."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    given = [headers.get("x-api-key", ""), token if scheme.lower() == "bearer" else ""]
    return any(hmac.compare_digest(one.strip().encode("latin-1"), key.encode()) for one in given)
