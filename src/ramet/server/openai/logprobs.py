"""Logprobs in the two shapes of OpenAI: parallel lists for completions, objects for chat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ramet.types import TokenLogprob

#: What OpenAI shows for a token that cannot be drawn: its clients insist on a number.
FLOOR = -9999.0


def finite(logprob: float | None) -> float | None:
    """A logprob that JSON can carry."""
    if logprob is None:
        return None
    return logprob if math.isfinite(logprob) else FLOOR


def token_text(data: bytes) -> str:
    """A token as text; half a character byte by byte, as latin-1."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


class CompletionLogprobs:
    """Builds the `logprobs` object of one completion choice, whole or chunk by chunk.

    `text_offset` counts characters of the choice's text; a token that goes on with a character has that character's.
    """

    def __init__(self, table: Sequence[bytes], top: int) -> None:
        self._table = table
        self._top = top
        self._characters = 0

    def render(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The object for these tokens, which follow those rendered before."""
        offsets: list[int] = []
        tokens: list[str] = []
        tops: list[dict[str, float | None] | None] = []
        for entry in entries:
            data = self._bytes(entry.token_id)
            continues = bool(data) and data[0] & 0xC0 == 0x80
            offsets.append(max(0, self._characters - continues))
            self._characters += sum(byte & 0xC0 != 0x80 for byte in data)
            tokens.append(token_text(data))
            tops.append(self._alternatives(entry) if self._top else None)
        return {
            "text_offset": offsets,
            "token_logprobs": [finite(entry.logprob) for entry in entries],
            "tokens": tokens,
            "top_logprobs": tops,
        }

    def _bytes(self, token_id: int) -> bytes:
        return self._table[token_id] if 0 <= token_id < len(self._table) else b""

    def _alternatives(self, entry: TokenLogprob) -> dict[str, float | None] | None:
        if entry.top is None:
            return None
        found: dict[str, float | None] = {}
        for token_id, logprob in entry.top:  # best first; of two tokens with the same text the better one stays
            found.setdefault(token_text(self._bytes(token_id)), finite(logprob))
        return found


def chat_logprobs(entries: Sequence[TokenLogprob], table: Sequence[bytes]) -> dict[str, Any]:
    """The `logprobs` object of a chat choice."""

    def shown(token_id: int, logprob: float | None) -> dict[str, Any]:
        data = table[token_id] if 0 <= token_id < len(table) else b""
        return {"token": token_text(data), "bytes": list(data), "logprob": finite(logprob)}

    return {
        "content": [
            {
                **shown(entry.token_id, entry.logprob),
                "top_logprobs": [shown(token_id, logprob) for token_id, logprob in entry.top or ()],
            }
            for entry in entries
        ]
    }
