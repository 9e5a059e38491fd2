"""A step on its way: which requests it computes for, as a `StepBatch` for the executor, and what is to become of it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from ramet.cache.lease import KvCache
from ramet.executor.base import I32, LAST_SAMPLED, U32, StepBatch, StepOutput
from ramet.scheduler.state import Request


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `count` tokens of a request's prefill."""

    request: Request
    count: int
    is_first: bool  # since the request has its row

    @property
    def end(self) -> int:
        return self.request.computed + self.count

    @property
    def is_last(self) -> bool:
        return self.end == len(self.request.tokens)

    @property
    def scored(self) -> range:
        """Positions whose logits the request wants scored: those that predict a prompt token."""
        request = self.request
        if request.score_from is None:
            return range(0)
        return range(max(request.computed, request.score_from), min(self.end, len(request.prompt) - 1))


@dataclass(slots=True)
class Flight:
    """A submitted step. Columns of its entries, decodes first; entries of ended or retracted requests are stale."""

    requests: list[Request]
    generations: list[int]
    ends: list[int]  # tokens that the row holds after the step
    samples: list[bool]
    num_decodes: int
    prefill_tokens: int
    scored: list[range]  # of the chunks
    future: Future[StepOutput]
    submitted_s: float


def _token_types(chunks: Sequence[Chunk]) -> I32:
    """[T] where a request has any; empty elsewhere. Such steps have no decodes: nobody draws there."""
    if not any(chunk.request.spec.token_types for chunk in chunks):
        return np.zeros(0, np.int32)
    types = [
        chunk.request.spec.token_types[chunk.request.computed : chunk.end] or [0] * chunk.count for chunk in chunks
    ]
    return np.concatenate([np.array(column, np.int32) for column in types])


def build_batch(decodes: Sequence[Request], chunks: Sequence[Chunk], cache: KvCache) -> StepBatch:
    """Decodes first, each with the token it drew last, then the chunks. Takes the cache's page updates along."""
    singles = len(decodes)
    rows = [request.row for request in decodes]
    starts = [request.computed for request in decodes]
    lens, samples = [1] * singles, [True] * singles
    tokens = [np.full(singles, LAST_SAMPLED, np.int32)]
    score_tokens: list[int] = []
    score_targets: list[int] = []
    score_top, flat = 0, singles
    for chunk in chunks:
        request = chunk.request
        start = request.computed
        rows.append(request.row)
        starts.append(start)
        lens.append(chunk.count)
        samples.append(chunk.is_last and (request.remaining > 0 or request.spec.embed))
        tokens.append(request.tokens[start : chunk.end])
        if chunk.scored:
            score_tokens += [flat + position - start for position in chunk.scored]
            score_targets += request.prompt[chunk.scored.start + 1 : chunk.scored.stop + 1].tolist()
            score_top = max(score_top, request.spec.top_logprobs_num)
        flat += chunk.count
    mask_entries, masks = _masks([*decodes, *(chunk.request for chunk in chunks)], samples)
    updates, copies = cache.take_updates()
    return StepBatch(
        rows=np.array(rows, np.int32),
        query_lens=np.array(lens, np.int32),
        starts=np.array(starts, np.int32),
        token_ids=np.concatenate(tokens),
        token_types=_token_types(chunks),
        samples=np.array(samples, np.bool_),
        page_updates=updates,
        page_copies=copies,
        new_rows=tuple((chunk.request.row, chunk.request.row_params()) for chunk in chunks if chunk.is_first),
        score_tokens=np.array(score_tokens, np.int32),
        score_targets=np.array(score_targets, np.int32),
        score_top=score_top,
        mask_entries=mask_entries,
        masks=masks,
    )


def _masks(requests: Sequence[Request], samples: Sequence[bool]) -> tuple[I32, U32]:
    """Entries that draw under a grammar, and what each allows."""
    masks = {
        entry: request.mask
        for entry, (request, draws) in enumerate(zip(requests, samples, strict=True))
        if draws and request.mask is not None
    }
    entries = np.fromiter(masks, np.int32, len(masks))
    return entries, np.stack(list(masks.values())) if masks else np.zeros((0, 0), np.uint32)
