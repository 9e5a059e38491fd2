"""minimax-m2 and deepseekv32: `<invoke name="f">` with `<parameter name="a">v</parameter>` in it, inside an outer tag.

The formats differ in the outer tag and in what stands between `<` and a tag's name. DeepSeek says of each parameter
whether it is a string, and may write one JSON object for all of them; MiniMax leaves the types to the function's
schema.
"""

from __future__ import annotations

import re

from ramet.text.scanner import Scanner, Steps
from ramet.text.tools.base import ToolParser
from ramet.text.tools.typed import declared_type, quoted

_ATTRIBUTE = re.compile(r"""([\w-]+)\s*=\s*["']([^"']*)["']""")


class Invoke(ToolParser):
    outer: str
    mark: str  # between "<" (or "</") and a tag's name

    def parse(self, text: Scanner) -> Steps[None]:
        opening, closing = f"<{self.mark}{self.outer}>", f"</{self.mark}{self.outer}>"
        invoke = f"<{self.mark}invoke"
        while (yield from text.until([opening], self.content)):
            text.mark(len(opening))
            some = False
            yield from text.space()
            while (yield from text.literal(invoke)):
                attributes = yield from self._attributes(text)
                name = attributes.get("name")
                if not name:
                    break
                some = True
                self.start(name)
                self.end(complete="/" in attributes or (yield from self._body(text, name)))
                yield from text.space()
            if some:
                yield from text.until([closing], lambda rest: None)
            else:
                self.content(text.since_mark())
        self.end_of_text()

    def _attributes(self, text: Scanner) -> Steps[dict[str, str]]:
        """From behind a tag's name to behind its `>`. A tag that closes itself has the attribute "/"."""
        parts: list[str] = []
        if (yield from text.until([">"], parts.append)) is None:
            return {}
        written = "".join(parts)
        found = dict(_ATTRIBUTE.findall(written))
        return {**found, "/": ""} if written.rstrip().endswith("/") else found

    def _body(self, text: Scanner, name: str) -> Steps[bool]:
        """From behind `<invoke …>` to behind `</invoke>`; False when the text ends before."""
        parameter, end = f"<{self.mark}parameter", f"</{self.mark}invoke>"
        yield from text.space()
        if (yield from text.peek()) == "{":
            whole = yield from text.json_value(self.arguments)
            return whole and (yield from text.until([end], lambda rest: None)) is not None
        count = 0
        while (found := (yield from text.until([parameter, end], lambda rest: None))) == parameter:
            attributes = yield from self._attributes(text)
            key = attributes.get("name")
            if not key:
                continue  # a tag that is not well formed is dropped
            kind = {"true": "raw", "false": "json"}.get(attributes.get("string", ""))
            kind = kind or declared_type(self.schema(name).get(key))
            self.arguments(f"{', ' if count else '{'}{quoted(key)}: ")
            count += 1
            if not (yield from self.tagged_value(text, f"</{self.mark}parameter>", kind)):
                return False
        if count and found:
            self.arguments("}")
        return found is not None


class MinimaxM2(Invoke):
    outer, mark = "minimax:tool_call", ""


class DeepSeekV32(Invoke):
    outer, mark = "function_calls", "｜DSML｜"


class DeepSeekV4(Invoke):
    outer, mark = "tool_calls", "｜DSML｜"
