"""glm45 and glm47: `<tool_call>NAME`, pairs `<arg_key>k</arg_key><arg_value>v</arg_value>`, then `</tool_call>`."""

from __future__ import annotations

from ramet.text.scanner import Scanner, Steps
from ramet.text.tools.base import ToolParser
from ramet.text.tools.typed import declared_type, quoted, to_json

OPENING, CLOSING = "<tool_call>", "</tool_call>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


class Glm45(ToolParser):
    def parse(self, text: Scanner) -> Steps[None]:
        while (yield from text.until([OPENING], self.content)):
            text.mark(len(OPENING))
            yield from text.space()
            parts: list[str] = []
            found = yield from text.until([KEY, CLOSING, OPENING], parts.append)
            name = "".join(parts).removesuffix("\\n").strip()  # some templates print the newline as two characters
            if found not in (KEY, CLOSING) or not name or any(character in name for character in " \n{<"):
                self.content(text.since_mark())
                continue
            self.start(name)
            self.end(complete=found == CLOSING or (yield from self._pairs(text, name)))
        self.end_of_text()

    def _pairs(self, text: Scanner, name: str) -> Steps[bool]:
        """From behind the first `<arg_key>` to behind `</tool_call>`; False when the text ends before."""
        count = 0
        found: str | None = KEY
        while found == KEY:
            parts: list[str] = []
            found = yield from text.until([KEY_END, CLOSING], parts.append)
            key = "".join(parts).strip()
            if found == KEY_END:
                found = yield from text.until([VALUE, KEY, CLOSING], lambda rest: None)
            if found != VALUE:
                continue  # a key without a value is dropped
            parts = []
            if (yield from text.until([VALUE_END], parts.append)) is None:
                return False
            kind = declared_type(self.schema(name).get(key, {"type": "any"}))
            self.arguments(f"{', ' if count else '{'}{quoted(key)}: {to_json(''.join(parts), kind)}")
            count += 1
            found = yield from text.until([KEY, CLOSING], lambda rest: None)
        if found is None:
            return False
        if count:
            self.arguments("}")
        return True
