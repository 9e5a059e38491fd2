"""mistral: `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]name[ARGS]{…}`, repeated."""

from __future__ import annotations

from ramet.text.scanner import Scanner, Steps
from ramet.text.tools.base import ToolParser

MARKER, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class Mistral(ToolParser):
    def parse(self, text: Scanner) -> Steps[None]:
        while (yield from text.until([MARKER], self.content)):
            text.mark(len(MARKER))
            yield from text.space()
            known = yield from (self._list(text) if (yield from text.literal("[")) else self._compact(text))
            if not known:
                self.content(text.since_mark())
        self.end_of_text()

    def _list(self, text: Scanner) -> Steps[bool]:
        some = False
        while True:
            yield from text.space()
            if not (yield from self.call_object(text)):
                break
            some = True
            yield from text.space()
            if not (yield from text.literal(",")):
                break
        if some:
            yield from text.literal("]")
        return some

    def _compact(self, text: Scanner) -> Steps[bool]:
        parts: list[str] = []
        found = yield from text.until([CALL_ID, ARGS, MARKER, "\n"], parts.append)
        name, id = "".join(parts).strip(), None
        if found == CALL_ID:
            parts = []
            found = yield from text.until([ARGS, MARKER, "\n"], parts.append)
            id = "".join(parts).strip()
        if found != ARGS or not name:
            return False
        self.start(name, id)
        yield from text.space()
        self.end(complete=(yield from text.json_value(self.arguments)))
        return True
