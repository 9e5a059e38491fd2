"""Thinking between an opening and a closing marker, the form of most models.

The rules, the same for streaming and not:

- Text before the first opening marker is content (nothing, if it is only whitespace). What follows the closing marker
  is content, and another opening marker there is ordinary text.
- Whitespace around the thinking, and between its end and the answer, is dropped.
- Where the prompt has opened the thinking already, the text starts inside; an opening marker that comes first is
  dropped.
- Some markers end the thinking without closing it, such as that of a tool call; they stay, for the tool parser.
- Thinking that never ends is all reasoning, and there is no content.
"""

from __future__ import annotations

from collections.abc import Sequence

from ramet.text.events import Content, Reasoning
from ramet.text.scanner import Parser, Scanner, Steps


class TagReasoning(Parser):
    """`starts_inside`: the prompt ends inside the thinking. `also_ends`: markers that end it and are kept."""

    def __init__(self, opening: str, closing: str, *, starts_inside: bool, also_ends: Sequence[str] = ()) -> None:
        super().__init__()
        self._opening = opening
        self._closing = closing
        self._also_ends = tuple(also_ends)
        self._inside = starts_inside
        self.thinking = starts_inside
        self._space = ""  # whitespace that is dropped unless text of the same kind follows
        self._started = False  # some text of the present kind has been emitted

    def parse(self, text: Scanner) -> Steps[None]:
        if self._inside:
            yield from text.space()
            yield from text.literal(self._opening)
        elif (yield from text.until([self._opening], self._content)) is None:
            self.emit(Content(self._space))
            return
        self._space, self._started = "", False
        self.thinking = True
        end = yield from text.until([self._closing, *self._also_ends], self._reasoning)
        self.thinking = None
        if end is None:
            return
        if end == self._closing:
            yield from text.space()
        else:
            self.emit(Content(end))
        yield from text.until([], lambda rest: self.emit(Content(rest)))

    def _content(self, text: str) -> None:
        """Content before the thinking: leading whitespace waits for text, and is dropped if thinking comes instead."""
        if not self._started:
            self._space += text
            if not self._space.strip():
                return
            text, self._space, self._started = self._space, "", True
        self.emit(Content(text))

    def _reasoning(self, text: str) -> None:
        text = self._space + text
        if not self._started:
            text = text.lstrip()
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            self._started = True
            self.emit(Reasoning(body))
