"""Anthropic's answer, piece by piece: content blocks out of events, the events of a stream, usage and stop reason."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from ramet.errors import RametError
from ramet.server.dialect import encode, unfinished_call
from ramet.server.errors import anthropic_error, status_of
from ramet.text.events import Content, Event, Reasoning, ToolArguments, ToolCall, ToolStart
from ramet.text.generation import Choice
from ramet.types import Usage

Data = dict[str, Any]

PING = b'event: ping\ndata: {"type":"ping"}\n\n'

_EMPTY: dict[str, Data] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},  # nothing is signed, but clients read the key
}


class Blocks:
    """The content blocks of one answer in the order in which the model wrote them, one open at a time.

    `add` and `finish` yield the events of a stream. `whole` is what they add up to, except that a call whose arguments
    stopped short is a text there: its input is no object.
    """

    def __init__(self, *, hide_thinking: bool = False) -> None:
        self.whole: list[Data] = []
        self._hide_thinking = hide_thinking
        self._open: str | None = None  # type of the last block while it is open
        self._call = ToolCall("")

    def add(self, events: Iterable[Event]) -> Iterator[Data]:
        """Take further events, in order."""
        for event in events:
            if isinstance(event, Content):
                yield from self._text("text", event.text)
            elif isinstance(event, Reasoning):
                yield from self._text("thinking", event.text)
            elif isinstance(event, ToolStart):
                self._call = ToolCall(event.name)
                id = event.id or f"toolu_{uuid.uuid4().hex[:24]}"
                yield from self._begin({"type": "tool_use", "id": id, "name": event.name, "input": {}})
            elif isinstance(event, ToolArguments):
                self._call.arguments += event.text
                yield self._delta({"type": "input_json_delta", "partial_json": event.text})
            else:
                self._end_call(event.complete)
                yield from self._stop()

    def finish(self) -> Iterator[Data]:
        """The answer is over; it has at least one block."""
        if not self.whole:
            yield from self._begin(dict(_EMPTY["text"]))
        yield from self._stop()

    def _text(self, kind: str, text: str) -> Iterator[Data]:
        if self._open != kind:
            yield from self._begin(dict(_EMPTY[kind]))
        if kind == "thinking" and self._hide_thinking:
            return
        self.whole[-1][kind] += text
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _end_call(self, complete: bool) -> None:
        if complete:
            self.whole[-1]["input"] = json.loads(self._call.arguments)
        else:
            self.whole[-1] = {"type": "text", "text": unfinished_call(self._call)}

    def _begin(self, block: Data) -> Iterator[Data]:
        yield from self._stop()
        self._open = block["type"]
        self.whole.append(block)
        yield {"type": "content_block_start", "index": len(self.whole) - 1, "content_block": dict(block)}

    def _delta(self, delta: Data) -> Data:
        return {"type": "content_block_delta", "index": len(self.whole) - 1, "delta": delta}

    def _stop(self) -> Iterator[Data]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": len(self.whole) - 1}


def usage_object(usage: Usage, *, cache_report: bool) -> Data:
    """`usage`: the prompt is `input_tokens` plus what was read from the cache. Writing to it is never counted."""
    cached = usage.cached_tokens if cache_report else 0
    shown: Data = {"input_tokens": usage.prompt_tokens - cached, "output_tokens": usage.completion_tokens}
    if cache_report:
        shown.update(cache_creation_input_tokens=0, cache_read_input_tokens=cached)
    if usage.reasoning_tokens:
        shown["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return shown


def stop_reason(choice: Choice, *, max_tokens: int) -> Data:
    """`stop_reason` and `stop_sequence` of a finished choice. `max_tokens`: as asked, whatever the context held.

    A text that stopped with at least one whole call ended for that call's sake; one that was cut off says so.
    """
    finish = choice.finish
    assert finish is not None
    sequence = None
    if finish.type == "length":
        limit = choice.request.sampling.max_new_tokens
        reason = "max_tokens" if limit is None or limit >= max_tokens else "model_context_window_exceeded"
    elif any(call.complete for call in choice.message.tool_calls):
        reason = "tool_use"
    elif isinstance(finish.matched, str):
        reason, sequence = "stop_sequence", finish.matched
    else:
        reason = "end_turn"
    return {"stop_reason": reason, "stop_sequence": sequence}


def event(data: Data) -> bytes:
    """One event of the stream, under the name of its type."""
    kind: str = data["type"]
    return b"event: " + kind.encode() + b"\ndata: " + encode(data) + b"\n\n"


def late_error(error: RametError) -> bytes:
    """The event that ends a failed stream; no `message_stop` follows, so it cannot be taken for a success."""
    status, _ = status_of(error, openai=True)
    return event(anthropic_error(error.message, status))
