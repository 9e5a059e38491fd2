"""hermes and qwen25: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one call a block or a list of calls."""

from __future__ import annotations

from ramet.text.scanner import Scanner, Steps
from ramet.text.tools.base import ToolParser

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class Hermes(ToolParser):
    def parse(self, text: Scanner) -> Steps[None]:
        while (yield from text.until([OPENING], self.content)):
            text.mark(len(OPENING))
            yield from text.space()
            several = yield from text.literal("[")
            some = False
            while True:
                yield from text.space()
                if not (yield from self.call_object(text)):
                    break
                some = True
                yield from text.space()
                if not several or not (yield from text.literal(",")):
                    break
            if some:
                yield from text.until([CLOSING], lambda rest: None)
            else:
                self.content(text.since_mark())
        self.end_of_text()
