"""The seam between text and engine: messages, and the two ways they cross.

Queues between two threads of one process, or ZeroMQ between processes.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

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
