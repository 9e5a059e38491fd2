"""A generation's text to events: the reasoning parser first, then the tool parser on what is left as content."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.text.events import Content, Event, Reasoning, merged
from ramet.text.reasoning.counter import ReasoningCounter
from ramet.text.scanner import Parser


class OutputParser:
    """Either parser may be None; with neither, everything is content.

    `stream_reasoning=False` keeps the thinking until it is over. `counter` counts its tokens.
    """

    def __init__(
        self,
        reasoning: Parser | None = None,
        tools: Parser | None = None,
        *,
        stream_reasoning: bool = True,
        counter: ReasoningCounter | None = None,
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._stream_reasoning = stream_reasoning
        self._counter = counter
        self._kept = ""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of thinking, markers included, among those counted so far."""
        return self._counter.tokens if self._counter else 0

    def count(self, token_ids: Sequence[int]) -> None:
        """Look at new tokens for the usage; their text comes through `push`, perhaps later."""
        if self._counter:
            self._counter.push(token_ids)

    def push(self, text: str) -> list[Event]:
        """Take more text; return the events that are now certain."""
        events = self._through_tools(self._reasoning.push(text) if self._reasoning else [Content(text)])
        return merged(events if self._stream_reasoning else self._keep(events))

    def finish(self) -> list[Event]:
        """The text is over; return the last events."""
        events = self._through_tools(self._reasoning.finish() if self._reasoning else [])
        events = [*events, *(self._tools.finish() if self._tools else [])]
        if not self._stream_reasoning:
            events = [*self._keep(events), *([Reasoning(self._kept)] if self._kept else [])]
        return merged(events)

    def _through_tools(self, events: list[Event]) -> list[Event]:
        if self._tools is None:
            return events
        result: list[Event] = []
        for event in events:
            result.extend(self._tools.push(event.text) if isinstance(event, Content) else [event])
        return result

    def _keep(self, events: list[Event]) -> list[Event]:
        result: list[Event] = []
        for event in events:
            if isinstance(event, Reasoning):
                self._kept += event.text
                continue
            if self._kept:
                result.append(Reasoning(self._kept))
                self._kept = ""
            result.append(event)
        return result
