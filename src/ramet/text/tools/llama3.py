"""llama3: `<|python_tag|>{"name": …, "parameters": {…}}`, or a message that begins with `{`; several joined by `;`."""

from __future__ import annotations

from ramet.text.scanner import Scanner, Steps
from ramet.text.tools.base import ToolParser

MARKER = "<|python_tag|>"


class Llama3(ToolParser):
    def parse(self, text: Scanner) -> Steps[None]:
        text.mark()
        yield from text.space()
        if (yield from text.literal(MARKER)) or (yield from text.peek()) == "{":
            yield from self._calls(text)
        else:
            self.content(text.since_mark())
        while (yield from text.until([MARKER], self.content)):
            text.mark(len(MARKER))
            yield from self._calls(text)
        self.end_of_text()

    def _calls(self, text: Scanner) -> Steps[None]:
        """Calls with `;` between; what is none goes back to the content, from the mark."""
        while True:
            yield from text.space()
            if not (yield from self.call_object(text, only_calls=True)):
                self.content(text.since_mark())
                return
            yield from text.space()
            text.mark()
            if not (yield from text.literal(";")):
                text.unmark()
                return
