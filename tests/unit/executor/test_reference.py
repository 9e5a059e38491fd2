"""The reference executor's keeping of rows, pages and steps. What it computes is tested in tests/ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ramet.errors import ExecutorError
from ramet.executor.base import LAST_SAMPLED, Executor, Layout, RowParams, StepBatch, StepOutput
from ramet.executor.reference import ReferenceExecutor
from ramet.plan.builder import PlanBuilder
from ramet.plan.plan import Plan
from ramet.weights.tensor import Weight

VOCAB = 16
LAYOUT = Layout(num_pages=12, page_size=4, max_rows=3, max_row_tokens=16, max_step_tokens=24, kv_dtype="f32")


def make_plan() -> Plan:
    b = PlanBuilder()
    x = b.embed(b.tokens, "embed", rows=VOCAB, width=8)
    q = b.rope(x, heads=2, table=b.table("rope", [1.0, 0.1]))
    x = b.add(x, b.attention(q, q, x, heads=2, kv_heads=2, scale=1.0))
    b.output("logits", b.linear(b.gather_rows(x), "head", out=VOCAB))
    return b.build()


PLAN = make_plan()


def make_weights() -> dict[str, Weight]:
    rng = np.random.default_rng(5)
    return {
        spec.name: Weight(
            spec.name,
            "f32",
            spec.shape,
            rng.standard_normal(spec.shape).astype(np.float32).view(np.uint8).reshape(-1),
        )
        for spec in PLAN.weights
    }


def make(layout: Layout = LAYOUT) -> ReferenceExecutor:
    return ReferenceExecutor(PLAN, make_weights(), layout)


def step(rows: list[int], tokens: list[list[int]], starts: list[int], **more: Any) -> StepBatch:
    columns: dict[str, Any] = {
        "rows": np.asarray(rows, np.int32),
        "query_lens": np.asarray([len(t) for t in tokens], np.int32),
        "starts": np.asarray(starts, np.int32),
        "token_ids": np.concatenate([np.asarray(t, np.int32) for t in tokens]),
        "samples": np.ones(len(rows), np.bool_),
    }
    return StepBatch(**{**columns, **more})


def pages(*entries: tuple[int, int, int]) -> np.ndarray[Any, Any]:
    return np.asarray(entries, np.int32)


def row_pages(row: int, first: int) -> list[tuple[int, int, int]]:
    return [(row, i, first + i) for i in range(4)]


def start(row: int, first_page: int = 0, params: RowParams | None = None) -> dict[str, Any]:
    return {
        "new_rows": ((row, RowParams() if params is None else params),),
        "page_updates": pages(*row_pages(row, first_page)),
    }


def logprobs(executor: Executor, batch: StepBatch) -> StepOutput:
    return executor.submit(batch).result()


SCORED: Mapping[str, Any] = {
    "score_tokens": np.asarray([0, 2], np.int32),
    "score_targets": np.asarray([3, 5], np.int32),
    "score_top": 2,
}


def test_scores_and_samples() -> None:
    out = logprobs(make(), step([1], [[1, 2, 3]], [0], **SCORED, **start(1)))
    assert out.token_ids.shape == (1,)
    assert out.score_logprobs.shape == (2,)
    assert out.score_top_ids.shape == (2, 2)
    assert out.token_ids[0] == out.score_top_ids[1, 0]  # greedy: the best of the last token
    assert np.isnan(out.logprobs[0])  # nobody asked


def test_chunks_rows_and_placeholders_give_the_same_tokens() -> None:
    whole = make()
    ids = [int(logprobs(whole, step([0], [[4, 9, 7]], [0], **start(0))).token_ids[0])]
    ids += [int(logprobs(whole, step([0], [[LAST_SAMPLED]], [at])).token_ids[0]) for at in (3, 4, 5)]

    chunked = make()
    out = logprobs(chunked, step([2], [[4, 9]], [0], samples=np.zeros(1, np.bool_), **start(2, 7)))
    assert out.token_ids.size == 0
    both = step([0, 2], [[1], [7]], [0, 2], **start(0, 3))
    found = [int(logprobs(chunked, both).token_ids[1])]
    for at in (3, 4, 5):
        batch = step([2, 0], [[LAST_SAMPLED], [LAST_SAMPLED]], [at, at - 2])
        found.append(int(logprobs(chunked, batch).token_ids[0]))
    assert found == ids


def test_a_copied_page_head_serves_another_row() -> None:
    executor = make()
    wanted = logprobs(executor, step([0], [[1, 2, 3, 4, 5, 6]], [0], **start(0)))
    updates = pages((1, 0, 0), (1, 1, 9))  # shares the first page, and the head of the second in its own
    batch = step([1], [[6]], [5], new_rows=((1, RowParams()),), page_updates=updates, page_copies=pages((1, 9, 1)))
    assert logprobs(executor, batch).token_ids[0] == wanted.token_ids[0]


def test_a_new_row_forgets_the_old_pages() -> None:
    executor = make()
    logprobs(executor, step([0], [[1]], [0], **start(0)))
    future = executor.submit(step([0], [[1]], [0], new_rows=((0, RowParams()),)))
    assert "row 0 has no page for position 0" in str(future.exception())


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "bf16"])
def test_kv_types_round_what_is_stored(kv_dtype: str) -> None:
    layout = Layout(num_pages=4, page_size=4, max_rows=1, max_row_tokens=16, max_step_tokens=24, kv_dtype=kv_dtype)
    out = logprobs(make(layout), step([0], [[1, 2, 3]], [0], **SCORED, **start(0)))
    exact = logprobs(make(), step([0], [[1, 2, 3]], [0], **SCORED, **start(0)))
    difference = np.abs(out.score_logprobs - exact.score_logprobs).max()
    if kv_dtype == "f32":
        assert difference == 0
    else:
        assert 0 < difference < 0.1


def test_masks_and_top_logprobs() -> None:
    params = RowParams(top_logprobs=3, logprob_ids=(2, 4))
    mask = np.asarray([[1 << 11]], np.uint32)
    batch = step([0], [[1, 2]], [0], mask_entries=np.asarray([0], np.int32), masks=mask, **start(0, 0, params))
    out = logprobs(make(), batch)
    assert out.token_ids.tolist() == [11]
    assert out.top_ids.tolist() == [[11, -1, -1]]
    assert out.logprobs.tolist() == [0.0]
    assert out.id_logprobs[0] is not None


def test_a_row_that_drew_nothing_goes_on_until_it_is_ended() -> None:
    executor = make()
    batch = step([0], [[1]], [0], mask_entries=np.asarray([0], np.int32), masks=np.zeros((1, 1), np.uint32), **start(0))
    assert logprobs(executor, batch).token_ids.tolist() == [-1]
    assert logprobs(executor, step([0], [[LAST_SAMPLED]], [1])).token_ids[0] >= 0


def test_a_retracted_row_goes_on_after_its_last_token() -> None:
    executor = make()
    params = RowParams(generated=(7, 3))
    a = logprobs(executor, step([0], [[1, LAST_SAMPLED]], [0], **start(0, 0, params)))
    b = logprobs(executor, step([1], [[1, 3]], [0], **start(1, 4)))
    assert a.token_ids[0] == b.token_ids[0]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "row": ({"rows": np.asarray([3], np.int32)}, "rows must be between 0 and 2, not 3"),
    "new row": ({"new_rows": ((9, RowParams()),)}, "new_rows must be between 0 and 2, not 9"),
    "token": ({"token_ids": np.asarray([1, 16], np.int32)}, "token_ids must be between -1 and 15, not 16"),
    "start": ({"starts": np.asarray([-1], np.int32)}, "starts must be between 0 and 15, not -1"),
    "past the end": ({"starts": np.asarray([15], np.int32)}, "ends of rows must be between 0 and 16, not 17"),
    "update row": ({"page_updates": pages((3, 0, 0))}, "page_updates rows must be between 0 and 2"),
    "update index": ({"page_updates": pages((0, 4, 0))}, "page_updates indices must be between 0 and 3"),
    "update page": ({"page_updates": pages((0, 0, 12))}, "page_updates pages must be between 0 and 11"),
    "copy page": ({"page_copies": pages((0, 12, 1))}, "page_copies must be between 0 and 11, not 12"),
    "copy slots": ({"page_copies": pages((0, 1, 5))}, "page_copies slots must be between 0 and 4, not 5"),
    "score token": (
        {"score_tokens": np.asarray([2], np.int32), "score_targets": np.asarray([0], np.int32)},
        "score_tokens must be between 0 and 1, not 2",
    ),
    "score target": (
        {"score_tokens": np.asarray([1], np.int32), "score_targets": np.asarray([16], np.int32)},
        "score_targets must be between 0 and 15",
    ),
    "targets": ({"score_tokens": np.asarray([1], np.int32)}, "each scored token has a target"),
    "mask entry": (
        {"mask_entries": np.asarray([1], np.int32), "masks": np.ones((1, 1), np.uint32)},
        "mask_entries must be between 0 and 0",
    ),
    "mask": ({"mask_entries": np.asarray([0], np.int32)}, "each mask has an entry"),
    "length": ({"query_lens": np.asarray([3], np.int32)}, "query_lens sum to the number of tokens"),
    "no tokens": (
        {"query_lens": np.asarray([0], np.int32), "token_ids": np.zeros(0, np.int32)},
        "query_lens are at least 1",
    ),
    "columns": ({"samples": np.ones(2, np.bool_)}, "columns have one number per row"),
    "no parameters": ({"new_rows": ()}, r"rows that sample have parameters \(not \[0\]\)"),
    "nothing sampled": (
        {"new_rows": (), "samples": np.zeros(1, np.bool_), "token_ids": np.asarray([1, -1], np.int32)},
        "row 0 has sampled nothing yet",
    ),
}


@pytest.mark.parametrize(("change", "rule"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_step_fails_alone(change: dict[str, Any], rule: str) -> None:
    executor = make()
    with pytest.raises(ExecutorError, match=rule):
        executor.submit(replace(step([0], [[1, 2]], [0], **start(0)), **change)).result()
    assert logprobs(executor, step([1], [[1]], [0], **start(1))).token_ids.shape == (1,)


def test_more_tokens_than_a_step_may_have_and_a_row_twice() -> None:
    executor = make()
    many = step([0, 1], [[1] * 14, [2] * 14], [0, 0], **start(0))
    assert "a step has 1 to 24 tokens" in str(executor.submit(many).exception())
    twice = step([0, 0], [[1], [2]], [0, 1], **start(0))
    assert "a row appears once" in str(executor.submit(twice).exception())


def test_closing_twice() -> None:
    executor = make()
    executor.close()
    executor.close()
    with pytest.raises(ExecutorError, match="closed"):
        executor.submit(step([0], [[1]], [0], **start(0))).result()


def test_weights_must_fit() -> None:
    weights = make_weights()
    head = weights.pop("head")
    with pytest.raises(ExecutorError, match=r"weight 'head' must be \[16, 8\], but is missing"):
        ReferenceExecutor(PLAN, weights, LAYOUT)
    weights["head"] = Weight("head", "f32", (8, 16), head.data)
    with pytest.raises(ExecutorError, match=r"but is \[8, 16\]"):
        ReferenceExecutor(PLAN, weights, LAYOUT)
    layout = Layout(num_pages=1, page_size=1, max_rows=1, max_row_tokens=1, max_step_tokens=1, kv_dtype="q8_0")
    with pytest.raises(ExecutorError, match="KV type 'q8_0' is not one of"):
        make(layout)


def test_name_and_sizes() -> None:
    executor = make()
    assert (executor.name, executor.vocab_size, executor.layout) == ("reference", VOCAB, LAYOUT)
