"""Calls that a grammar forces, whatever the model's own format: `[{"name": …, "parameters": {…}}, …]`."""

from __future__ import annotations

from ramet.text.scanner import Scanner, Steps
from ramet.text.tools.base import ToolParser


class JsonArray(ToolParser):
    def parse(self, text: Scanner) -> Steps[None]:
        text.mark()
        yield from text.space()
        some = False
        if (yield from text.literal("[")):
            while True:
                yield from text.space()
                if not (yield from self.call_object(text, only_calls=True)):
                    break
                some = True
                yield from text.space()
                if not (yield from text.literal(",")):
                    break
        if some:
            yield from text.until(["]"], lambda rest: None)
        else:
            self.content(text.since_mark())
        yield from text.until([], self.content)
        self.end_of_text()
