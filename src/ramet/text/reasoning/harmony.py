"""gpt-oss: messages in channels, `<|channel|>NAME<|message|>TEXT<|end|>`, one after the other.

`analysis` is reasoning; `final` and commentary are content. A message to a recipient (a tool call) is passed on as it
is written, for the tool parser of the same name.
"""

from __future__ import annotations

from ramet.text.events import Content, Reasoning
from ramet.text.scanner import Parser, Scanner, Steps

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
HEADERS = (START, CHANNEL)


class HarmonyReasoning(Parser):
    def parse(self, text: Scanner) -> Steps[None]:
        between = lambda rest: self.emit(Content(rest))  # noqa: E731 - text outside of messages: a plain answer
        while (begin := (yield from text.until(HEADERS, between))) is not None:
            text.mark(len(begin))
            header = ""

            def collect(part: str) -> None:
                nonlocal header
                header += part

            body = yield from text.until([MESSAGE, *ENDS], collect)
            raw = text.since_mark()
            if body != MESSAGE:  # cut off inside a header, or a message without a body: nothing to show
                continue
            if " to=" in header or header.startswith("to="):
                self.emit(Content(raw))
                end = yield from text.until(ENDS, lambda rest: self.emit(Content(rest)))
                self.emit(Content(end or ""))
            elif channel_of(header, begin) == "analysis":
                self.thinking = True
                yield from text.until(ENDS, lambda rest: self.emit(Reasoning(rest)))
                self.thinking = False
            else:
                yield from text.until(ENDS, lambda rest: self.emit(Content(rest)))


def channel_of(header: str, begin: str) -> str:
    """The channel that a header names: what follows its channel marker, up to a space or another marker."""
    _, found, after = (begin + header).partition(CHANNEL)
    return after.split("<|")[0].split()[0] if found and after.split("<|")[0].split() else ""
