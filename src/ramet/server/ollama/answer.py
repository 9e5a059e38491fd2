"""What the answers of `/api/chat` and `/api/generate` share: lines of JSON, whole calls, counts and times."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ramet.errors import RametError
from ramet.server.dialect import encode, unfinished_call
from ramet.server.openai.common import raise_if_aborted
from ramet.server.openai.logprobs import chat_logprobs
from ramet.text.events import Content, Event, Reasoning, ToolArguments, ToolCall, ToolStart
from ramet.text.generation import Choice, Generation

Data = dict[str, Any]

NDJSON = "application/x-ndjson"

#: Between two lines; a parser of the next line skips it, while an empty line would be no JSON.
KEEP_ALIVE = b" "


@dataclass(slots=True)
class Piece:
    """What a line carries, or a whole answer."""

    content: str = ""
    thinking: str = ""
    tool_calls: list[Data] = field(default_factory=list)
    logprobs: list[Data] = field(default_factory=list)

    def add(self, other: Piece) -> None:
        self.content += other.content
        self.thinking += other.thinking
        self.tool_calls += other.tool_calls
        self.logprobs += other.logprobs


class Reader:
    """Events to pieces. A call is shown when it is complete; one that stopped short becomes text."""

    def __init__(self) -> None:
        self._call = ToolCall("")

    def read(self, events: Iterable[Event]) -> Piece:
        piece = Piece()
        for event in events:
            if isinstance(event, Content):
                piece.content += event.text
            elif isinstance(event, Reasoning):
                piece.thinking += event.text
            elif isinstance(event, ToolStart):
                self._call = ToolCall(event.name, event.id or f"call_{uuid.uuid4().hex[:24]}")
            elif isinstance(event, ToolArguments):
                self._call.arguments += event.text
            elif event.complete:
                arguments = json.loads(self._call.arguments)
                function = {"index": event.index, "name": self._call.name, "arguments": arguments}
                piece.tool_calls.append({"id": self._call.id, "function": function})
            else:
                piece.content += unfinished_call(self._call)
        return piece


class Answer:
    """Renders one call. `show` makes the part of an object that depends on the route."""

    def __init__(
        self,
        model: str,
        generation: Generation,
        show: Callable[[Piece], Data],
        *,
        table: Sequence[bytes] | None = None,
        last: Callable[[Choice], Data] = lambda choice: {},
    ) -> None:
        """`table`: bytes of the tokens, when logprobs are shown. `last`: what only the last object has."""
        self._model = model
        self._generation = generation
        self._choice = generation.choices[0]
        self._show = show
        self._table = table
        self._last = last
        self._whole = Piece()

    async def read(self) -> None:
        """Everything there is to come; `whole` shows it."""
        async for piece in self._pieces():
            self._whole.add(piece)

    def whole(self) -> Data:
        return self._object(self._whole, done=True)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """A line for each piece, and a last one without text."""
        async for piece in self._pieces():
            yield line(self._object(piece, done=False))
        yield line(self._object(Piece(), done=True))

    async def _pieces(self) -> AsyncGenerator[Piece, None]:
        reader = Reader()
        async for chunk in self._generation:
            raise_if_aborted(chunk)
            piece = reader.read(chunk.events)
            if self._table is not None:
                piece.logprobs = chat_logprobs(chunk.logprobs, self._table)["content"]
            if piece != Piece():
                yield piece

    def _object(self, piece: Piece, *, done: bool) -> Data:
        shown = {**head(self._model), **self._show(piece)}
        if piece.logprobs:
            shown["logprobs"] = piece.logprobs
        if done:
            finish = self._choice.finish
            assert finish is not None
            shown["done_reason"] = finish.type
        shown["done"] = done
        return {**shown, **counts(self._choice), **self._last(self._choice)} if done else shown


def head(model: str) -> Data:
    """What every object begins with."""
    now = datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {"model": model, "created_at": now}


def counts(choice: Choice) -> Data:
    """Tokens and nanoseconds of a finished choice. The model was there before, so loading took none."""
    ended_s = choice.finished_s or choice.arrived_s
    first_s = choice.first_token_s or ended_s
    waited_s = first_s - choice.arrived_s
    usage = choice.usage()
    return {
        "total_duration": _ns(ended_s - choice.arrived_s),
        "load_duration": 0,
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": _ns(choice.prefill_s if choice.prefill_s is not None else waited_s),
        "eval_count": usage.completion_tokens,
        "eval_duration": _ns(ended_s - first_s),
    }


def line(data: Data) -> bytes:
    """One object of a stream."""
    return encode(data) + b"\n"


def late_error(error: RametError) -> bytes:
    """The line that ends a failed stream; no `done` follows, so it cannot be taken for a success."""
    return line({"error": error.message})


def _ns(seconds: float) -> int:
    """At least 1: clients divide by it."""
    return max(1, round(seconds * 1e9))
