"""The native executor: the same bits however a row's tokens are cut, placed and accompanied; refusals by name."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ramet import _native
from ramet.errors import CheckpointError, ExecutorError
from ramet.executor.base import F32, LAST_SAMPLED, NO_TOKEN, Layout, RowParams, StepBatch, StepOutput
from ramet.executor.native import NativeExecutor
from ramet.plan.builder import PlanBuilder
from ramet.plan.plan import Plan
from ramet.weights.formats import quantize
from ramet.weights.tensor import Weight

VOCAB = 96
WIDTH = 64
HEADS = 6
KV_HEADS = 2
HEAD_DIM = 24
V_DIM = 40
TIERS = _native.cpu_info()["tiers"]


def toy_plan(windows: Sequence[int] = (0, 45)) -> Plan:
    """A layer per window: grouped heads, keys and values of odd sizes, sinks and a soft cap in every other one."""
    b = PlanBuilder("text")
    table = b.table("rope", [10000.0 ** (-i / 12) for i in range(12)])
    x = b.embed(b.tokens, "embed", rows=VOCAB, width=WIDTH)
    for i, window in enumerate(windows):
        with b.scope(f"layers.{i}"):
            h = b.rms_norm(x, "norm", eps=1e-5)
            q = b.linear(h, "q", out=HEADS * HEAD_DIM, bias=True)
            k = b.linear(h, "k", out=KV_HEADS * HEAD_DIM)
            v = b.linear(h, "v", out=KV_HEADS * V_DIM)
            q = b.rope(q, heads=HEADS, table=table)
            k = b.rope(k, heads=KV_HEADS, table=table)
            a = b.attention(
                q,
                k,
                v,
                heads=HEADS,
                kv_heads=KV_HEADS,
                window=window,
                scale=1 / math.sqrt(HEAD_DIM),
                soft_cap=20.0 * (i % 2),
                sinks="sinks" if i % 2 else None,
            )
            x = b.add(x, b.linear(a, "o", out=WIDTH))
            h = b.rms_norm(x, "mlp_norm", eps=1e-5)
            gated = b.gated_activation(b.linear(h, "gate", out=96), b.linear(h, "up", out=96), "silu")
            x = b.add(x, b.linear(gated, "down", out=WIDTH))
    b.output("logits", b.linear(b.rms_norm(b.gather_rows(x), "norm", eps=1e-5), "head", out=VOCAB))
    return b.build()


def weight(name: str, values: F32, format: str = "f32") -> Weight:
    return Weight(name, format, values.shape, quantize(values, format) if format != "f32" else raw(values))


def raw(values: F32) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1)


def toy_weights(plan: Plan, seed: int = 1) -> dict[str, Weight]:
    """Matrices whose rows are whole blocks of 32 in q8_0 or q4_0, the others in f32."""
    rng = np.random.default_rng(seed)
    weights = {}
    for i, spec in enumerate(plan.weights):
        values = rng.standard_normal(spec.shape).astype(np.float32)
        if len(spec.shape) == 2:
            values *= np.float32(1.5 / math.sqrt(spec.shape[1])) if spec.name != "embed" else np.float32(1)
        blocks = len(spec.shape) == 2 and spec.shape[1] % 32 == 0
        weights[spec.name] = weight(spec.name, values, ("q8_0", "q4_0")[i % 2] if blocks else "f32")
    return weights


PLAN = toy_plan()
WEIGHTS = toy_weights(PLAN)
LAYOUT = Layout(num_pages=600, page_size=16, max_rows=8, max_row_tokens=600, max_step_tokens=700)


def i32(values: Sequence[Any] | NDArray[Any], columns: int = 0) -> NDArray[np.int32]:
    array = np.asarray(values, np.int32)
    return array.reshape(-1, columns) if columns else array


@dataclass
class Row:
    """A row's tokens, and where its pages are."""

    index: int
    tokens: list[int]
    pages: list[int]
    done: int = 0


def batch(entries: Sequence[tuple[Row, int]], *, new: bool = False, **extra: Any) -> StepBatch:
    """The next `n` tokens of each row; every token is scored against token 5."""
    lens = [n for _, n in entries]
    tokens = [t for row, n in entries for t in row.tokens[row.done : row.done + n]]
    step = StepBatch(
        rows=i32([row.index for row, _ in entries]),
        query_lens=i32(lens),
        starts=i32([row.done for row, _ in entries]),
        token_ids=i32(tokens),
        samples=np.zeros(len(entries), bool),
        page_updates=i32([(row.index, i, p) for row, _ in entries for i, p in enumerate(row.pages)] if new else [], 3),
        new_rows=tuple((row.index, RowParams()) for row, _ in entries) if new else (),
        score_tokens=i32(range(len(tokens))),
        score_targets=i32([5] * len(tokens)),
    )
    for row, n in entries:
        row.done += n
    return replace(step, **extra)


def make_rows(layout: Layout, lengths: Sequence[int], seed: int) -> list[Row]:
    """Rows of random tokens (row 0's are always the same) over randomly scattered pages."""
    rng = np.random.default_rng(seed)
    free = rng.permutation(layout.num_pages).tolist()
    rows = []
    for i, length in enumerate(lengths):
        tokens = np.random.default_rng([length, i]).integers(0, VOCAB, length).tolist()
        rows.append(Row(i, tokens, [free.pop() for _ in range(-(-length // layout.page_size))]))
    return rows


def row_logits(executor: NativeExecutor, rows: list[Row], cuts: Sequence[int], neighbour_cut: int) -> F32:
    """Logits of every token of row 0, which advances by `cuts` while the others advance by `neighbour_cut`."""
    found = []
    for step, cut in enumerate(cuts):
        entries = [(rows[0], cut)]
        for row in rows[1:]:
            n = min(neighbour_cut, len(row.tokens) - row.done)
            if n > 0:
                entries.append((row, n))
        order = entries if step % 2 else entries[::-1]
        logits = executor.logits(batch(order, new=step == 0))
        at = sum(n for row, n in order[: order.index(entries[0])])
        found.append(logits[at : at + cut])
    return np.concatenate(found)


LENGTH = 395  # more than three blocks of attention, ending inside one


@pytest.fixture(scope="module", params=TIERS)
def tier_and_baseline(request: pytest.FixtureRequest) -> tuple[str, F32]:
    """A tier, and row 0's logits computed in it in one chunk, alone, on one thread."""
    executor = NativeExecutor(PLAN, WEIGHTS, LAYOUT, tier=request.param, threads=1)
    return request.param, row_logits(executor, make_rows(LAYOUT, [LENGTH], 0), [LENGTH], 1)


@pytest.mark.parametrize("page_size", [1, 2, 8, 16, 24, 64])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_do_not_depend_on_pages_threads_chunks_or_neighbours(
    tier_and_baseline: tuple[str, F32], page_size: int, threads: int
) -> None:
    tier, want = tier_and_baseline
    layout = replace(LAYOUT, page_size=page_size, num_pages=6000 // page_size)
    executor = NativeExecutor(PLAN, WEIGHTS, layout, tier=tier, threads=threads)
    rng = np.random.default_rng([page_size, threads])
    cuts: list[int] = []
    while sum(cuts) < LENGTH:
        cuts.append(min(int(rng.choice([1, 1, 2, 3, 16, 17, 40, 128])), LENGTH - sum(cuts)))
    got = row_logits(executor, make_rows(layout, [LENGTH, 300, 57, 9], page_size), cuts, int(rng.integers(1, 20)))
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("kv_dtype", ["f32", "bf16"])
def test_other_kv_types_are_exact_too(kv_dtype: str) -> None:
    layout = replace(LAYOUT, kv_dtype=kv_dtype)
    whole = NativeExecutor(PLAN, WEIGHTS, layout, threads=1)
    cut = NativeExecutor(PLAN, WEIGHTS, replace(layout, page_size=4), threads=2)
    want = row_logits(whole, make_rows(layout, [200], 0), [200], 1)
    got = row_logits(cut, make_rows(cut.layout, [200, 30], 3), [1, 99, 1, 64, 35], 1)
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


def test_a_copied_head_of_a_page_continues_with_the_same_bits() -> None:
    executor = NativeExecutor(PLAN, WEIGHTS, LAYOUT, threads=2)
    first = make_rows(LAYOUT, [200], 0)[0]
    want = row_logits(executor, [first], [200], 1)
    # Another row takes over 150 tokens: nine whole pages of the first and the leading 6 slots of its tenth.
    spare = next(p for p in range(LAYOUT.num_pages) if p not in first.pages)
    more = [p for p in range(LAYOUT.num_pages) if p not in first.pages and p != spare][:4]
    second = Row(1, first.tokens, [*first.pages[:9], spare, *more], done=150)
    copies = i32([(first.pages[9], spare, 6)], 3)
    got = executor.logits(batch([(second, 50)], new=True, page_copies=copies))
    assert np.array_equal(got.view(np.uint32), want[150:].view(np.uint32))


def test_last_sampled_is_the_token_that_the_row_drew() -> None:
    executor = NativeExecutor(PLAN, WEIGHTS, LAYOUT, threads=2)
    row = make_rows(LAYOUT, [40], 0)[0]
    sampled = executor.submit(batch([(row, 39)], new=True, samples=np.array([True]))).result()
    token = int(sampled.token_ids[0])
    assert 0 <= token < VOCAB
    filled = executor.logits(replace(batch([(row, 1)]), token_ids=i32([LAST_SAMPLED])))
    row.done = 39
    given = executor.logits(replace(batch([(row, 1)]), token_ids=i32([token])))
    assert np.array_equal(filled, given)


def test_scores_and_samples_agree_with_logits() -> None:
    executor = NativeExecutor(PLAN, WEIGHTS, LAYOUT, threads=2)
    row = make_rows(LAYOUT, [150], 0)[0]  # more logits rows than a chunk has
    logits = executor.logits(batch([(row, 150)], new=True)).astype(np.float64)
    row.done = 0
    step = batch([(row, 150)], new=True, samples=np.array([True]), score_top=3)
    params = RowParams(top_logprobs=2, logprob_ids=(7,))
    out = executor.submit(replace(step, new_rows=((0, params),))).result()
    logprobs = (
        logits
        - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        - logits.max(1, keepdims=True)
    )
    assert out.score_logprobs == pytest.approx(logprobs[:, 5], abs=1e-5)
    assert np.array_equal(out.score_top_ids, np.argsort(-logits, axis=1, kind="stable")[:, :3])
    assert out.token_ids[0] == logits[-1].argmax() == out.top_ids[0, 0]
    assert out.top_logprobs[0, 0] == pytest.approx(logprobs[-1].max(), abs=1e-5)
    assert out.id_logprobs[0] is not None
    assert out.id_logprobs[0] == pytest.approx(logprobs[-1, 7], abs=1e-5)


def test_masks_restrict_the_entry_they_are_for() -> None:
    executor = NativeExecutor(PLAN, WEIGHTS, LAYOUT, threads=2)
    rows = make_rows(LAYOUT, [20, 20], 0)
    masks = np.zeros((1, VOCAB // 32), np.uint32)
    masks[0, 2] = 1 << 9  # token 73 alone
    step = batch([(row, 20) for row in rows], new=True, samples=np.ones(2, bool), mask_entries=i32([1]), masks=masks)
    out = executor.submit(step).result()
    assert out.token_ids[1] == 73
    assert out.token_ids[0] != 73


def test_a_row_with_broken_numbers_draws_nothing_and_spares_its_neighbour() -> None:
    weights = dict(WEIGHTS)
    embed = np.random.default_rng(3).standard_normal((VOCAB, WIDTH)).astype(np.float32)
    embed[9] = np.nan
    weights["embed"] = weight("embed", embed)
    executor = NativeExecutor(PLAN, weights, LAYOUT, threads=2)
    rows = make_rows(LAYOUT, [20, 20], 0)
    rows[0].tokens = [t if t != 9 else 8 for t in rows[0].tokens]
    rows[1].tokens = [9] * 20
    out = executor.submit(batch([(row, 20) for row in rows], new=True, samples=np.ones(2, bool))).result()
    assert out.token_ids[0] != NO_TOKEN
    assert out.token_ids[1] == NO_TOKEN


def good_step() -> StepBatch:
    return batch([(make_rows(LAYOUT, [20], 0)[0], 20)], new=True, samples=np.array([True]))


BROKEN: Mapping[str, tuple[dict[str, Any], str]] = {
    "row": ({"rows": i32([8])}, "rows must be in 0 to 7, not 8"),
    "row twice": (
        {"rows": i32([0, 0]), "query_lens": i32([10, 10]), "starts": i32([0, 0]), "samples": np.zeros(2, bool)},
        "row 0 appears twice",
    ),
    "column lengths": ({"starts": i32([0, 0])}, "equally long"),
    "empty entry": ({"query_lens": i32([0])}, "query_lens must be in 1"),
    "token sum": ({"query_lens": i32([19])}, "sum"),
    "negative start": ({"starts": i32([-1])}, "starts must be in 0"),
    "too long": ({"starts": i32([590])}, "max_row_tokens"),
    "token": ({"token_ids": i32([VOCAB] * 20)}, f"token_ids must be in -1 to {VOCAB - 1}, not {VOCAB}"),
    "token below": ({"token_ids": i32([-2] * 20)}, "token_ids must be in -1"),
    "no page": ({"starts": i32([20])}, "no page at index 2"),
    "update row": ({"page_updates": i32([(9, 0, 0)], 3)}, "page_updates rows"),
    "update index": ({"page_updates": i32([(0, 38, 0)], 3)}, "page_updates indices"),
    "update page": ({"page_updates": i32([(0, 0, 600)], 3)}, "page_updates pages must be in 0 to 599, not 600"),
    "copy slots": ({"page_copies": i32([(0, 1, 17)], 3)}, "page_copies slots"),
    "copy page": ({"page_copies": i32([(0, -1, 1)], 3)}, "page_copies to"),
    "never new": ({"new_rows": ()}, "never new"),
    "new row": ({"new_rows": ((99, RowParams()),)}, "new_rows must be in 0 to 7"),
    "new row's ids": ({"new_rows": ((0, RowParams(bias_ids=(VOCAB,), bias_values=(1.0,))),)}, str(VOCAB)),
    "new row's type": ({"new_rows": ((0, RowParams(top_k="many")),)}, "top_k"),  # type: ignore[arg-type]
    "top_p that is not a number": ({"new_rows": ((0, RowParams(top_p=float("nan"))),)}, "top_p nan is not in 0 .. 1"),
    "negative temperature": ({"new_rows": ((0, RowParams(temperature=-1.0)),)}, "temperature -1 is not in"),
    "no penalty": ({"new_rows": ((0, RowParams(repetition_penalty=0.0)),)}, "repetition_penalty 0 is not in"),
    "endless bias": ({"new_rows": ((0, RowParams(bias_ids=(1,), bias_values=(float("inf"),))),)}, "bias_values inf"),
    "score token": ({"score_tokens": i32([20]), "score_targets": i32([0])}, "score_tokens"),
    "score order": ({"score_tokens": i32([3, 2]), "score_targets": i32([0, 0])}, "ascend"),
    "score target": ({"score_tokens": i32([2]), "score_targets": i32([VOCAB])}, "score_targets"),
    "score top": ({"score_top": VOCAB + 1}, "score_top"),
    "mask entry": ({"mask_entries": i32([1]), "masks": np.zeros((1, 3), np.uint32)}, "mask_entries"),
    "mask width": ({"mask_entries": i32([0]), "masks": np.zeros((1, 2), np.uint32)}, "masks must be"),
    "dtype": ({"rows": np.zeros(1, np.int64)}, "rows: has a wrong dtype"),
    "rank": ({"starts": i32([[0]])}, "starts: must have 1"),
    "strides": ({"token_ids": np.zeros(40, np.int32)[::2]}, "token_ids: must be contiguous"),
    "not an array": ({"samples": [True]}, "samples: is not an array"),
}  # fmt: skip


def refused(future: Future[StepOutput]) -> str:
    error = future.exception()
    assert isinstance(error, ExecutorError)
    return str(error)


@pytest.fixture(scope="module")
def shared() -> NativeExecutor:
    return NativeExecutor(PLAN, WEIGHTS, LAYOUT, threads=2)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_step_is_refused_by_name_and_the_next_one_runs(shared: NativeExecutor, name: str) -> None:
    fresh = NativeExecutor(PLAN, WEIGHTS, LAYOUT, threads=1) if name == "never new" else shared
    changes, message = BROKEN[name]
    assert message in refused(fresh.submit(replace(good_step(), **changes)))
    assert fresh.submit(good_step()).result().token_ids[0] >= 0


def test_an_empty_step_answers_with_nothing(shared: NativeExecutor) -> None:
    none = i32([])
    step = StepBatch(rows=none, query_lens=none, starts=none, token_ids=none, samples=np.zeros(0, bool))
    assert len(shared.submit(step).result().token_ids) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_size": 0}, "page_size must be in 1"),
        ({"num_pages": -1}, "num_pages"),
        ({"max_rows": 1 << 40}, "max_rows"),
        ({"kv_dtype": "f8"}, "kv_dtype"),
        ({"num_pages": (1 << 31) - 2, "page_size": (1 << 31) - 2}, "too many"),
    ],
)
def test_a_layout_that_cannot_be_had_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ExecutorError, match=message):
        NativeExecutor(PLAN, WEIGHTS, replace(LAYOUT, **change), threads=1)


def test_weights_must_be_those_of_the_plan() -> None:
    missing = {name: w for name, w in WEIGHTS.items() if name not in ("head", "norm")}
    with pytest.raises(CheckpointError, match=r"missing: .*head"):
        NativeExecutor(PLAN, missing, LAYOUT, threads=1)
    with pytest.raises(CheckpointError, match="left over: extra"):
        NativeExecutor(PLAN, {**WEIGHTS, "extra": weight("extra", np.zeros((1,), np.float32))}, LAYOUT, threads=1)
    narrow = weight("head", np.zeros((VOCAB, 32), np.float32))
    with pytest.raises(CheckpointError, match=r"weight head: is \[96, 32\] but the plan wants \[96, 64\]"):
        NativeExecutor(PLAN, {**WEIGHTS, "head": narrow}, LAYOUT, threads=1)
    cut = replace(WEIGHTS["head"], format="q8_0", data=WEIGHTS["head"].data[:-1])
    with pytest.raises(CheckpointError, match="bytes where q8_0 needs"):
        NativeExecutor(PLAN, {**WEIGHTS, "head": cut}, LAYOUT, threads=1)
    with pytest.raises(CheckpointError, match="unknown format"):
        NativeExecutor(PLAN, {**WEIGHTS, "head": replace(WEIGHTS["head"], format="q9")}, LAYOUT, threads=1)


def test_tiers_threads_and_closing() -> None:
    with pytest.raises(ExecutorError, match=r'tier "mmx" is unknown or cannot run on this machine; it can run: scalar'):
        NativeExecutor(PLAN, WEIGHTS, LAYOUT, tier="mmx")
    with pytest.raises(ExecutorError, match="threads"):
        NativeExecutor(PLAN, WEIGHTS, LAYOUT, threads=-1)
    executor = NativeExecutor(PLAN, WEIGHTS, LAYOUT, threads=1)
    assert executor.tier == TIERS[-1]
    assert executor.vocab_size == VOCAB
    executor.close()
    executor.close()
    assert "closed" in refused(executor.submit(good_step()))


def test_the_environment_can_force_a_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMET_TIER", "scalar")
    assert NativeExecutor(PLAN, WEIGHTS, LAYOUT, threads=1).tier == "scalar"
    assert NativeExecutor(PLAN, WEIGHTS, LAYOUT, threads=1, tier=TIERS[-1]).tier == TIERS[-1]


def test_timings_cover_the_plan_once_a_step() -> None:
    executor = NativeExecutor(PLAN, WEIGHTS, LAYOUT, threads=2)
    executor.submit(good_step()).result()
    assert all(t.calls == 0 for t in executor.timings())
    executor.enable_timings()
    executor.submit(good_step()).result()
    timings = executor.timings()
    assert all(t.calls == 1 and t.seconds >= 0 for t in timings)
    assert [t.kinds for t in timings].count("attend") == 2


def test_the_stub_is_what_the_library_offers(tmp_path: Path) -> None:
    made = tmp_path / "_native.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "ramet._native", "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    import ramet

    golden = Path(ramet.__file__).with_name("_native.pyi")
    assert golden.read_text() == made.read_text(), f"remake it: {' '.join(command[:-1])} {golden}"
