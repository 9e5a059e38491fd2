"""Vectors instead of text: what a model gives for a prompt, what may be asked of it, and the prompt's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ramet.errors import RequestError, RequestTooLong
from ramet.executor.base import F32

if TYPE_CHECKING:
    from ramet.text.limits import Limits
    from ramet.text.tokenizer import Tokenizer

#: Most prompts of one call (OpenAI takes 2,048): each holds a few kilobytes until all have finished.
MAX_VECTORS = 16_384

#: What a model that generates says to whoever asks for a vector.
NO_VECTORS = (
    "This model does not appear to be an embedding model by default: it generates text. Start the server with "
    "--is-embedding to get embeddings of a decoder, or serve a model made for embeddings."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorModel:
    """A model whose requests end in a vector: an embedding, or with `labels` the logits of its classes."""

    size: int  # floats
    labels: tuple[str, ...] = ()
    normalized: bool = False  # vectors have length 1
    matryoshka: bool = False  # they may be cut to their first numbers
    dimensions: tuple[int, ...] = ()  # and then only to so many; empty: to any
    num_token_types: int = 1

    def refuse_text(self) -> RequestError:
        """The error for who wants text."""
        what = "scores texts" if self.labels else "gives embeddings"
        routes = "/v1/rerank, /v1/score or /classify" if self.labels else "/v1/embeddings or /encode"
        return RequestError(f"This model {what} and generates no text; use {routes}.", field="model")

    def check_dimensions(self, asked: int | None) -> int | None:
        """How many numbers an embedding is cut to; None: it is not cut.

        Raises:
            RequestError: the model cannot do that.
        """
        if asked is None or asked == self.size:
            return None
        if not 1 <= asked <= self.size:
            raise RequestError(f"dimensions must be from 1 to {self.size}, not {asked}.", field="dimensions")
        if not self.matryoshka:
            raise RequestError(
                f"dimensions: this model's embeddings have {self.size} numbers and were not trained to be cut "
                "(Matryoshka). If they were, start the server with --matryoshka.",
                field="dimensions",
            )
        if self.dimensions and asked not in self.dimensions:
            allowed = ", ".join(map(str, self.dimensions))
            raise RequestError(f"dimensions must be one of {allowed}, not {asked}.", field="dimensions")
        return asked

    def cut(self, vector: bytes, dimensions: int | None) -> F32:
        """The first `dimensions` numbers (None: all), of length 1 again where the whole has it."""
        whole: F32 = np.frombuffer(vector, "<f4")
        if dimensions is None:
            return whole
        head = whole[:dimensions].astype(np.float64)
        if self.normalized:
            head /= max(float(np.linalg.norm(head)), 1e-12)
        return head.astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRequest:
    """One prompt, in no dialect."""

    prompt: str | list[int] | tuple[str, str]  # a pair of texts is for models that score one by the other
    rid: str | None = None
    field: str = "input"  # the dialect's name of the prompt, for errors
    namespace: str = ""
    priority: int = 0

    @property
    def size(self) -> int:
        """Characters to tokenize."""
        if isinstance(self.prompt, list):
            return 0
        return len(self.prompt) if isinstance(self.prompt, str) else sum(map(len, self.prompt))


def tokens_of(
    request: VectorRequest, tokenizer: Tokenizer, limits: Limits, model: VectorModel
) -> tuple[list[int], list[int], str | None]:
    """Token ids, token types (empty: all 0) and a warning if the prompt was cut.

    Raises:
        RequestError: an empty or too long prompt, or ids outside the vocabulary.
    """
    prompt, types = request.prompt, list[int]()
    if isinstance(prompt, list):
        limits.check_ids(prompt, request.field)
        ids = prompt
        if not ids:
            raise RequestError(f"{request.field}: the prompt has no tokens.", field=request.field)
    elif isinstance(prompt, str):
        if not prompt.strip():
            raise RequestError(f"{request.field}: the text is empty.", field=request.field)
        ids = tokenizer.encode(prompt)
    else:
        ids, types = tokenizer.encode_pair(*prompt)
        types = types if model.num_token_types > 1 else []
    if not ids:
        raise RequestError(f"{request.field}: the text has no tokens.", field=request.field)
    most = limits.context_length
    if len(ids) <= most:
        return ids, types, None
    if not limits.allow_auto_truncate:
        raise RequestTooLong(
            f"{request.field}: the input has {len(ids)} tokens, more than the model's context length of {most}.",
            field=request.field,
        )
    # From the end, as sentence-transformers does; a closing special token stays the last.
    closing = ids[-1:] if ids[-1] in tokenizer.special_ids else []
    cut = ids[: most - len(closing)] + closing
    return cut, types[: len(cut)], f"the last {len(ids) - most} of {len(ids)} prompt tokens were cut"
