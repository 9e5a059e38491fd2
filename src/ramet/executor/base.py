"""What an executor is asked and what it answers: one kind of step, ragged query tokens over paged state.

Host arrays only. What persists between steps lives in the executor *by row* (page table, last sampled token, sampling
parameters, penalty counts, random counter), so a batch is a list of row indices and nothing is merged or filtered.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
U32 = NDArray[np.uint32]
F32 = NDArray[np.float32]

#: As a token id in `StepBatch.token_ids`: "what this row sampled last", so a step may be submitted before the previous
#: one is read.
LAST_SAMPLED = -1

#: As a sampled token id in `StepOutput.token_ids`: the row's logits held a NaN or nothing could be drawn.
NO_TOKEN = -1


def _i32(*shape: int) -> I32:
    return np.zeros(shape, np.int32)


@dataclass(frozen=True, slots=True)
class RowParams:
    """Sampling state of a row, set when a request takes the row and kept by the executor until the next set."""

    temperature: float = 0.0  # 0: greedy (argmax, lowest id wins ties)
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # uint64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias_ids: Sequence[int] = ()
    bias_values: Sequence[float] = ()
    suppress_ids: Sequence[int] = ()  # may not be drawn while fewer than `suppress_until` tokens were generated
    suppress_until: int = 0
    generated: Sequence[int] = ()  # output tokens so far (a retracted request comes back with some)
    top_logprobs: int = -1  # -1: no logprobs wanted; 0: the drawn token's; n: and the n best
    logprob_ids: Sequence[int] = ()  # and of these ids


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Inputs of one step. R entries (ragged rows), T query tokens in all, flat in entry order.

    Order inside a step: `new_rows`, `page_updates`, `page_copies`, then the tokens' keys and values are written and
    attended to, then logits for `score_*` and sampling rows, then sampling.
    """

    rows: I32  # [R] row index of each entry; a row appears once
    query_lens: I32  # [R] >= 1; sums to T
    starts: I32  # [R] position of the entry's first query token
    token_ids: I32  # [T] LAST_SAMPLED where the executor is to fill in
    samples: NDArray[np.bool_]  # [R] whether the row draws a token (or gives its vector) after its last query token
    token_types: I32 = field(default_factory=lambda: _i32(0))  # [T] for plans that embed them; empty: all 0
    page_updates: I32 = field(default_factory=lambda: _i32(0, 3))  # [U, 3] (row, index in the row's page list, page)
    page_copies: I32 = field(default_factory=lambda: _i32(0, 3))  # [C, 3] (from page, to page, leading token slots)
    new_rows: tuple[tuple[int, RowParams], ...] = ()
    score_tokens: I32 = field(default_factory=lambda: _i32(0))  # [L] flat token indices, ascending, to score
    score_targets: I32 = field(default_factory=lambda: _i32(0))  # [L] the id whose logprob is wanted there
    score_top: int = 0  # and that many best ids per scored token
    mask_entries: I32 = field(default_factory=lambda: _i32(0))  # [M] entries (indices in rows) under a grammar
    masks: U32 = field(default_factory=lambda: np.zeros((0, 0), np.uint32))  # [M, ceil(V/32)] bit set: allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """Outputs of one step. S sampled entries in batch order, L scored tokens in the order asked.

    Logprobs are log-softmax of the logits after penalties, bias, mask and temperature (greedy: temperature 1), before
    top-k/top-p/min-p; scored (prompt) tokens use the plain logits. Unused places of top lists hold id -1.

    Of a plan whose output is `embedding`, entries that sample give their vectors instead, and `token_ids` are NO_TOKEN.
    """

    token_ids: I32  # [S] NO_TOKEN where nothing could be drawn
    logprobs: F32  # [S] NaN where not asked
    top_ids: I32  # [S, K] K = largest top_logprobs in the batch (0 if none)
    top_logprobs: F32  # [S, K]
    id_logprobs: tuple[F32 | None, ...] = ()  # [S] of each row's logprob_ids, None where it has none
    score_logprobs: F32 = field(default_factory=lambda: np.zeros(0, np.float32))  # [L]
    score_top_ids: I32 = field(default_factory=lambda: _i32(0, 0))  # [L, score_top]
    score_top_logprobs: F32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))  # [L, score_top]
    score_id_logprobs: tuple[F32 | None, ...] = ()  # [L] of the logprob_ids of each token's row, None where it has none
    embeddings: F32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))  # [S, embedding_size]


def embedding_output(vectors: F32) -> StepOutput:
    """The output of a step that drew nothing and gave these vectors, [S, embedding_size]."""
    count = len(vectors)
    return StepOutput(
        token_ids=np.full(count, NO_TOKEN, np.int32),
        logprobs=np.full(count, np.nan, np.float32),
        top_ids=_i32(count, 0),
        top_logprobs=np.zeros((count, 0), np.float32),
        id_logprobs=(None,) * count,
        embeddings=vectors,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes an executor allocates for, fixed for its life."""

    num_pages: int  # pages 0 .. num_pages - 1, all usable
    page_size: int  # token slots in a page
    max_rows: int  # rows 0 .. max_rows - 1
    max_row_tokens: int  # longest row in tokens (the context length)
    max_step_tokens: int  # largest T
    kv_dtype: str = "f16"  # f32, f16 or bf16


class Executor(Protocol):
    """Runs steps in the order submitted. Not thread-safe: one owner."""

    name: str
    layout: Layout
    vocab_size: int  # token ids are below this
    embedding_size: int  # floats of the vector that a row gives; 0: rows draw tokens
    whole_rows: bool  # every row must come whole, from position 0, in one step: some token depends on later ones

    def submit(self, batch: StepBatch) -> Future[StepOutput]:
        """Queue a step. The future fails with `ExecutorError` if the step could not be computed; later ones run."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...
