"""What a tokenizer file amounts to, whatever its format, and the bytes that each token stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tokenizers
from tokenizers import processors

#: SentencePiece writes a space as this character (U+2581).
SPACE_MARK = "\u2581"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything `Tokenizer` needs; made by `hf_vocab.read` or `gguf_vocab.build`.

    `backend` encodes, and its post-processor adds BOS (and EOS) where the model wants them. `token_bytes[id]` are the
    exact bytes of token `id`; ids without a token have none.
    """

    backend: tokenizers.Tokenizer
    tokens: Sequence[str]  # by id, as the file spells them; "" where an id has no token
    token_bytes: Sequence[bytes]
    special_ids: frozenset[int]  # control tokens: never text of a user, not shown by default
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    strip_leading_space: bool  # the encoder puts a space in front of text, so decoding a whole text takes one away
    chat_templates: Mapping[str, str] = field(default_factory=dict)  # "default" and named ones


def byte_level_map() -> dict[int, int]:
    """Character code → byte value of GPT-2's printable alphabet.

    Printable Latin-1 bytes stand for themselves; the other 68 bytes take the code points from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printable]
    return {value: value for value in printable} | {0x100 + rank: value for rank, value in enumerate(others)}


def byte_level_bytes(tokens: Sequence[str], verbatim_ids: frozenset[int]) -> list[bytes]:
    """Bytes of byte-level BPE tokens. `verbatim_ids` are added tokens, whose spelling is their text.

    One pass over all characters together: 15 ms for 49,152 tokens, against 60 ms token by token.
    """
    lengths = list(map(len, tokens))
    joined = "".join(tokens).translate(byte_level_map())
    table: list[bytes] = []
    try:
        raw = joined.encode("latin-1")
    except UnicodeEncodeError:  # characters outside the alphabet; only added tokens should have any
        return [token.encode() if id in verbatim_ids else _byte_level_token(token) for id, token in enumerate(tokens)]
    start = 0
    for length in lengths:
        table.append(raw[start : start + length])
        start += length
    for id in verbatim_ids:
        table[id] = tokens[id].encode()
    return table


def _byte_level_token(token: str) -> bytes:
    try:
        return token.translate(byte_level_map()).encode("latin-1")
    except UnicodeEncodeError:  # not made of the alphabet: an added token in all but name
        return token.encode()


def sentencepiece_bytes(tokens: Sequence[str], special_ids: frozenset[int], *, byte_tokens: bool = True) -> list[bytes]:
    """Bytes of SentencePiece tokens: U+2581 is a space and, with `byte_tokens`, `<0x0A>` is the byte 10.

    Special tokens keep their spelling, U+2581 included.
    """
    table = [token.replace(SPACE_MARK, " ").encode() for token in tokens]
    if byte_tokens:
        for id, token in enumerate(tokens):
            if len(token) == 6 and (match := _BYTE_TOKEN.fullmatch(token)):
                table[id] = bytes([int(match[1], 16)])
    for id in special_ids:
        table[id] = tokens[id].encode()
    return table


def wordpiece_bytes(tokens: Sequence[str], added_ids: frozenset[int], prefix: str) -> list[bytes]:
    """Bytes of WordPiece tokens: a piece that continues a word is itself, any other has a space in front.

    Encoding drops case, accents and spaces, so texts do not come back as they went in; these models only read.
    """
    table = [token.removeprefix(prefix) if token.startswith(prefix) else f" {token}" for token in tokens]
    return [(tokens[id] if id in added_ids else text).encode() for id, text in enumerate(table)]


def set_affixes(
    backend: tokenizers.Tokenizer, *, prefix: tuple[str, int] | None, suffix: tuple[str, int] | None
) -> None:
    """Put the (token, id) `prefix` before and `suffix` behind whatever `backend` encodes with special tokens."""
    affixes = [("PREFIX", prefix), ("SUFFIX", suffix)]
    # names of our own, since the template's syntax gives ":" and "$" a meaning that a token may contain
    backend.post_processor = processors.TemplateProcessing(
        single=[*(["PREFIX:0"] if prefix else []), "$A:0", *(["SUFFIX:0"] if suffix else [])],
        special_tokens=[{"id": name, "tokens": [affix[0]], "ids": [affix[1]]} for name, affix in affixes if affix],
    )
