"""qwen3_coder: `<tool_call><function=NAME><parameter=K>V</parameter>…</function></tool_call>`.

One newline at either end of V is markup. Values are typed by the function's schema; strings go out while they are
written. The outer `<tool_call>` may be missing, and may hold several functions.
"""

from __future__ import annotations

import re

from ramet.text.scanner import Scanner, Steps
from ramet.text.tools.base import ToolParser
from ramet.text.tools.typed import declared_type, quoted

OPENING, CLOSING = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"

_NAME = re.compile(r"[^\s<>=\"'/]+")


class Qwen3Coder(ToolParser):
    def parse(self, text: Scanner) -> Steps[None]:
        while found := (yield from text.until([OPENING, FUNCTION], self.content)):
            text.mark(len(found))
            if found == OPENING:
                yield from text.space()
                if not (yield from text.literal(FUNCTION)):
                    self.content(text.since_mark())
                    continue
            if not (yield from self._function(text)):
                self.content(text.since_mark())
                continue
            yield from text.space()
            yield from text.literal(CLOSING)
        self.end_of_text()

    def _function(self, text: Scanner) -> Steps[bool]:
        """From behind `<function=` to behind `</function>`. False when no name stands there."""
        parts: list[str] = []
        found = yield from text.until([">", "\n", "<"], parts.append)
        name = "".join(parts).strip()
        if found != ">" or not _NAME.fullmatch(name):
            return False
        self.start(name)
        count = 0
        while True:
            found = yield from text.until([PARAMETER, FUNCTION_END, CLOSING], lambda rest: None)
            if found != PARAMETER:
                break
            key = yield from self._key(text)
            if key is None:
                continue
            self.arguments(f"{', ' if count else '{'}{quoted(key)}: ")
            count += 1
            kind = declared_type(self.schema(name).get(key))
            if not (yield from self.tagged_value(text, PARAMETER_END, kind)):
                self.end(complete=False)
                return True
        if found is None:
            self.end(complete=False)
            return True
        if count:
            self.arguments("}")
        self.end()
        return True

    def _key(self, text: Scanner) -> Steps[str | None]:
        """The parameter's name. A tag that is not well formed is dropped together with its value: None."""
        parts: list[str] = []
        found = yield from text.until([">", PARAMETER_END, FUNCTION_END], parts.append)
        key = "".join(parts)
        if found == ">" and _NAME.fullmatch(key):
            return key
        if found == ">":
            yield from text.until([PARAMETER_END, FUNCTION_END], lambda rest: None)
        return None
