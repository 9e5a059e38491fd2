"""The native executor samples as the numpy definition does, on logits that are known exactly.

The plan's logits are the row of a table that the input token names, so an executor's arithmetic has no part in them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.executor.base import F32, I32, U32, Executor, Layout, RowParams, StepBatch, StepOutput
from ramet.executor.native import NativeExecutor
from ramet.executor.reference import ReferenceExecutor
from ramet.plan.builder import PlanBuilder
from ramet.plan.plan import Plan
from ramet.weights.tensor import Weight

TABLE_ROWS = 8
STEPS = 3
MAX_ROWS = 8


def lookup_plan(vocab_size: int) -> Plan:
    b = PlanBuilder()
    b.output("logits", b.gather_rows(b.embed(b.tokens, "table", rows=TABLE_ROWS, width=vocab_size)))
    return b.build()


def lookup_executor(make: Callable[..., Executor], table: F32, **options: Any) -> Executor:
    layout = Layout(
        num_pages=MAX_ROWS, page_size=16, max_rows=MAX_ROWS, max_row_tokens=16, max_step_tokens=64, kv_dtype="f32"
    )
    weight = Weight("table", "f32", table.shape, np.ascontiguousarray(table).view(np.uint8).ravel())
    return make(lookup_plan(table.shape[1]), {"table": weight}, layout, **options)


def one_step(
    step: int, rows: list[int], params: list[RowParams], tokens: list[int], masks: dict[int, U32], score_top: int
) -> StepBatch:
    """Row `rows[i]` reads table row `tokens[i]` and draws; the first token is scored too."""
    pages = np.asarray([[row, 0, row] for row in rows], np.int32)
    return StepBatch(
        rows=np.asarray(rows, np.int32),
        query_lens=np.ones(len(rows), np.int32),
        starts=np.full(len(rows), step, np.int32),
        token_ids=np.asarray(tokens, np.int32),
        samples=np.ones(len(rows), np.bool_),
        new_rows=tuple(zip(rows, params, strict=True)) if step == 0 else (),
        page_updates=pages if step == 0 else np.zeros((0, 3), np.int32),
        score_tokens=np.asarray([0], np.int32),
        score_targets=np.asarray([tokens[0] % 2], np.int32),
        score_top=score_top,
        mask_entries=np.asarray(sorted(masks), np.int32),
        masks=np.stack([masks[entry] for entry in sorted(masks)]) if masks else np.zeros((0, 0), np.uint32),
    )


def assert_same(left: StepOutput, right: StepOutput, *, tolerance: float) -> None:
    def close(a: F32, b: F32) -> None:
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

    def equal(a: I32, b: I32) -> None:
        assert a.tolist() == b.tolist()

    equal(left.token_ids, right.token_ids)
    close(left.logprobs, right.logprobs)
    equal(left.top_ids, right.top_ids)
    close(left.top_logprobs, right.top_logprobs)
    close(left.score_logprobs, right.score_logprobs)
    equal(left.score_top_ids, right.score_top_ids)
    close(left.score_top_logprobs, right.score_top_logprobs)
    for ours, theirs in ((left.id_logprobs, right.id_logprobs), (left.score_id_logprobs, right.score_id_logprobs)):
        assert [x is None for x in ours] == [x is None for x in theirs]
        for a, b in zip(ours, theirs, strict=True):
            if a is not None and b is not None:
                close(a, b)


def random_table(rng: np.random.Generator, vocab_size: int, kind: str) -> F32:
    shape = (TABLE_ROWS, vocab_size)
    table: F32 = (rng.normal(size=shape) * rng.choice([0.1, 1, 4, 10])).astype(np.float32)
    if kind == "ties":
        table = np.round(table)
    elif kind == "equal":
        table = np.zeros(shape, np.float32)
    elif kind == "impossible":
        table[rng.random(shape) < 0.5] = -np.inf
    elif kind == "peaked":
        table[np.arange(TABLE_ROWS), rng.integers(0, vocab_size, TABLE_ROWS)] += 25
    elif kind == "extreme":
        table = rng.choice(np.asarray([-1e30, 1e30, 0.0, -0.0, 3e38, -3e38, 1e-40], np.float32), shape)
    elif kind == "broken":
        table[rng.integers(TABLE_ROWS), rng.integers(vocab_size)] = rng.choice([np.nan, np.inf])
    return table


def ids(vocab_size: int, most: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, vocab_size - 1), max_size=most)


@st.composite
def row_params(draw: st.DrawFn, vocab_size: int) -> RowParams:
    bias_ids = draw(ids(vocab_size, 3))
    return RowParams(
        temperature=draw(st.sampled_from([0.0, 1e-7, 1e-6, 0.05, 0.7, 1.0, 1.5, 4e6, 1e300])),
        top_k=draw(st.sampled_from([0, 1, 2, 5, 50, 300, vocab_size, vocab_size + 1])),
        top_p=draw(st.sampled_from([1.0, 0.999999, 0.95, 0.5, 0.1, 1e-9, 1e-13, 1e-300])),
        min_p=draw(st.sampled_from([0.0, 1e-12, 0.01, 0.1, 1.0])),
        seed=draw(st.integers(0, 2**64 - 1)),
        frequency_penalty=draw(st.sampled_from([0.0, 0.5, -2.0, 2.0])),
        presence_penalty=draw(st.sampled_from([0.0, 0.3, -2.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.01, 2.0])),
        bias_ids=bias_ids,
        bias_values=[draw(st.sampled_from([1.0, -5.0, 100.0, -100.0, 1e300, -1e300])) for _ in bias_ids],
        suppress_ids=draw(ids(vocab_size, 3)),
        suppress_until=draw(st.sampled_from([0, 2, 1000])),
        generated=draw(ids(vocab_size, 5)),
        top_logprobs=draw(st.sampled_from([-1, 0, 1, 5])),
        logprob_ids=draw(ids(vocab_size, 2)),
    )


@settings(max_examples=150, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_native_draws_what_the_definition_draws(data: st.DataObject, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocab_size = data.draw(st.sampled_from([8, 31, 33, 64, 65, 130, 1000, 5000]))
    kinds = ["normal", "ties", "equal", "impossible", "peaked", "extreme", "broken"]
    table = random_table(rng, vocab_size, data.draw(st.sampled_from(kinds)))
    params = data.draw(st.lists(row_params(vocab_size), min_size=1, max_size=4))
    rows = rng.permutation(MAX_ROWS)[: len(params)].tolist()
    score_top = data.draw(st.sampled_from([0, 3]))
    reference = lookup_executor(ReferenceExecutor, table)
    tier = data.draw(st.sampled_from(["scalar", ""]))  # the slowest and the fastest
    native = lookup_executor(NativeExecutor, table, threads=data.draw(st.sampled_from([1, 2])), tier=tier)
    words = -(-vocab_size // 32)
    for step in range(STEPS):
        tokens = rng.integers(0, TABLE_ROWS, len(rows)).tolist()
        masked = [entry for entry in range(len(rows)) if rng.random() < 0.3]
        masks = {entry: rng.integers(0, 2**32, words, dtype=np.uint32) for entry in masked}
        batch = one_step(step, rows, params, tokens, masks, score_top)
        expected, drawn = reference.submit(batch).result(), native.submit(batch).result()
        assert_same(drawn, expected, tolerance=1e-6)
    native.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_neighbours_do_not_matter(threads: int) -> None:
    rng = np.random.default_rng(3)
    table = random_table(rng, 2000, "normal")
    table[7, 3] = math.nan  # a broken neighbour
    params = RowParams(temperature=0.9, top_p=0.9, top_k=40, seed=9, frequency_penalty=0.4, top_logprobs=4)
    others = [dataclasses.replace(params, seed=seed, top_k=seed, frequency_penalty=0.0) for seed in range(5)]
    alone = lookup_executor(NativeExecutor, table, threads=1)
    among = lookup_executor(NativeExecutor, table, threads=threads)
    for step in range(STEPS):
        expected = alone.submit(one_step(step, [2], [params], [step], {}, 0)).result()
        tokens = [7, 5, step, 7, 1, 0]
        together = one_step(step, [5, 0, 2, 7, 1, 3], [others[0], others[1], params, *others[2:]], tokens, {}, 0)
        drawn = among.submit(together).result()
        assert drawn.token_ids[2] == expected.token_ids[0]
        assert drawn.logprobs[2] == expected.logprobs[0]
        assert drawn.top_logprobs[2].tolist() == expected.top_logprobs[0].tolist()
        assert drawn.token_ids[0] == drawn.token_ids[3] == -1
    alone.close()
    among.close()
