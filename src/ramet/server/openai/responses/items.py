"""The output of a response: events of a generation to items, one after the other.

Whole answers take the finished items, streams the steps on the way to them: both come from here.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from ramet.text.events import Content, Event, Reasoning, ToolArguments, ToolEnd, ToolStart

#: The type of a stream event and its fields, to be rendered before the next step is asked for: items grow. The stream
#: adds the sequence number.
Step = tuple[str, dict[str, Any]]


class ItemBuilder:
    """`summarise`: the client wants the thinking as a summary; it gets all of it there."""

    def __init__(self, *, summarise: bool) -> None:
        self.items: list[dict[str, Any]] = []
        self._summarise = summarise
        self._open: dict[str, Any] | None = None
        self._logprobs: list[dict[str, Any]] = []

    def add(self, event: Event, logprobs: list[dict[str, Any]]) -> Iterator[Step]:
        """Take the next event; `logprobs` of the text that it brings."""
        if isinstance(event, Content):
            yield from self._begin("message")
            yield from self._text(event.text, logprobs)
        elif isinstance(event, Reasoning):
            yield from self._begin("reasoning")
            yield from self._thinking(event.text)
        elif isinstance(event, ToolStart):
            yield from self.close(before_call=True)
            yield from self._begin("function_call", name=event.name, call_id=event.id or f"call_{_hex()}")
        elif isinstance(event, ToolArguments):
            item = self._current()
            item["arguments"] += event.text
            yield "response.function_call_arguments.delta", {**self._at(), "delta": event.text}
        else:
            assert isinstance(event, ToolEnd)
            yield from self.close(complete=event.complete)

    def more_logprobs(self, logprobs: list[dict[str, Any]]) -> Iterator[Step]:
        """Logprobs of tokens without text, such as the one that ended it, go with the open message."""
        if self._open is not None and self._open["type"] == "message":
            yield from self._text("", logprobs)

    def finish(self, *, complete: bool) -> Iterator[Step]:
        """Nothing more comes. An answer without any item gets an empty message."""
        if not self.items:
            yield from self._begin("message")
        yield from self.close(complete=complete)

    def close(self, *, complete: bool = True, before_call: bool = False) -> Iterator[Step]:
        """End the open item, if there is one."""
        item = self._open
        if item is None:
            return
        item["status"] = "completed" if complete else "incomplete"
        if item["type"] == "message":
            item["phase"] = "commentary" if before_call else "final_answer"
            part, where = item["content"][0], {**self._at(), "content_index": 0}
            yield "response.output_text.done", {**where, "text": part["text"], "logprobs": part["logprobs"]}
            yield "response.content_part.done", {**where, "part": part}
        elif item["type"] == "function_call":
            name, arguments = item["name"], item["arguments"]
            yield "response.function_call_arguments.done", {**self._at(), "name": name, "arguments": arguments}
        elif self._summarise:
            part, where = item["summary"][0], {**self._at(), "summary_index": 0}
            yield "response.reasoning_summary_text.done", {**where, "text": part["text"]}
            yield "response.reasoning_summary_part.done", {**where, "part": part}
        else:
            part, where = item["content"][0], {**self._at(), "content_index": 0}
            yield "response.reasoning_text.done", {**where, "text": part["text"]}
            yield "response.content_part.done", {**where, "part": part}
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item}
        self._open = None

    def _begin(self, kind: str, **fields: Any) -> Iterator[Step]:
        if self._open is not None and self._open["type"] == kind:
            return
        yield from self.close()
        item: dict[str, Any] = {"type": kind, "status": "in_progress", **fields}
        part: dict[str, Any] | None = None
        if kind == "message":
            item |= {"id": f"msg_{_hex()}", "role": "assistant", "content": []}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        elif kind == "function_call":
            item |= {"id": f"fc_{_hex()}", "arguments": ""}
        else:
            item |= {"id": f"rs_{_hex()}", "summary": [], "content": []}
            part = {"type": "summary_text" if self._summarise else "reasoning_text", "text": ""}
        self.items.append(item)
        self._open = item
        index = len(self.items) - 1
        yield "response.output_item.added", {"output_index": index, "item": item}
        if part is not None and kind == "reasoning" and self._summarise:
            item["summary"] = [part]
            added = {**self._at(), "summary_index": 0, "part": part}
            yield "response.reasoning_summary_part.added", added
        elif part is not None:
            item["content"] = [part]
            yield "response.content_part.added", {**self._at(), "content_index": 0, "part": part}

    def _text(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Step]:
        part = self._current()["content"][0]
        part["text"] += text
        part["logprobs"].extend(logprobs)
        yield "response.output_text.delta", {**self._at(), "content_index": 0, "delta": text, "logprobs": logprobs}

    def _thinking(self, text: str) -> Iterator[Step]:
        item = self._current()
        if self._summarise:
            item["summary"][0]["text"] += text
            yield "response.reasoning_summary_text.delta", {**self._at(), "summary_index": 0, "delta": text}
        else:
            item["content"][0]["text"] += text
            yield "response.reasoning_text.delta", {**self._at(), "content_index": 0, "delta": text}

    def _current(self) -> dict[str, Any]:
        assert self._open is not None
        return self._open

    def _at(self) -> dict[str, Any]:
        return {"item_id": self._current()["id"], "output_index": len(self.items) - 1}


def _hex() -> str:
    return uuid.uuid4().hex[:24]
