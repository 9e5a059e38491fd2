"""A second view of a tokenizer, in which only *marked* special tokens are special.

The text "<|im_end|>" is ordinary to it; the token is written as a mark followed by that text. The mark is drawn at
random from Unicode's noncharacters when the view is made, so no text from outside can spell one. Encoding stays one
call over the whole text: pieces are not encoded apart, which would change how the text at their borders is cut into
tokens.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import AddedToken

from ramet.text.surrogates import refuse_unpaired


class MarkedSpecials:
    """Shares the model object of `backend`, so it costs no second copy of the vocabulary."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._mark = "".join(chr(0xFDD0 + secrets.randbelow(32)) for _ in range(12))  # 60 random bits
        self._post = backend
        self._view = tokenizers.Tokenizer(backend.model)
        for part in ("normalizer", "pre_tokenizer"):
            value = getattr(backend, part)
            if value is not None:
                setattr(self._view, part, value)
        added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self._ids: dict[int, int] = {}  # the view's ids of added tokens, where they differ, → the tokenizer's
        texts = []
        for id, token in sorted(added.items()):
            spelling = self._mark + token.content if token.special else token.content
            if token.special:
                texts.append(token.content)
            self._view.add_tokens([_renamed(token, spelling)])
            view_id = self._view.token_to_id(spelling)
            if view_id is not None and view_id != id:
                self._ids[view_id] = id
        self._special = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None

    def encode_pieces(self, pieces: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of (text, trusted) pieces joined; only trusted ones have special tokens. No BOS or EOS is added."""
        text = "".join(self._marked(text) if trusted else text for text, trusted in pieces)
        refuse_unpaired(text)
        return self._own(self._view.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Ids of texts in which nothing is special, with BOS and EOS as the tokenizer adds them around any text."""
        encodings = self._view.encode_batch_fast(list(texts), add_special_tokens=False)
        bodies = [self._own(encoding.ids) for encoding in encodings]
        if not add_special_tokens:
            return bodies
        before, after = self._affixes()
        return [[*before, *body, *after] for body in bodies]

    def _marked(self, text: str) -> str:
        return text if self._special is None else self._special.sub(lambda match: self._mark + match[0], text)

    def _own(self, ids: list[int]) -> list[int]:
        return [self._ids.get(id, id) for id in ids] if self._ids else ids

    def _affixes(self) -> tuple[list[int], list[int]]:
        """What the post-processor puts around a text, found by encoding one letter with and without it."""
        inner = self._post.encode("a", add_special_tokens=False).ids
        outer = self._post.encode("a").ids
        start = next(at for at in range(len(outer)) if outer[at : at + len(inner)] == inner)
        return outer[:start], outer[start + len(inner) :]


def _renamed(token: AddedToken, content: str) -> AddedToken:
    return AddedToken(
        content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )
