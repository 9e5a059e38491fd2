"""The seam between text and engine: messages, and the two ways they cross.

`thread_channel` is queues between threads of one process; `ramet.channel_zmq` crosses processes.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from typing import Any, Protocol

import msgspec

from ramet.errors import EngineDeadError
from ramet.types import EngineRequest, TokenDelta


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Start these requests. An invalid one is answered by a delta whose finish is an abort."""

    requests: list[EngineRequest]


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End requests: those in `rids`, those whose id begins with `prefix`, or all. Unknown ids are ignored."""

    rids: list[str] = []
    prefix: str | None = None
    all: bool = False
    message: str = "Aborted by the client."


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A control call (`flush_cache`, `server_info`, `set_vocabulary`, …) by name with plain-data arguments."""

    id: int
    method: str
    args: dict[str, Any] = {}


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the engine: at once, or after what is queued and running has finished."""

    drain: bool = False


class Deltas(msgspec.Struct, frozen=True, tag="deltas"):
    """Everything one step produced for this frontend."""

    deltas: list[TokenDelta]


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """Answer to a `Call`: a value, or an error as (class name in `ramet.errors`, message)."""

    id: int
    value: Any = None
    error: tuple[str, str] | None = None


class Dead(msgspec.Struct, frozen=True, tag="dead"):
    """The engine has ended for this reason; nothing follows."""

    reason: str


ToEngine = Submit | Abort | Call | Stop
ToText = Deltas | Reply | Dead


class EngineSide(Protocol):
    """Held by the engine's thread."""

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        """All waiting messages; blocks up to `timeout_s` for the first (None: for ever, 0: not at all)."""
        ...

    def send(self, message: ToText) -> None: ...


class TextSide(Protocol):
    """Held by the frontend. `send` may be called from any thread; `receive` is awaited on one event loop."""

    def send(self, message: ToEngine) -> None:
        """Raises `EngineDeadError` when the engine has ended."""
        ...

    async def receive(self) -> ToText: ...

    def close(self) -> None: ...


class Inbox:
    """Messages put by any thread and awaited on one event loop; a sleeping loop is woken once for all that arrives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: deque[ToText] = deque()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._ended: str | None = None

    @property
    def ended(self) -> str | None:
        """Why the engine has ended; None while it runs."""
        return self._ended

    def put(self, message: ToText) -> None:
        """After a `Dead` nothing is taken any more."""
        with self._lock:
            if self._ended is not None:
                return
            if isinstance(message, Dead):
                self._ended = message.reason
            self._messages.append(message)
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            loop, future = waiter
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:
                if not loop.is_closed():  # a closed loop has no reader left to wake
                    raise

    async def get(self) -> ToText:
        """The next message; raises `EngineDeadError` when the `Dead` has been read before."""
        while True:
            with self._lock:
                if self._messages:
                    return self._messages.popleft()
                if self._ended is not None:
                    raise EngineDeadError(f"The engine has ended: {self._ended}")
                loop = asyncio.get_running_loop()
                future = loop.create_future()
                self._waiter = loop, future
            await future


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class ThreadEngineSide:
    """`EngineSide` of a `thread_channel`."""

    def __init__(self, arrivals: queue.SimpleQueue[ToEngine], inbox: Inbox) -> None:
        self._arrivals = arrivals
        self._inbox = inbox

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        messages: list[ToEngine] = []
        try:
            messages.append(self._arrivals.get(timeout_s != 0, timeout_s))
            while True:
                messages.append(self._arrivals.get_nowait())
        except queue.Empty:
            return messages

    def send(self, message: ToText) -> None:
        self._inbox.put(message)


class ThreadTextSide:
    """`TextSide` of a `thread_channel`. Closing it ends the engine: nobody is left to read its answers."""

    def __init__(self, arrivals: queue.SimpleQueue[ToEngine], inbox: Inbox) -> None:
        self._arrivals = arrivals
        self._inbox = inbox

    def send(self, message: ToEngine) -> None:
        if self._inbox.ended is not None:
            raise EngineDeadError(f"The engine has ended: {self._inbox.ended}")
        self._arrivals.put(message)

    async def receive(self) -> ToText:
        return await self._inbox.get()

    def close(self) -> None:
        self._arrivals.put(Stop())


def thread_channel() -> tuple[ThreadEngineSide, ThreadTextSide]:
    """The two ends of a channel between threads."""
    arrivals: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
    inbox = Inbox()
    return ThreadEngineSide(arrivals, inbox), ThreadTextSide(arrivals, inbox)
