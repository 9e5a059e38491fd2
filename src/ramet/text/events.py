"""What a model's text means, piece by piece: the events that reasoning and tool parsers make of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A call begins: its function is known. Calls are numbered from 0; `id` only where the format has one."""

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """The next fragment of a call's arguments; the fragments of a complete call join to the text of a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """A call ends. Not `complete`: the text stopped or went wrong before the arguments were whole."""

    index: int
    complete: bool


Event = Content | Reasoning | ToolStart | ToolArguments | ToolEnd


@dataclass(slots=True)
class ToolCall:
    """One call, put together."""

    name: str
    id: str | None = None
    arguments: str = ""
    complete: bool = False


@dataclass(slots=True)
class Message:
    """All events of one generation, put together: what a non-streaming answer shows."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> None:
        """Take further events, in order."""
        for event in events:
            if isinstance(event, Content):
                self.content += event.text
            elif isinstance(event, Reasoning):
                self.reasoning += event.text
            elif isinstance(event, ToolStart):
                self.tool_calls.append(ToolCall(event.name, event.id))
            elif isinstance(event, ToolArguments):
                self.tool_calls[event.index].arguments += event.text
            else:
                self.tool_calls[event.index].complete = event.complete


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbouring texts of one kind joined and empty texts left out."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Content | Reasoning | ToolArguments) and not event.text:
            continue
        if isinstance(event, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + event.text)
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + event.text)
        elif isinstance(event, ToolArguments) and isinstance(last, ToolArguments) and event.index == last.index:
            result[-1] = ToolArguments(last.index, last.text + event.text)
        else:
            result.append(event)
    return result
