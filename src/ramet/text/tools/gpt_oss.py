"""gpt-oss: `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>`.

The recipient stands before or after the channel. A call goes out when its message has ended; commentary without a
recipient and the final channel are content.
"""

from __future__ import annotations

import re

from ramet.text.reasoning.harmony import ENDS, HEADERS, MESSAGE
from ramet.text.scanner import Scanner, Steps
from ramet.text.tools.base import ToolParser

_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]+)")


class GptOss(ToolParser):
    def parse(self, text: Scanner) -> Steps[None]:
        while (yield from text.until(HEADERS, self.content)):
            parts: list[str] = []
            body = yield from text.until([MESSAGE, *ENDS], parts.append)
            recipient = _RECIPIENT.search("".join(parts))
            if body != MESSAGE or recipient is None:
                if body == MESSAGE:
                    yield from text.until(ENDS, self.content)
                continue
            arguments: list[str] = []
            end = yield from text.until(ENDS, arguments.append)
            self.start(recipient[1].rpartition(".")[2])
            self.arguments("".join(arguments).strip())
            self.end(complete=end is not None)
        self.end_of_text()
