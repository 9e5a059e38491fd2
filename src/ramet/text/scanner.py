"""Reading text that arrives in pieces as if it were all there.

A parser is a generator over a `Scanner`: straight code that says what may come next. Where the answer depends on text
that has not arrived, the scanner's steps wait (`yield`), so no parser ever sees where the text was cut, and every way
of cutting it gives the same events.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from ramet.text.events import Event, merged

T = TypeVar("T")
Steps = Generator[None, None, T]
Emit = Callable[[str], None]

_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[\s,:{}\[\]\"<]")


class Scanner:
    """A cursor over growing text. Every method named as a step is a generator that waits for what it needs."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self._ended = False

    def feed(self, text: str) -> None:
        """More text. What lies before the cursor (and the mark) is forgotten."""
        start = self._at if self._mark is None else self._mark
        self._text = self._text[start:] + text
        self._at -= start
        if self._mark is not None:
            self._mark = 0

    def end(self) -> None:
        """No more text will come."""
        self._ended = True

    def mark(self, back: int = 0) -> None:
        """Remember the place `back` characters before the cursor; they must have been taken just now."""
        self._mark = self._at - back

    def since_mark(self) -> str:
        """The text from the mark to the cursor; forgets the mark."""
        assert self._mark is not None
        text, self._mark = self._text[self._mark : self._at], None
        return text

    def unmark(self) -> None:
        self._mark = None

    def until(self, markers: Sequence[str], emit: Emit) -> Steps[str | None]:
        """Emit text up to the first of `markers`, take the marker and return it; None when the text ends before.

        Text is emitted as soon as it cannot be the beginning of a marker. Of two markers at one place the longer wins.
        """
        while True:
            text, at = self._text, self._at
            held = self._held_from(markers)
            found = min(
                ((place, -len(mark), mark) for mark in markers if (place := text.find(mark, at)) >= 0), default=None
            )
            if found is not None and (found[0] < held or self._ended):
                emit(text[at : found[0]])
                self._at = found[0] + len(found[2])
                return found[2]
            self._at = len(text) if self._ended else held
            emit(text[at : self._at])
            if self._ended:
                return None
            yield

    def _held_from(self, markers: Sequence[str]) -> int:
        """Where the tail begins that may still become a marker."""
        text = self._text
        longest = max(map(len, markers), default=0)
        for place in range(max(self._at, len(text) - longest + 1), len(text)):
            if any(len(text) - place < len(mark) and mark.startswith(text[place:]) for mark in markers):
                return place
        return len(text)

    def peek(self) -> Steps[str]:
        """The next character, not taken; "" at the end."""
        while self._at == len(self._text) and not self._ended:
            yield
        return self._text[self._at : self._at + 1]

    def take(self) -> Steps[str]:
        """The next character, taken; "" at the end."""
        character = yield from self.peek()
        self._at += len(character)
        return character

    def space(self) -> Steps[None]:
        """Take whitespace."""
        while (yield from self.peek()).isspace():
            self._at += 1

    def literal(self, text: str) -> Steps[bool]:
        """Take `text` if it comes next."""
        while True:
            here = self._text[self._at : self._at + len(text)]
            if here == text:
                self._at += len(text)
                return True
            if self._ended or not text.startswith(here):
                return False
            yield

    def json_value(self, emit: Emit) -> Steps[bool]:
        """Take one JSON value and emit it as it is written; False when the text ends inside, or no value is here.

        Only brackets and strings are followed. Whether what stands between is valid is for `json.loads` to say.
        """
        first = yield from self.peek()
        if first == '"':
            return (yield from self._json_string(emit))
        if first not in "{[" or not first:
            return (yield from self._json_scalar(emit))
        depth = 0
        while mark := (yield from self._up_to(_STRUCTURE, emit)):
            if mark == '"':
                if not (yield from self._json_string(emit)):
                    return False
                continue
            emit((yield from self.take()))
            depth += 1 if mark in "{[" else -1
            if depth == 0:
                return True
        return False

    def _json_string(self, emit: Emit) -> Steps[bool]:
        emit((yield from self.take()))
        while mark := (yield from self._up_to(_STRING_END, emit)):
            emit((yield from self.take()))
            if mark == '"':
                return True
            emit((yield from self.take()))  # the escaped character
        return False

    def _json_scalar(self, emit: Emit) -> Steps[bool]:
        parts: list[str] = []

        def keep(text: str) -> None:
            parts.append(text)
            emit(text)

        mark = yield from self._up_to(_SCALAR_END, keep)
        return bool(mark) and any(parts)

    def _up_to(self, end: re.Pattern[str], emit: Emit) -> Steps[str]:
        """Emit text up to the next match of `end`, one character, and return it without taking it; "" if none comes."""
        while True:
            found = end.search(self._text, self._at)
            stop = found.start() if found else len(self._text)
            emit(self._text[self._at : stop])
            self._at = stop
            if found is not None:
                return found[0]
            if self._ended:
                return ""
            yield


class Parser(ABC):
    """One generation's text in, events out. `parse` is the format.

    `thinking` is kept by reasoning parsers: whether the text is inside the thinking now; None once it cannot be again.
    """

    thinking: bool | None = False

    def __init__(self) -> None:
        self._scanner = Scanner()
        self._events: list[Event] = []
        self._steps: Steps[None] | None = None

    @abstractmethod
    def parse(self, text: Scanner) -> Steps[None]:
        """Read everything there is and emit events; return only at the end of the text."""

    def push(self, text: str) -> list[Event]:
        """Take more text; return the events that are now certain."""
        self._scanner.feed(text)
        return self._resume()

    def finish(self) -> list[Event]:
        """The text is over; return the last events. Nothing may be pushed afterwards."""
        self._scanner.end()
        return self._resume()

    def emit(self, event: Event) -> None:
        self._events.append(event)

    def _resume(self) -> list[Event]:
        if self._steps is None:
            self._steps = self.parse(self._scanner)
        next(self._steps, None)
        events, self._events = merged(self._events), []
        return events
