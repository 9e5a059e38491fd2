"""Token ids of one generation to text, piece by piece, on bytes.

The rules, the same for streaming and for one piece (which is "push everything, then finish"):

- Text is what the bytes of the tokens spell as UTF-8. An unfinished character is held back until its bytes arrive.
- Ill-formed bytes become U+FFFD, one for each maximal ill-formed part. So does a character that is still unfinished at
  the end: cut off by the length limit or an end of text, E2 82 gives one U+FFFD, never nothing and never two.
- Held bytes are not shown. They are counted over `token_bytes` of every generated token, hidden special tokens too, as
  the engine counts them.
- A prompt may end inside a character (only one given as token ids can). Its text ended before that character, so when
  the output goes on with it, the output shows the whole character; when the output does not, nothing of it is shown.
- The first token's leading space is kept: it is a space between prompt and output, not an artefact of encoding.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from ramet.errors import BrokenInvariant

_MAX_UTF8_BYTES = 4


class TokenTable(Protocol):
    """What the detokenizer needs of a `Tokenizer`."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...

    @property
    def special_ids(self) -> frozenset[int]: ...


class Detokenizer:
    """The text of one generation. `prompt_tail_ids`: the last ids of the prompt (four are enough)."""

    def __init__(
        self, tokenizer: TokenTable, *, skip_special_tokens: bool = True, prompt_tail_ids: Sequence[int] = ()
    ) -> None:
        self._table = tokenizer.token_bytes
        self._hidden: frozenset[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending: deque[tuple[bytes, bool]] = deque()  # bytes not yet released, and whether they are visible
        self._pending_bytes = 0
        self._open_prompt = unfinished_tail(b"".join(map(self._bytes, prompt_tail_ids[-_MAX_UTF8_BYTES:])))

    def push(self, token_ids: Iterable[int], *, held_bytes: int = 0, cut_bytes: int = 0, final: bool = False) -> str:
        """Take new tokens; return the text that may now be shown.

        `held_bytes`: that many trailing bytes of everything pushed so far stay back. They may grow or shrink from call
        to call, but never reach back over what an earlier call has released (`BrokenInvariant`). `final`: these are the
        last tokens; the same as holding `cut_bytes` and then `finish(cut_bytes)`.
        """
        for id in token_ids:
            data = self._bytes(id)
            if data:
                self._pending.append((data, id not in self._hidden))
                self._pending_bytes += len(data)
        return self.finish(cut_bytes) if final else self._decode(self._release(held_bytes))

    def finish(self, cut_bytes: int = 0) -> str:
        """The rest of the text, without the last `cut_bytes` bytes; an unfinished character becomes one U+FFFD.

        The bytes to cut must still be held: push the last tokens with `held_bytes` of at least `cut_bytes`.
        """
        text = self._decode(self._release(cut_bytes))
        self._pending.clear()
        self._pending_bytes = 0
        return text + self._decoder.decode(b"", final=True)

    def _bytes(self, id: int) -> bytes:
        """A model's vocabulary may be padded past the tokenizer's; such ids have no text."""
        return self._table[id] if 0 <= id < len(self._table) else b""

    def _release(self, keep: int) -> bytes:
        """Take the visible bytes from the front of what is pending, down to the last `keep` bytes."""
        if keep > self._pending_bytes:
            raise BrokenInvariant(f"{keep} bytes to hold, of which only {self._pending_bytes} are not released yet")
        parts: list[bytes] = []
        while self._pending_bytes > keep:
            data, visible = self._pending.popleft()
            spare = self._pending_bytes - keep
            if len(data) > spare:
                self._pending.appendleft((data[spare:], visible))
                data = data[:spare]
            self._pending_bytes -= len(data)
            if visible:
                parts.append(data)
        return b"".join(parts)

    def _decode(self, data: bytes) -> str:
        if self._open_prompt and data:
            # the prompt's bytes count only if the output's first byte goes on with their character
            if unfinished_tail(self._open_prompt + data[:1]) or _completes(self._open_prompt + data[:1]):
                data = self._open_prompt + data
            self._open_prompt = b""
        return self._decoder.decode(data)


def unfinished_tail(data: bytes) -> bytes:
    """The last bytes of `data` if they are the proper beginning of a UTF-8 character, else b""."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-_MAX_UTF8_BYTES:])
    return decoder.getstate()[0]


def _completes(data: bytes) -> bool:
    """Whether `data` is exactly one well-formed character."""
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False
