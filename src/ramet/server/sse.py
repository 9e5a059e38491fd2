"""Streams (server-sent events, lines of JSON), and what happens when the client goes away.

One watcher task per request waits for the disconnect, and one timer per stream sends comments while nothing else does;
neither costs anything per chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ramet.errors import RametError, RequestAborted

T = TypeVar("T")

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

EVENT_STREAM = "text/event-stream; charset=utf-8"

_HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events
)


def event(data: bytes) -> bytes:
    """One event with these bytes of JSON."""
    return b"data: " + data + b"\n\n"


async def until_disconnect(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Streams `events` (complete events of `media_type` as bytes) and closes them at once when the client goes away.

    The status line waits for the first event, so that an error raised before it can still be an ordinary answer
    (`on_error`), but no longer than `keep_alive_s`: then the stream opens with `keep_alive`, which its readers skip
    (in SSE a comment). Later errors become the event that `late_error` renders.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        close: Callable[[], None],
        on_error: Callable[[RametError], Response],
        late_error: Callable[[RametError], bytes],
        keep_alive_s: float,
        headers: dict[str, str] | None = None,
        media_type: str = EVENT_STREAM,
        keep_alive: bytes = KEEP_ALIVE,
    ) -> None:
        super().__init__(None, 200, headers, media_type)
        self._events = events
        self._close = close
        self._on_error = on_error
        self._late_error = late_error
        self._keep_alive_s = keep_alive_s
        self._keep_alive = keep_alive
        self._started = False
        self._idle = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        main = asyncio.current_task()
        assert main is not None
        loop = asyncio.get_running_loop()
        gone = False

        async def watch() -> None:
            nonlocal gone
            await until_disconnect(receive)
            gone = True
            self._close()
            main.cancel()

        comments: set[asyncio.Task[None]] = set()
        timer: asyncio.TimerHandle

        def tick() -> None:
            nonlocal timer
            if self._idle:
                task = loop.create_task(self._comment(send))
                comments.add(task)
                task.add_done_callback(comments.discard)
            self._idle = True
            timer = loop.call_later(self._keep_alive_s, tick)

        watcher = loop.create_task(watch())
        timer = loop.call_later(self._keep_alive_s, tick)
        try:
            await self._run(scope, receive, send)
        except asyncio.CancelledError:
            if not gone:
                raise
        finally:
            timer.cancel()
            watcher.cancel()
            self._close()
            for task in comments:
                task.cancel()
            await self._events.aclose()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for data in self._events:
                if not self._started:
                    await self._start(send)
                self._idle = False
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except RametError as error:
            if not self._started:
                self._started = True  # no comment may slip in
                await self._on_error(error)(scope, receive, send)
                return
            await send({"type": "http.response.body", "body": self._late_error(error), "more_body": True})
        if not self._started:
            await self._start(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        self._started = True
        headers = [*_HEADERS, *(pair for pair in self.raw_headers if pair[0] != b"content-length")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _comment(self, send: Send) -> None:
        if not self._started:
            await self._start(send)
        await send({"type": "http.response.body", "body": self._keep_alive, "more_body": True})


async def while_connected(receive: Receive, work: Awaitable[T], close: Callable[[], None]) -> T:
    """Await `work` unless the client goes away first: then `close()` and `RequestAborted`."""
    main = asyncio.current_task()
    assert main is not None
    gone = False

    async def watch() -> None:
        nonlocal gone
        await until_disconnect(receive)
        gone = True
        close()
        main.cancel()

    watcher = asyncio.get_running_loop().create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if gone:
            raise RequestAborted("The client went away.") from None
        raise
    finally:
        watcher.cancel()
        close()
