"""deepseekv3: `function<｜tool▁sep｜>NAME`, a newline and the arguments in a ```json fence.

deepseekv31: `NAME<｜tool▁sep｜>{…}`.
"""

from __future__ import annotations

from ramet.text.scanner import Scanner, Steps
from ramet.text.tools.base import ToolParser

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


class DeepSeekV31(ToolParser):
    """Between the call's two markers: the name, the separator, the arguments."""

    def parse(self, text: Scanner) -> Steps[None]:
        while (yield from text.until([CALLS_BEGIN], self.content)):
            text.mark(len(CALLS_BEGIN))
            some = False
            yield from text.space()
            while (yield from text.literal(CALL_BEGIN)):
                name = yield from self._name(text)
                if name is None:
                    break
                some = True
                self.start(name)
                yield from text.space()
                whole = yield from text.json_value(self.arguments)
                self.end(complete=whole)
                yield from text.until([CALL_END], lambda rest: None)
                yield from text.space()
            if not some:
                self.content(text.since_mark())
                continue
            yield from text.literal(CALLS_END)
        self.end_of_text()

    def _name(self, text: Scanner) -> Steps[str | None]:
        parts: list[str] = []
        found = yield from text.until([SEPARATOR, CALL_END, CALLS_END], parts.append)
        return "".join(parts).strip() or None if found == SEPARATOR else None


class DeepSeekV3(DeepSeekV31):
    """The word "function" stands before the separator, and the name after it."""

    def _name(self, text: Scanner) -> Steps[str | None]:
        if (yield from text.until([SEPARATOR, CALL_END, CALLS_END], lambda kind: None)) != SEPARATOR:
            return None
        parts: list[str] = []
        found = yield from text.until(["```json", CALL_END, CALLS_END], parts.append)
        return "".join(parts).strip() or None if found == "```json" else None
