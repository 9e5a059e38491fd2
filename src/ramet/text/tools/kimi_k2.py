"""kimi_k2: `<|tool_call_begin|>functions.NAME:IDX<|tool_call_argument_begin|>{…}<|tool_call_end|>` inside a section.

The whole `functions.NAME:IDX` is the call's id: the chat template prints it again in the next turn.
"""

from __future__ import annotations

from ramet.text.scanner import Scanner, Steps
from ramet.text.tools.base import ToolParser

SECTION_BEGIN, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, ARGUMENTS, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


class KimiK2(ToolParser):
    def parse(self, text: Scanner) -> Steps[None]:
        while (yield from text.until([SECTION_BEGIN], self.content)):
            text.mark(len(SECTION_BEGIN))
            some = False
            yield from text.space()
            while (yield from text.literal(CALL_BEGIN)):
                parts: list[str] = []
                found = yield from text.until([ARGUMENTS, CALL_END, SECTION_END], parts.append)
                id = "".join(parts).strip()
                name = function_name(id)
                if found != ARGUMENTS or not name:
                    break
                some = True
                self.start(name, id)
                yield from text.space()
                self.end(complete=(yield from text.json_value(self.arguments)))
                yield from text.until([CALL_END], lambda rest: None)
                yield from text.space()
            if not some:
                self.content(text.since_mark())
                continue
            yield from text.literal(SECTION_END)
        self.end_of_text()


def function_name(id: str) -> str:
    """`weather.now` from `functions.weather.now:3`: names may hold dots and dashes."""
    stem, colon, rank = id.rpartition(":")
    name = stem if colon and rank.isdigit() else id
    return name.removeprefix("functions.")
