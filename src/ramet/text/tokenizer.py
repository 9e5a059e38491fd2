"""`Tokenizer`: text to token ids and back, the same for every checkpoint format."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ramet.errors import CheckpointError, RequestError
from ramet.text import gguf_vocab, hf_vocab
from ramet.text.marked_specials import MarkedSpecials
from ramet.text.surrogates import refuse_unpaired
from ramet.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from ramet.weights.checkpoint import Checkpoint


def load_tokenizer(checkpoint: Checkpoint, tokenizer_path: str | None = None) -> Tokenizer:
    """The tokenizer of `checkpoint`, or of `tokenizer_path`: a directory, a tokenizer.json or a `.gguf` file.

    Ends of text come from the tokenizer and from the model's own configuration, whichever file the tokenizer lies in.
    Raises `CheckpointError` when there is none, or of a kind that ramet cannot read exactly.
    """
    configs = (checkpoint.generation_config, checkpoint.config) if checkpoint.kind == "hf" else ()
    if tokenizer_path is None:
        if checkpoint.kind == "gguf":
            return Tokenizer(gguf_vocab.build(checkpoint.config))
        return Tokenizer(hf_vocab.read(checkpoint, configs=configs))
    path = Path(tokenizer_path)
    if path.suffix == ".gguf" and path.is_file():
        from ramet.weights.sources import open_checkpoint  # costs an import only where a second file is named

        return Tokenizer(gguf_vocab.build(open_checkpoint(str(path)).config))
    if path.is_file():
        path = path.parent
    if not path.is_dir():
        raise CheckpointError(
            f"--tokenizer-path {tokenizer_path}: no such file or directory; give a directory with a tokenizer.json, "
            "the tokenizer.json itself, or a .gguf file",
            field="tokenizer_path",
        )
    return Tokenizer(hf_vocab.read(hf_vocab.Directory(path), configs=configs))


class Tokenizer:
    """Encodes text to ids and decodes ids to text, exactly.

    Decoding joins the bytes of the tokens and reads them as UTF-8; ill-formed bytes become U+FFFD, one for each maximal
    ill-formed part (the Unicode standard's practice). Nothing is "cleaned up": no space is dropped before punctuation
    or put between special tokens.

    Leading space: SentencePiece models with a space prefix encode "Hello" as "▁Hello". `decode` of a whole text takes
    that one space away again (`strip_leading_space`). Text that continues a prompt keeps it, since there the space is
    a real one:
    `decode(..., continuation=True)` and `Detokenizer` never strip.

    Safe to use from several threads.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._backend = vocabulary.backend
        self._marked_specials: MarkedSpecials | None = None
        self._lock = threading.Lock()
        self._add_bos = self.bos_token_id is not None and self._backend.encode("").ids[:1] == [self.bos_token_id]
        self._special_texts = tuple(vocabulary.tokens[id] for id in sorted(vocabulary.special_ids))

    @property
    def vocab_size(self) -> int:
        """One more than the highest id. A model may have more rows than that; they have no text."""
        return len(self._vocabulary.tokens)

    @property
    def bos_token_id(self) -> int | None:
        return self._vocabulary.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a text: the tokenizer's own first, then those of the model's configuration."""
        return self._vocabulary.eos_token_ids

    @property
    def bos_token(self) -> str | None:
        """What chat templates print for `bos_token`."""
        return self.id_to_token(self.bos_token_id) if self.bos_token_id is not None else None

    @property
    def eos_token(self) -> str | None:
        """What chat templates print for `eos_token`: the first of `eos_token_ids`."""
        return self.id_to_token(self.eos_token_ids[0]) if self.eos_token_ids else None

    @property
    def special_ids(self) -> frozenset[int]:
        """Control tokens: hidden by `skip_special_tokens`, and never made from text with `parse_special=False`."""
        return self._vocabulary.special_ids

    @property
    def special_texts(self) -> tuple[str, ...]:
        """How the special tokens are spelt, by rising id."""
        return self._special_texts

    @property
    def add_bos(self) -> bool:
        """Whether `encode` puts BOS in front when `add_special_tokens` is true."""
        return self._add_bos

    @property
    def strip_leading_space(self) -> bool:
        return self._vocabulary.strip_leading_space

    @property
    def token_bytes(self) -> Sequence[bytes]:
        """The exact bytes of every id, special tokens spelt out; index it with ids below `vocab_size`."""
        return self._vocabulary.token_bytes

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Template sources by name; "default" is the one for plain chats."""
        return self._vocabulary.chat_templates

    def id_to_token(self, id: int) -> str:
        """The token as its file spells it; "" for an id without a token."""
        return self._vocabulary.tokens[id] if 0 <= id < self.vocab_size else ""

    def token_to_id(self, token: str) -> int | None:
        id: int | None = self._backend.token_to_id(token)
        return id

    def encode(self, text: str, add_special_tokens: bool = True, *, parse_special: bool = True) -> list[int]:
        """Token ids of `text`.

        `add_special_tokens`: BOS (and EOS) where the model wants them. `parse_special`: text that spells a special
        token becomes that token; otherwise it is ordinary text, as it must be for what a user wrote. Raises
        `RequestError` when `text` has an unpaired surrogate, which no UTF-8 text can have.
        """
        return self.encode_batch([text], add_special_tokens, parse_special=parse_special)[0]

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Token ids and token types of two texts joined as the model wants pairs: its special tokens around and between
        them, type 1 in the second where it tells them apart. Raises `RequestError` as `encode` does."""
        refuse_unpaired(first)
        refuse_unpaired(second)
        joined = self._backend.encode(first, second)
        return joined.ids, joined.type_ids

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True, *, parse_special: bool = True
    ) -> list[list[int]]:
        """`encode` of every text, on all cores where there are many."""
        for text in texts:
            refuse_unpaired(text)
        if not parse_special:
            return self._marked().encode_batch(texts, add_special_tokens)
        if len(texts) == 1:
            return [self._backend.encode(texts[0], add_special_tokens=add_special_tokens).ids]
        return [
            each.ids for each in self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        ]

    def decode(
        self,
        token_ids: Iterable[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        *,
        continuation: bool = False,
    ) -> str:
        """The text of `token_ids`. `spaces_between_special_tokens` changes nothing: no tokenizer that ramet reads
        puts any.

        Raises `RequestError` for an id outside the vocabulary.
        """
        table, hidden = self.token_bytes, self.special_ids if skip_special_tokens else ()
        parts: list[bytes] = []
        for id in token_ids:
            if not 0 <= id < len(table):
                raise RequestError(f"token id {id} is outside the vocabulary (0 to {len(table) - 1})")
            if id not in hidden:
                parts.append(table[id])
        text = b"".join(parts).decode("utf-8", "replace")
        return text[1:] if self.strip_leading_space and not continuation and text.startswith(" ") else text

    def encode_chat(self, pieces: Iterable[tuple[str, bool]]) -> list[int]:
        """Token ids of a rendered chat: (text, trusted) pieces in order.

        A special token's text becomes the token only where it lies inside one trusted piece. Where no untrusted piece
        spells one, the ids are those of the joined text encoded as usual. BOS is added where the model wants it and the
        text does not begin with it already; nothing is added at the end.
        """
        pieces = list(pieces)
        if all(trusted for _, trusted in pieces):
            ids = self.encode("".join(text for text, _ in pieces), False)
        else:
            ids = self._marked().encode_pieces(pieces)
        bos = self.bos_token_id
        return [bos, *ids] if bos is not None and self.add_bos and ids[:1] != [bos] else ids

    def _marked(self) -> MarkedSpecials:
        """Made when first needed: most servers never meet a special token's text in what clients write."""
        with self._lock:
            if self._marked_specials is None:
                self._marked_specials = MarkedSpecials(self._backend)
            return self._marked_specials
