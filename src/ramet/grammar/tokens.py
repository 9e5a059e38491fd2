"""The vocabulary as llguidance wants it: a trie of the tokens' bytes, special tokens apart. Built once a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from ramet.executor.base import U32

if TYPE_CHECKING:
    import llguidance


@dataclass(frozen=True, slots=True)
class Tokens:
    """What compiling and matching share. `specials`: text of each special token → its id."""

    tokenizer: llguidance.LLTokenizer
    vocab_size: int
    specials: dict[str, int]
    fill_words: int  # words that llguidance writes; one more than a row's where it has an end of text of its own
    last_word: np.uint32  # bits of the row's last word that are tokens
    without_ends: U32  # [ceil(V/32)] every token with bytes but the ends of text

    def row(self) -> U32:
        """An empty mask."""
        return np.zeros_like(self.without_ends)


def build_tokens(
    token_bytes: Sequence[bytes], special_ids: Iterable[int], eos_token_ids: Iterable[int], vocab_size: int
) -> Tokens:
    """From the bytes of each token (none, or beyond the list: an id without a token, which no grammar allows).

    80 ms for 49,152 tokens. An `eos_token_ids` that is empty leaves the model no way to end; then a text ends where the
    grammar allows nothing more.
    """
    import llguidance  # 60 ms, which only servers that meet a grammar pay

    # 0xFF marks special tokens to llguidance and occurs in no UTF-8, so no text needs a token that begins with it.
    table = [b"" if raw[:1] == b"\xff" else raw for raw in token_bytes]
    table += [b""] * (vocab_size - len(table))
    special = {id for id in special_ids if 0 <= id < vocab_size}
    ends = sorted({id for id in eos_token_ids if 0 <= id < vocab_size})
    specials = {table[id].decode(errors="replace"): id for id in sorted(special, reverse=True) if table[id]}
    mask = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    mask[:vocab_size] = [bool(raw) for raw in table]
    mask[ends] = False
    if not ends:
        table.append(b"<end of text>")  # llguidance needs one; its bit never leaves `Matcher`
    source = _Source(table, sorted(special | set(ends or [vocab_size])), (ends or [vocab_size])[0])
    return Tokens(
        tokenizer=llguidance.LLTokenizer(cast("llguidance.TokenizerWrapper", source), eos_token=ends or [vocab_size]),
        vocab_size=vocab_size,
        specials=specials,
        fill_words=-(-len(table) // 32),
        last_word=np.uint32((1 << ((vocab_size - 1) % 32 + 1)) - 1),
        without_ends=np.packbits(mask, bitorder="little").view("<u4").astype(np.uint32),
    )


class _Source:
    """What `LLTokenizer` reads of a tokenizer. It never encodes: masks are asked for without forced text."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_token_ids: list[int], eos_token_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = eos_token_id

    def __call__(self, text: str | bytes) -> list[int]:
        return []
