"""An executor without arithmetic: slots store fingerprints, and answers are read back through the page table.

For tests of scheduler, cache and server. A token's slot holds `fingerprint(previous slot's fingerprint, token id)`; a
row that samples reads the slots of its whole prefix, as attention would. So a wrong page, a stale or unwritten slot, a
prefix of another request or a lost token changes the tokens that come out.

The token drawn is the row's *preferred* one: the script's, or a hash of what was read. Bias, suppressed ids and masks
are honoured (as if the preferred token had logit 20 and every other a pseudo-random one in [0, 1)), and logprobs are
those of the same logits. Temperature, top-k, top-p, min-p and penalties choose nothing here, except that with a
temperature the hash includes the seed and the token's index. A scripted token of -1 stands for logits with a NaN.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ramet.errors import ExecutorError
from ramet.executor.base import (
    F32,
    I32,
    LAST_SAMPLED,
    NO_TOKEN,
    Layout,
    RowParams,
    StepBatch,
    StepOutput,
    embedding_output,
)

U64 = NDArray[np.uint64]

PREFERRED_LOGIT = 20.0
_MASK64 = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15  # odd, hence invertible modulo 2**64


@dataclass(slots=True)
class Script:
    """What to answer, and what to do wrong. Steps are counted from 0 over the executor's life."""

    tokens: Sequence[int] | None = None  # the n-th token of every request, again from the start after the last
    by_prompt: Mapping[tuple[int, ...], Sequence[int]] = field(default_factory=dict)  # the same, for these prompts
    choose: Callable[[tuple[int, ...], int], int | None] | None = None  # (prompt, index) -> token; None: the hash
    fail_steps: set[int] = field(default_factory=set)  # steps that end with an ExecutorError
    step_s: float = 0.0  # time a step takes
    token_s: float = 0.0  # and more for each query token
    read_prefix: bool = True  # False: do not read the prefix back (to measure the scheduler alone)


def mix(value: int) -> int:
    """A 64-bit finaliser (splitmix64): every input bit reaches every output bit."""
    value &= _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


class ScriptedExecutor:
    """See the module. `script` may be changed between steps."""

    name = "scripted"
    whole_rows = False

    def __init__(
        self, layout: Layout, vocab_size: int, script: Script | None = None, *, embedding_size: int = 0
    ) -> None:
        self.layout = layout
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.script = script or Script()
        self.steps = 0
        self.closed = False
        pages_per_row = -(-layout.max_row_tokens // layout.page_size)
        self._table = np.full((layout.max_rows, pages_per_row), -1, np.int32)
        self._prints = np.zeros((layout.num_pages, layout.page_size), np.uint64)
        self._tokens = np.full((layout.num_pages, layout.page_size), -1, np.int32)
        self._params = [RowParams()] * layout.max_rows
        self._last = np.full(layout.max_rows, -1, np.int64)
        self._drawn = np.zeros(layout.max_rows, np.int64)  # output tokens so far, those before a retraction included
        inverse = pow(_BASE, -1, 1 << 64)
        self._powers = _powers(_BASE, layout.max_step_tokens + 1)
        self._inverse_powers = _powers(inverse, layout.max_step_tokens + 1)

    def submit(self, batch: StepBatch) -> Future[StepOutput]:
        """Runs the step before it returns."""
        if self.closed:
            raise RuntimeError("the executor is closed")
        index, self.steps = self.steps, self.steps + 1
        future: Future[StepOutput] = Future()
        self._check(batch)
        pause = self.script.step_s + self.script.token_s * len(batch.token_ids)
        if pause:
            time.sleep(pause)
        self._update_rows(batch)
        if index in self.script.fail_steps:
            future.set_exception(ExecutorError(f"scripted failure of step {index}"))
        else:
            future.set_result(self._run(batch))
        return future

    def close(self) -> None:
        self.closed = True

    # -- the step ---------------------------------------------------------------------------------------------------

    def _update_rows(self, batch: StepBatch) -> None:
        for row, params in batch.new_rows:
            self._params[row] = params
            self._drawn[row] = len(params.generated)
            self._last[row] = params.generated[-1] if params.generated else -1
            self._table[row] = -1
        updates = batch.page_updates
        self._table[updates[:, 0], updates[:, 1]] = updates[:, 2]
        for source, target, count in batch.page_copies.tolist():
            self._prints[target, :count] = self._prints[source, :count]
            self._tokens[target, :count] = self._tokens[source, :count]

    def _run(self, batch: StepBatch) -> StepOutput:
        if len(batch.token_ids) == len(batch.rows):
            self._write_single_tokens(batch)
        else:
            at = 0
            for row, count, start in zip(
                batch.rows.tolist(), batch.query_lens.tolist(), batch.starts.tolist(), strict=True
            ):
                self._write(row, start, batch.token_ids[at : at + count])
                at += count
        return self._answer(batch)

    def _write_single_tokens(self, batch: StepBatch) -> None:
        """`_write` for one token a row, all rows at once."""
        tokens = np.where(batch.token_ids == LAST_SAMPLED, self._last[batch.rows], batch.token_ids).astype(np.int64)
        before = self._previous_prints(batch.rows, batch.starts)
        pages, slots = self._locate(batch.rows, batch.starts)
        self._prints[pages, slots] = before * np.uint64(_BASE) + (tokens + 1).astype(np.uint64)
        self._tokens[pages, slots] = tokens

    def _write(self, row: int, start: int, token_ids: I32) -> None:
        """Fingerprints h[k] = h[k-1] * BASE + token[k] + 1, as a cumulative sum: h[k] / BASE**k is a running total."""
        tokens = np.where(token_ids == LAST_SAMPLED, self._last[row], token_ids).astype(np.int64)
        count = len(tokens)
        before = self._previous_prints(np.array([row]), np.array([start]))[0]
        total = (
            np.cumsum((tokens + 1).astype(np.uint64) * self._inverse_powers[1 : count + 1], dtype=np.uint64) + before
        )
        pages, slots = self._locate(np.full(count, row), np.arange(start, start + count))
        self._prints[pages, slots] = total * self._powers[1 : count + 1]
        self._tokens[pages, slots] = tokens

    def _previous_prints(self, rows: NDArray[np.integer], starts: NDArray[np.integer]) -> U64:
        pages, slots = self._locate(rows, np.maximum(starts - 1, 0))
        before: U64 = np.where(starts == 0, np.uint64(0), self._prints[pages, slots])
        return before

    def _locate(self, rows: NDArray[np.integer], positions: NDArray[np.integer]) -> tuple[I32, NDArray[np.integer]]:
        pages = self._table[rows, positions // self.layout.page_size]
        if pages.size and pages.min() < 0:
            raise ValueError("a token's position has no page")
        return pages, positions % self.layout.page_size

    def _read(self, row: int, length: int) -> tuple[int, I32]:
        """A digest of the fingerprints at positions below `length`, and their tokens."""
        pages = self._table[row, : -(-length // self.layout.page_size)]
        if self.script.read_prefix:
            prints = self._prints[pages].reshape(-1)[:length]
            digest = int(np.bitwise_xor.reduce(prints * np.uint64(0xD6E8FEB86659FD93)) ^ prints[-1])
        else:
            digest = length
        return digest, self._tokens[pages].reshape(-1)[:length]

    # -- the answer -------------------------------------------------------------------------------------------------

    def _answer(self, batch: StepBatch) -> StepOutput:
        entries = np.flatnonzero(batch.samples).tolist()
        if self.embedding_size:
            return embedding_output(self._vectors(batch, entries))
        masks = {entry: i for i, entry in enumerate(batch.mask_entries.tolist())}
        top = max((self._params[row].top_logprobs for row in batch.rows[batch.samples].tolist()), default=0)
        ids = np.full(len(entries), NO_TOKEN, np.int32)
        logprobs = np.full(len(entries), np.nan, np.float32)
        top_ids = np.full((len(entries), max(top, 0)), -1, np.int32)
        top_logprobs = np.full(top_ids.shape, -np.inf, np.float32)
        id_logprobs: list[F32 | None] = [None] * len(entries)
        ends = (batch.starts + batch.query_lens).tolist()
        rows = batch.rows.tolist()
        for out, entry in enumerate(entries):
            row, params = rows[entry], self._params[rows[entry]]
            preferred, digest = self._preferred(row, ends[entry])
            index = int(self._drawn[row])
            self._drawn[row] = index + 1
            if preferred == NO_TOKEN:
                continue
            mask = batch.masks[masks[entry]] if entry in masks else None
            suppressed = params.suppress_ids if index < params.suppress_until else ()
            if mask is None and not params.bias_ids and preferred not in suppressed and params.top_logprobs < 0:
                ids[out] = self._last[row] = preferred
                continue
            logits = self._logits(preferred, digest)
            logits[list(params.bias_ids)] += np.asarray(params.bias_values, np.float32)
            logits[list(suppressed)] = -np.inf
            if mask is not None:
                logits[~np.unpackbits(mask.view(np.uint8), bitorder="little")[: self.vocab_size].astype(bool)] = -np.inf
            if not np.isfinite(logits).any():
                continue
            ids[out] = self._last[row] = int(logits.argmax())
            if params.top_logprobs >= 0:
                log = _log_softmax(logits)
                logprobs[out] = log[ids[out]]
                _fill_top(log, params.top_logprobs, top_ids[out], top_logprobs[out])
                if params.logprob_ids:
                    id_logprobs[out] = log[list(params.logprob_ids)]
        scores = self._score(batch)
        return StepOutput(
            token_ids=ids,
            logprobs=logprobs,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
            id_logprobs=tuple(id_logprobs),
            score_logprobs=scores[0],
            score_top_ids=scores[1],
            score_top_logprobs=scores[2],
            score_id_logprobs=scores[3],
        )

    def _vectors(self, batch: StepBatch, entries: list[int]) -> F32:
        """Vectors drawn by the hash of what was read, of length 1 unless they are single numbers; of NaN where the
        script's next token is -1."""
        vectors = np.zeros((len(entries), self.embedding_size), np.float32)
        for out, entry in enumerate(entries):
            row, end = int(batch.rows[entry]), int(batch.starts[entry] + batch.query_lens[entry])
            preferred, digest = self._preferred(row, end)
            vector = np.random.default_rng(digest).standard_normal(self.embedding_size)
            vector /= np.linalg.norm(vector) if self.embedding_size > 1 else 1.0
            vectors[out] = np.nan if preferred == NO_TOKEN else vector
        return vectors

    def _score(self, batch: StepBatch) -> tuple[F32, I32, F32, tuple[F32 | None, ...]]:
        count = len(batch.score_tokens)
        logprobs = np.zeros(count, np.float32)
        top_ids = np.full((count, batch.score_top), -1, np.int32)
        top_logprobs = np.full((count, batch.score_top), -np.inf, np.float32)
        id_logprobs: list[F32 | None] = [None] * count
        if count:
            firsts = np.cumsum(batch.query_lens) - batch.query_lens
            entries = np.searchsorted(firsts, batch.score_tokens, side="right") - 1
            positions = batch.starts[entries] + batch.score_tokens - firsts[entries]
            for i, (row, position) in enumerate(zip(batch.rows[entries].tolist(), positions.tolist(), strict=True)):
                digest = mix(self._read(row, position + 1)[0])
                log = _log_softmax(self._logits(digest % self.vocab_size, digest))
                logprobs[i] = log[batch.score_targets[i]]
                _fill_top(log, batch.score_top, top_ids[i], top_logprobs[i])
                chosen = list(self._params[row].logprob_ids)
                id_logprobs[i] = log[chosen] if chosen else None
        return logprobs, top_ids, top_logprobs, tuple(id_logprobs)

    def _preferred(self, row: int, length: int) -> tuple[int, int]:
        """(the token this row likes best, the hash it came from) after `length` tokens."""
        params, script, index = self._params[row], self.script, int(self._drawn[row])
        digest, tokens = self._read(row, length)
        digest = mix(digest)
        if params.temperature > 0:
            digest = mix(digest ^ mix(params.seed + index))
        if script.by_prompt or script.choose is not None:
            prompt = tuple(tokens[: length - index].tolist())
            if prompt in script.by_prompt:
                listed = script.by_prompt[prompt]
                return listed[index % len(listed)], digest
            if script.choose is not None and (chosen := script.choose(prompt, index)) is not None:
                return chosen, digest
        if script.tokens:
            return script.tokens[index % len(script.tokens)], digest
        return digest % self.vocab_size, digest

    def _logits(self, preferred: int, digest: int) -> F32:
        noise = np.arange(self.vocab_size, dtype=np.uint64) * np.uint64(_BASE) + np.uint64(digest)
        noise = (noise ^ (noise >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        logits: F32 = (noise >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
        logits[preferred] = PREFERRED_LOGIT
        return logits

    def _check(self, batch: StepBatch) -> None:
        """What native code re-checks too: a malformed step is our bug, never a request's fault."""
        layout = self.layout
        wrong = None
        if len(batch.rows) == 0 or len(set(batch.rows.tolist())) != len(batch.rows):
            wrong = "rows must be given, once each"
        elif batch.query_lens.min() < 1 or int(batch.query_lens.sum()) != len(batch.token_ids):
            wrong = "query lengths must be positive and sum to the tokens"
        elif len(batch.token_ids) > layout.max_step_tokens:
            wrong = f"{len(batch.token_ids)} tokens exceed the step limit {layout.max_step_tokens}"
        elif batch.starts.min() < 0 or (batch.starts + batch.query_lens).max() > layout.max_row_tokens:
            wrong = f"positions must lie in 0 .. {layout.max_row_tokens}"
        elif batch.token_ids.min() < LAST_SAMPLED or batch.token_ids.max() >= self.vocab_size:
            wrong = "token ids out of the vocabulary"
        elif not (len(batch.rows) == len(batch.query_lens) == len(batch.starts) == len(batch.samples)):
            wrong = "columns differ in length"
        if wrong:
            raise ValueError(f"malformed step: {wrong}")


def _powers(base: int, count: int) -> U64:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _log_softmax(logits: F32) -> F32:
    shifted = logits - logits.max()
    log: F32 = shifted - np.log(np.exp(shifted).sum(dtype=np.float32))
    return log


def _fill_top(log: F32, count: int, ids: I32, logprobs: F32) -> None:
    """The `count` best (lowest id first among equals) into the head of a row of the top lists."""
    order = np.lexsort((np.arange(len(log)), -log))[:count]
    order = order[np.isfinite(log[order])]
    ids[: len(order)] = order
    logprobs[: len(order)] = log[order]
