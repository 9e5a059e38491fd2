"""Administration: empty the prefix cache, end requests, pause, change options that may change."""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ramet import engine
from ramet.errors import RequestError
from ramet.server.body import Body, read_body
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.responses import json_response

T = TypeVar("T", bound=msgspec.Struct)


class AbortRequest(msgspec.Struct, kw_only=True):
    """Body of `/abort_request`."""

    rid: str | None = None
    abort_all: bool | None = None


class PauseRequest(msgspec.Struct, kw_only=True):
    """Body of `/pause_generation`."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class ContinueRequest(msgspec.Struct, kw_only=True):
    """Body of `/continue_generation`. The field is accepted for SGLang's clients; there is no such cache here."""

    torch_empty_cache: bool = True


class StateRequest(msgspec.Struct, kw_only=True):
    """Body of `/set_internal_state`."""

    server_args: dict[str, float | int | None]


class Admin:
    """The routes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._abort = Body(AbortRequest)
        self._pause = Body(PauseRequest)
        self._continue = Body(ContinueRequest)
        self._state = Body(StateRequest)

    async def _read(self, request: Request, body: Body[T]) -> tuple[T, dict[str, str] | None]:
        """The body, where none is as good as an empty one, and the header about what it has too much."""
        value, unknown = body.decode(await read_body(request, self._context.body_limit_bytes) or b"{}")
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=self._context.api.strict)
        return value, warning_headers(warnings)

    async def pause_generation(self, request: Request) -> Response:
        """No step starts until `/continue_generation`. `mode` says what becomes of live requests: `abort` ends them,
        `retract` puts them back into the queue and frees their memory, `in_place` keeps it."""
        frontend = self._context.live
        body, headers = await self._read(request, self._pause)
        await frontend.pause(body.mode)
        return json_response({"message": "Generation paused successfully.", "status": "ok"}, headers=headers)

    async def continue_generation(self, request: Request) -> Response:
        """The end of a pause; without one it changes nothing."""
        frontend = self._context.live
        _, headers = await self._read(request, self._continue)
        await frontend.resume()
        return json_response({"message": "Generation continued successfully.", "status": "ok"}, headers=headers)

    async def set_internal_state(self, request: Request) -> Response:
        """Changes `max_queued_requests` and `schedule_conservativeness`. `[false]`, and nothing has changed, when
        another option is named."""
        frontend = self._context.live
        body, headers = await self._read(request, self._state)
        return json_response([await frontend.call("set_options", options=body.server_args)], headers=headers)

    async def freeze_gc(self, request: Request) -> Response:
        """Exempts the objects that live now from Python's garbage collection, in server and engine."""
        count = await self._context.live.call("freeze_gc")
        if self._context.settings.get("engine_process"):
            count += engine.freeze_gc()
        return PlainTextResponse(f"Garbage collection frozen: {count} objects.\n")

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
        body, headers = await self._read(request, self._abort)
        if body.abort_all:
            frontend.abort(everything=True)
        elif body.rid:
            frontend.abort(body.rid)
        return Response(headers=headers)
