"""Administration: empty the prefix cache, end requests."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ramet.errors import RequestError
from ramet.server.body import Body, read_body
from ramet.server.context import Context


class AbortRequest(msgspec.Struct, kw_only=True):
    """Body of `/abort_request`."""

    rid: str | None = None
    abort_all: bool | None = None


class Admin:
    """The routes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._abort = Body(AbortRequest)

    async def flush_cache(self, request: Request) -> Response:
        """Empties the prefix cache when nothing is running or waiting, within `?timeout=` seconds."""
        frontend = self._context.live
        given = request.query_params.get("timeout", "0")
        try:
            timeout = float(given)
        except ValueError:
            timeout = -1.0
        if not 0 <= timeout <= 3600:
            raise RequestError(f"timeout must be a number from 0 to 3600, not {given!r}.", field="timeout")
        if await frontend.flush_cache(timeout):
            return PlainTextResponse("Cache flushed.\n")
        return PlainTextResponse("Cache not flushed: requests are running or waiting.\n", status_code=400)

    async def abort_request(self, request: Request) -> Response:
        """Ends the requests whose id begins with `rid`, or all; always 200, unknown ids are no error."""
        frontend = self._context.live
        body, _ = self._abort.decode(await read_body(request, self._context.body_limit_bytes))
        if body.abort_all:
            frontend.abort(everything=True)
        elif body.rid:
            frontend.abort(body.rid)
        return Response()
