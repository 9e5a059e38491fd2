"""The reference executor: a plan run operation by operation in numpy, over real pages, in the caller's thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from ramet.errors import ExecutorError
from ramet.executor.base import I32, LAST_SAMPLED, NO_TOKEN, Layout, StepBatch, StepOutput, embedding_output
from ramet.executor.reference_ops import MEANINGS, Array, Context
from ramet.executor.sampling import RowSampler, score, step_output
from ramet.plan.memory import last_uses
from ramet.plan.plan import KvStream, Plan
from ramet.plan.verify import num_inputs
from ramet.weights.formats import dequantize
from ramet.weights.tensor import Weight

NO_PAGE = -1


class ReferenceExecutor:
    """Runs `plan` with `weights` (by plan name). Weights are unpacked to float32 here, so it needs four bytes each.

    Raises:
        ExecutorError: a weight is missing or has another shape, or the layout's KV type does not exist.
    """

    name = "reference"

    def __init__(self, plan: Plan, weights: Mapping[str, Weight], layout: Layout) -> None:
        self.layout = layout
        self.vocab_size = plan.vocab_size
        self.embedding_size = plan.embedding_size
        self.whole_rows = plan.whole_rows
        if plan.max_positions is not None and layout.max_row_tokens > plan.max_positions:
            raise ExecutorError(f"max_row_tokens must be at most {plan.max_positions}, what the positions' table holds")
        (self._output,) = plan.outputs.values()
        self._num_token_types = min(
            (plan.weights[op.weights[0]].shape[0] for op in plan.ops if op.kind == "embed" and op.inputs == (2,)),
            default=np.iinfo(np.int32).max,
        )
        self._plan = plan
        self._last_uses = last_uses(plan)
        self._weights: list[Array] = []
        for spec in plan.weights:
            weight = weights.get(spec.name)
            if weight is None or weight.shape != spec.shape:
                found = "missing" if weight is None else f"{list(weight.shape)}"
                raise ExecutorError(f"weight {spec.name!r} must be {list(spec.shape)}, but is {found}")
            self._weights.append(dequantize(weight))
        self._caches = [_PagedCache(stream, layout) for stream in plan.streams]
        pages_per_row = -(-layout.max_row_tokens // layout.page_size)
        self._pages = np.full((layout.max_rows, pages_per_row), NO_PAGE, np.int32)
        self._samplers: dict[int, RowSampler] = {}
        self._closed = False

    def submit(self, batch: StepBatch) -> Future[StepOutput]:
        """Runs the step before it returns; see `Executor.submit`."""
        future: Future[StepOutput] = Future()
        try:
            future.set_result(self._step(batch))
        except ExecutorError as error:
            future.set_exception(error)
        return future

    def logits(self, batch: StepBatch) -> Array:
        """Runs the step and gives the logits of its `score_tokens`, [L, vocab_size]; nothing is drawn. For tests.

        Raises:
            ExecutorError: the step was refused.
        """
        self._check(batch)
        return np.stack([row for _, row in sorted(self._logits(batch, batch.score_tokens).items())])

    def close(self) -> None:
        """Later steps fail."""
        self._closed = True
        self._weights.clear()
        self._caches.clear()

    def _step(self, batch: StepBatch) -> StepOutput:
        self._check(batch)
        last_tokens = np.cumsum(batch.query_lens) - 1
        wanted = np.union1d(batch.score_tokens, last_tokens[batch.samples]).astype(np.int32)
        logits = self._logits(batch, wanted)
        if self.embedding_size:
            vectors = np.reshape([logits[token] for token in wanted.tolist()], (len(wanted), self.embedding_size))
            return embedding_output(vectors.astype(np.float32))
        masks = dict(zip(batch.mask_entries.tolist(), batch.masks, strict=True))
        rows = np.repeat(batch.rows, batch.query_lens).tolist()
        scored = [
            score(logits[token], target, batch.score_top, self._chosen_ids(rows[token]))
            for token, target in zip(batch.score_tokens.tolist(), batch.score_targets.tolist(), strict=True)
        ]
        sampled, top = [], 0
        for entry in np.flatnonzero(batch.samples).tolist():
            sampler = self._samplers[int(batch.rows[entry])]
            sampled.append(sampler.sample(logits[int(last_tokens[entry])], masks.get(entry)))
            top = max(top, sampler.params.top_logprobs)
        return step_output(sampled, scored, top=top, score_top=batch.score_top)

    def _chosen_ids(self, row: int) -> Sequence[int]:
        """A row that never samples may have no parameters."""
        sampler = self._samplers.get(row)
        return sampler.params.logprob_ids if sampler is not None else ()

    def _logits(self, batch: StepBatch, wanted: I32) -> dict[int, Array]:
        """Everything of a step but sampling: logits [vocab_size] of the wanted tokens, by flat index."""
        self._update_rows(batch)
        tokens, positions, rows = self._flatten(batch)
        for cache in self._caches:
            cache.locate(self._pages, rows, positions)
        lasts = np.repeat(batch.starts + batch.query_lens - 1, batch.query_lens).astype(np.int32)
        types = batch.token_types if len(batch.token_types) else np.zeros_like(tokens)
        context = Context(positions, lasts, wanted, self._plan.tables, self._caches)
        return dict(zip(wanted.tolist(), self._run(context, (tokens, positions, types)), strict=True))

    def _run(self, context: Context, inputs: tuple[I32, I32, I32]) -> Array:
        """Logits (or vectors) of the wanted tokens, [L, vocab_size]."""
        values: dict[int, NDArray[np.generic]] = {
            i: column[:, None] for i, column in enumerate(inputs[: num_inputs(self._plan.values)])
        }
        with np.errstate(over="ignore", invalid="ignore"):  # numbers out of range end as NaN logits, seen by sampling
            for i, op in enumerate(self._plan.ops):
                operands = [values[v] for v in op.inputs]
                weights = [self._weights[w] for w in op.weights]
                results = MEANINGS[op.kind](context, operands, weights, op.attrs)  # type: ignore[arg-type]  # ids are i32
                values.update(zip(op.outputs, results, strict=True))
                for value in self._last_uses[i]:
                    del values[value]
        logits: Array = values[self._output].astype(np.float32, copy=False)
        return logits

    def _update_rows(self, batch: StepBatch) -> None:
        for row, params in batch.new_rows:
            self._pages[row] = NO_PAGE
            self._samplers[row] = RowSampler(params)
        for row, index, page in batch.page_updates.tolist():
            self._pages[row, index] = page
        for source, target, slots in batch.page_copies.tolist():
            for cache in self._caches:
                cache.copy(source, target, slots)

    def _flatten(self, batch: StepBatch) -> tuple[I32, I32, I32]:
        """Token id, position and row of each query token, [T] each; LAST_SAMPLED filled in."""
        rows = np.repeat(batch.rows, batch.query_lens)
        first = np.repeat(np.cumsum(batch.query_lens) - batch.query_lens, batch.query_lens)
        positions = np.arange(len(rows), dtype=np.int32) - first + np.repeat(batch.starts, batch.query_lens)
        tokens = batch.token_ids.copy()
        for i in np.flatnonzero(tokens == LAST_SAMPLED).tolist():
            sampler = self._samplers.get(int(rows[i]))
            if sampler is None:
                raise ExecutorError(f"row {rows[i]} has sampled nothing yet")
            # A row that could draw nothing is ended by whoever reads that; until then any token will do.
            tokens[i] = 0 if sampler.last_token == NO_TOKEN else sampler.last_token
        return tokens, positions.astype(np.int32), rows

    def _check(self, batch: StepBatch) -> None:
        """Refuses what would read or write out of range, before anything changes."""
        if self._closed:
            raise ExecutorError("the executor is closed")
        layout, tokens = self.layout, len(batch.token_ids)
        copies, updates = batch.page_copies, batch.page_updates
        new = np.asarray([row for row, _ in batch.new_rows], np.int32)
        columns = {len(column) for column in (batch.rows, batch.query_lens, batch.starts, batch.samples)}
        _must(len(columns) == 1, "columns have one number per row")
        _must(len(set(batch.rows.tolist())) == len(batch.rows), "a row appears once")
        _must(bool(np.all(batch.query_lens >= 1)), "query_lens are at least 1")
        _must(int(batch.query_lens.sum()) == tokens, "query_lens sum to the number of tokens")
        _must(1 <= tokens <= layout.max_step_tokens, f"a step has 1 to {layout.max_step_tokens} tokens")
        _must(len(batch.score_tokens) == len(batch.score_targets), "each scored token has a target")
        _must(len(batch.mask_entries) == len(batch.masks), "each mask has an entry")
        _within("rows", batch.rows, layout.max_rows)
        _within("new_rows", new, layout.max_rows)
        _within("token_ids", batch.token_ids, self.vocab_size, least=LAST_SAMPLED)
        _within("starts", batch.starts, layout.max_row_tokens)
        _within("ends of rows", batch.starts + batch.query_lens, layout.max_row_tokens + 1)
        _within("page_updates rows", updates[:, 0], layout.max_rows)
        _within("page_updates indices", updates[:, 1], self._pages.shape[1])
        _within("page_updates pages", updates[:, 2], layout.num_pages)
        _within("page_copies", copies[:, :2], layout.num_pages)
        _within("page_copies slots", copies[:, 2], layout.page_size + 1)
        _must(len(batch.token_types) in (0, tokens), "token_types are one per token, or none")
        _within("token_types", batch.token_types, self._num_token_types)
        if self.whole_rows:
            _within("starts (this plan takes whole rows)", batch.starts, 1)
        if self.embedding_size:
            _must(not len(batch.score_tokens) and not len(batch.mask_entries), "an embedding is not scored or masked")
        _within("score_tokens", batch.score_tokens, tokens)
        _within("score_targets", batch.score_targets, self.vocab_size)
        _within("mask_entries", batch.mask_entries, len(batch.rows))
        unknown = set(batch.rows[batch.samples].tolist()) - set(self._samplers) - set(new.tolist())
        _must(not unknown, f"rows that sample have parameters (not {sorted(unknown)})")


def _must(truth: bool, rule: str) -> None:
    if not truth:
        raise ExecutorError(f"step refused: it must be that {rule}")


def _within(what: str, numbers: I32, limit: int, least: int = 0) -> None:
    bad = numbers[(numbers < least) | (numbers >= limit)]
    if bad.size:
        raise ExecutorError(f"step refused: {what} must be between {least} and {limit - 1}, not {int(bad[0])}")


class _PagedCache:
    """Keys and values of one stream: [num_pages, page_size, kv_heads, dim], kept in the layout's KV type."""

    def __init__(self, spec: KvStream, layout: Layout) -> None:
        if layout.kv_dtype not in ("f32", "f16", "bf16"):
            raise ExecutorError(f"KV type {layout.kv_dtype!r} is not one of f32, f16, bf16")
        self.spec = spec
        self._kv_dtype = layout.kv_dtype
        self._page_size = layout.page_size
        dtype = np.float16 if layout.kv_dtype == "f16" else np.float32  # bf16: float32 that was rounded
        self._keys = np.zeros((layout.num_pages, layout.page_size, spec.kv_heads, spec.head_dim), dtype)
        self._values = np.zeros((layout.num_pages, layout.page_size, spec.kv_heads, spec.v_dim), dtype)
        self._tables = self._rows = self._positions = np.zeros(0, np.int32)

    def locate(self, page_tables: I32, rows: I32, positions: I32) -> None:
        """Where the tokens of the coming step lie."""
        self._tables, self._rows, self._positions = page_tables, rows, positions

    def copy(self, source: int, target: int, slots: int) -> None:
        self._keys[target, :slots] = self._keys[source, :slots]
        self._values[target, :slots] = self._values[source, :slots]

    def write(self, k: Array, v: Array) -> None:
        for token, (row, position) in enumerate(zip(self._rows.tolist(), self._positions.tolist(), strict=True)):
            page, slot = self._slots(row, np.asarray([position]))
            self._keys[page, slot] = self._rounded(k[token]).reshape(self.spec.kv_heads, -1)
            self._values[page, slot] = self._rounded(v[token]).reshape(self.spec.kv_heads, -1)

    def read(self, token: int, first: int, last: int) -> tuple[Array, Array]:
        pages, slots = self._slots(int(self._rows[token]), np.arange(first, last + 1))
        return self._keys[pages, slots].astype(np.float32), self._values[pages, slots].astype(np.float32)

    def _slots(self, row: int, positions: NDArray[np.integer]) -> tuple[I32, NDArray[np.integer]]:
        pages = self._tables[row, positions // self._page_size]
        if (pages == NO_PAGE).any():
            missing = int(positions[pages == NO_PAGE][0])
            raise ExecutorError(f"row {row} has no page for position {missing}")
        return pages, positions % self._page_size

    def _rounded(self, x: Array) -> NDArray[np.floating]:
        """In the KV type; halves round to even, numbers beyond its range become infinite."""
        if self._kv_dtype == "f16":
            return x.astype(np.float16)
        if self._kv_dtype == "f32":
            return x
        bits = x.view(np.uint32).astype(np.uint64)
        even = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
        rounded: Array = np.where(np.isnan(x), np.float32(np.nan), even.astype(np.uint32).view(np.float32))
        return rounded
