"""Steps of plans that give vectors: what is refused before anything runs, alike on both executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ramet.errors import ExecutorError
from ramet.executor.base import NO_TOKEN, Executor, Layout, RowParams, StepBatch
from ramet.executor.native import NativeExecutor
from ramet.executor.reference import ReferenceExecutor
from ramet.plan.builder import PlanBuilder
from ramet.plan.plan import Plan
from ramet.weights.formats import quantize
from ramet.weights.tensor import Weight

VOCAB, WIDTH, POSITIONS = 12, 8, 10
LAYOUT = Layout(num_pages=8, page_size=4, max_rows=2, max_row_tokens=8, max_step_tokens=16, kv_dtype="f32")

MakeExecutor = Callable[[Plan, Mapping[str, Weight], Layout], Executor]
EXECUTORS: dict[str, MakeExecutor] = {"reference": ReferenceExecutor, "native": NativeExecutor}


def plan(method: str = "mean", *, causal: bool = False) -> Plan:
    b = PlanBuilder("embed")
    types = b.token_types
    x = b.add(
        b.embed(b.tokens, "words", rows=VOCAB, width=WIDTH),
        b.embed_positions("places", rows=POSITIONS, width=WIDTH, offset=2),
    )
    x = b.add(x, b.embed(types, "types", rows=2, width=WIDTH))
    x = b.attention(x, x, x, heads=2, kv_heads=2, scale=0.5, causal=causal)
    b.output("embedding", b.pool(x, method))
    return b.build()


def weights() -> dict[str, Weight]:
    rng = np.random.default_rng(3)
    shapes = {"words": (VOCAB, WIDTH), "places": (POSITIONS, WIDTH), "types": (2, WIDTH)}
    return {
        name: Weight(name, "f32", shape, quantize(rng.standard_normal(shape).astype(np.float32), "f32"))
        for name, shape in shapes.items()
    }


@pytest.fixture(params=EXECUTORS)
def make(request: pytest.FixtureRequest) -> MakeExecutor:
    return EXECUTORS[request.param]


def step(ids: list[int], **changes: Any) -> StepBatch:
    values: dict[str, Any] = {
        "rows": np.zeros(1, np.int32),
        "query_lens": np.array([len(ids)], np.int32),
        "starts": np.zeros(1, np.int32),
        "token_ids": np.array(ids, np.int32),
        "samples": np.ones(1, np.bool_),
        "page_updates": np.array([(0, 0, 0), (0, 1, 1)], np.int32),
        "new_rows": ((0, RowParams()),),
        **changes,
    }
    return StepBatch(**values)


def run(executor: Executor, batch: StepBatch) -> Any:
    return executor.submit(batch).result().embeddings


def test_what_a_step_gives(make: MakeExecutor) -> None:
    executor = make(plan(), weights(), LAYOUT)
    assert (executor.vocab_size, executor.embedding_size, executor.whole_rows) == (VOCAB, WIDTH, True)
    output = executor.submit(step([1, 2, 3])).result()
    assert output.embeddings.shape == (1, WIDTH)
    assert output.token_ids.tolist() == [NO_TOKEN]
    silent = executor.submit(step([1, 2, 3], samples=np.zeros(1, np.bool_))).result()
    assert silent.embeddings.shape == (0, WIDTH)


def test_types_positions_and_order_matter(make: MakeExecutor) -> None:
    executor = make(plan(), weights(), LAYOUT)
    plain = run(executor, step([1, 2, 3]))
    zeros = run(executor, step([1, 2, 3], token_types=np.zeros(3, np.int32)))
    assert plain.tobytes() == zeros.tobytes()
    for other in (step([1, 2, 3], token_types=np.array([0, 0, 1], np.int32)), step([2, 1, 3]), step([1, 2, 4])):
        assert not np.allclose(run(executor, other), plain)


def test_both_executors_agree() -> None:
    for method in ("cls", "last", "mean"):
        for causal in (False, True):
            batch = step([5, 6, 7, 8, 9], token_types=np.array([0, 0, 1, 1, 1], np.int32))
            found = [run(make(plan(method, causal=causal), weights(), LAYOUT), batch) for make in EXECUTORS.values()]
            np.testing.assert_allclose(found[0], found[1], rtol=0, atol=2e-6)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "later start": ({"starts": np.array([1], np.int32)}, "starts"),
    "type": ({"token_types": np.array([0, 0, 2], np.int32)}, "token_types"),
    "types missing": ({"token_types": np.array([0, 0], np.int32)}, "token_types"),
    "scored": (
        {"score_tokens": np.zeros(1, np.int32), "score_targets": np.zeros(1, np.int32)},
        "scored",
    ),
    "masked": ({"mask_entries": np.zeros(1, np.int32), "masks": np.ones((1, 1), np.uint32)}, "masked"),
    "token": ({"token_ids": np.array([1, 2, VOCAB], np.int32)}, "token_ids"),
}


@pytest.mark.parametrize(("changes", "word"), BAD.values(), ids=BAD.keys())
def test_bad_steps_are_refused(make: MakeExecutor, changes: dict[str, Any], word: str) -> None:
    executor = make(plan(), weights(), LAYOUT)
    with pytest.raises(ExecutorError, match=word):
        executor.submit(step([1, 2, 3], **changes)).result()
    assert run(executor, step([1, 2, 3])).shape == (1, WIDTH)


def test_rows_may_not_outgrow_the_positions(make: MakeExecutor) -> None:
    long = Layout(num_pages=8, page_size=4, max_rows=2, max_row_tokens=9, max_step_tokens=16, kv_dtype="f32")
    with pytest.raises(ExecutorError, match="max_row_tokens must be at most 8"):
        make(plan(), weights(), long)


def test_causal_plans_that_take_the_last_token_go_on_from_a_prefix(make: MakeExecutor) -> None:
    whole = run(make(plan("last", causal=True), weights(), LAYOUT), step([1, 2, 3, 4]))
    executor = make(plan("last", causal=True), weights(), LAYOUT)
    executor.submit(step([1, 2, 3], samples=np.zeros(1, np.bool_))).result()
    rest = step([4], starts=np.array([3], np.int32), new_rows=())
    assert run(executor, rest).tobytes() == whole.tobytes()


def test_threads_that_share_long_rows_change_no_bit() -> None:
    """One head and few tiles over several blocks of positions: there workers split the blocks among them."""
    rng = np.random.default_rng(4)
    shapes = {"words": (VOCAB, WIDTH), "places": (400, WIDTH)}
    b = PlanBuilder("embed")
    x = b.embed(b.tokens, "words", rows=VOCAB, width=WIDTH)
    x = b.add(x, b.embed_positions("places", rows=400, width=WIDTH))
    x = b.attention(x, x, x, heads=1, kv_heads=1, scale=0.5, causal=False)
    b.output("embedding", b.pool(x, "mean"))
    values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    packed = {name: Weight(name, "f32", v.shape, quantize(v, "f32")) for name, v in values.items()}
    layout = Layout(num_pages=120, page_size=8, max_rows=2, max_row_tokens=400, max_step_tokens=900, kv_dtype="f32")
    pages = np.array([(row, i, row * 60 + i) for row in range(2) for i in range(50)], np.int32)
    lengths = (389, 130)
    together = StepBatch(
        rows=np.arange(2, dtype=np.int32),
        query_lens=np.array(lengths, np.int32),
        starts=np.zeros(2, np.int32),
        token_ids=rng.integers(0, VOCAB, sum(lengths)).astype(np.int32),
        samples=np.ones(2, np.bool_),
        page_updates=pages,
        new_rows=((0, RowParams()), (1, RowParams())),
    )
    plan_ = b.build()
    wanted = ReferenceExecutor(plan_, packed, layout).submit(together).result().embeddings
    found = {n: run(NativeExecutor(plan_, packed, layout, threads=n), together) for n in (1, 2, 3, 8)}
    np.testing.assert_allclose(found[1], wanted, rtol=0, atol=2e-6)
    assert len({vectors.tobytes() for vectors in found.values()}) == 1
