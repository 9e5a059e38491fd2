"""A generation's text to events: the reasoning parser first, then the tool parser on what is left as content."""

from __future__ import annotations

from ramet.text.events import Content, Event, merged
from ramet.text.scanner import Parser


class OutputParser:
    """Either parser may be None; with neither, everything is content."""

    def __init__(self, reasoning: Parser | None = None, tools: Parser | None = None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    def push(self, text: str) -> list[Event]:
        """Take more text; return the events that are now certain."""
        return merged(self._through_tools(self._reasoning.push(text) if self._reasoning else [Content(text)]))

    def finish(self) -> list[Event]:
        """The text is over; return the last events."""
        events = self._through_tools(self._reasoning.finish() if self._reasoning else [])
        return merged([*events, *(self._tools.finish() if self._tools else [])])

    def _through_tools(self, events: list[Event]) -> list[Event]:
        if self._tools is None:
            return events
        result: list[Event] = []
        for event in events:
            result.extend(self._tools.push(event.text) if isinstance(event, Content) else [event])
        return result
