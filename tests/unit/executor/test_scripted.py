"""The scripted executor: tokens follow the prefix that the slots hold, and only that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ramet.errors import ExecutorError
from ramet.executor.base import LAST_SAMPLED, NO_TOKEN, Layout, RowParams, StepBatch, StepOutput
from ramet.executor.scripted import Script, ScriptedExecutor

VOCAB = 50
LAYOUT = Layout(num_pages=8, page_size=4, max_rows=3, max_row_tokens=16, max_step_tokens=20)


def make(script: Script | None = None) -> ScriptedExecutor:
    return ScriptedExecutor(LAYOUT, VOCAB, script)


def batch(*entries: tuple[int, int, list[int]], **more: Any) -> StepBatch:
    """Entries of (row, start, tokens); row r has pages 2r, 2r+1 unless `page_updates` says otherwise."""
    rows = [row for row, _, _ in entries]
    pages = [(row, i, 2 * row + i) for row in rows for i in range(2)]
    columns: dict[str, Any] = {
        "samples": np.ones(len(entries), np.bool_),
        "page_updates": np.array(pages, np.int32),
        **more,
    }
    return StepBatch(
        rows=np.array(rows, np.int32),
        query_lens=np.array([len(tokens) for _, _, tokens in entries], np.int32),
        starts=np.array([start for _, start, _ in entries], np.int32),
        token_ids=np.array([token for _, _, tokens in entries for token in tokens], np.int32),
        **columns,
    )


def run(executor: ScriptedExecutor, *entries: tuple[int, int, list[int]], **more: Any) -> StepOutput:
    return executor.submit(batch(*entries, **more)).result()


def new(row: int, **params: Any) -> dict[str, Any]:
    return {"new_rows": ((row, RowParams(**params)),)}


def test_chunks_neighbours_and_single_tokens_give_the_same_tokens() -> None:
    whole = run(make(), (0, 0, [1, 2, 3, 4, 5])).token_ids
    executor = make()
    run(executor, (0, 0, [1, 2]), (1, 0, [9]))
    run(executor, (0, 2, [3]))
    assert run(executor, (0, 3, [4, 5]), (1, 1, [8, 8])).token_ids[0] == whole[0]
    executor = make()
    for at, token in enumerate([1, 2, 3, 4, 5]):
        found = run(executor, (2, at, [token])).token_ids
    assert found[0] == whole[0]


def test_the_last_sampled_token_is_filled_in() -> None:
    executor, told = make(), make()
    first = int(run(executor, (0, 0, [1, 2])).token_ids[0])
    run(told, (0, 0, [1, 2]))
    assert run(executor, (0, 2, [LAST_SAMPLED])).token_ids[0] == run(told, (0, 2, [first])).token_ids[0]


@pytest.mark.parametrize("damaged", range(5))
def test_any_wrong_slot_changes_what_is_drawn(damaged: int) -> None:
    executor = make()
    run(executor, (0, 0, [1, 2, 3, 4, 5]))
    digest = executor._read(0, 5)[0]
    executor._prints[damaged // 4, damaged % 4] += np.uint64(1)
    assert executor._read(0, 5)[0] != digest


def test_a_page_copy_takes_the_head_of_a_page() -> None:
    executor = make()
    run(executor, (0, 0, [1, 2, 3, 4, 5, 6]))
    copied = run(
        executor,
        (1, 6, [7]),
        page_updates=np.array([[1, 0, 0], [1, 1, 3]], np.int32),
        page_copies=np.array([[1, 3, 2]], np.int32),
    )
    assert copied.token_ids[0] == run(make(), (0, 0, [1, 2, 3, 4, 5, 6, 7])).token_ids[0]


def test_scripts_by_index_prompt_and_function() -> None:
    script = Script(tokens=[7, 8], by_prompt={(1, 2): [9]}, choose=lambda prompt, at: 3 if prompt == (5,) else None)
    executor = make(script)
    entries = [(0, 0, [1, 2]), (1, 0, [5]), (2, 0, [6])]
    assert run(executor, *entries).token_ids.tolist() == [9, 3, 7]
    entries = [(0, 2, [LAST_SAMPLED]), (1, 1, [LAST_SAMPLED]), (2, 1, [LAST_SAMPLED])]
    assert run(executor, *entries).token_ids.tolist() == [9, 3, 8]
    returned = run(executor, (2, 0, [6, 7, 8]), **new(2, generated=(7, 8)))
    assert returned.token_ids.tolist() == [7]


def test_suppressed_biased_and_masked_tokens_are_not_drawn() -> None:
    executor = make(Script(tokens=[7]))
    suppressed = run(executor, (0, 0, [1]), **new(0, suppress_ids=(7,), suppress_until=1)).token_ids
    assert suppressed[0] != 7
    assert run(executor, (0, 1, [LAST_SAMPLED])).token_ids[0] == 7
    biased = run(executor, (1, 0, [1]), **new(1, bias_ids=(4,), bias_values=(100.0,)))
    assert biased.token_ids[0] == 4
    mask = np.array([[1 << 5, 0]], np.uint32)
    masked = run(executor, (2, 0, [1]), mask_entries=np.array([0], np.int32), masks=mask)
    assert masked.token_ids[0] == 5
    nothing = run(executor, (2, 1, [1]), mask_entries=np.array([0], np.int32), masks=mask * 0)
    assert nothing.token_ids[0] == NO_TOKEN


def test_seeds_matter_with_a_temperature_only() -> None:
    def draw(**params: Any) -> int:
        return int(run(make(), (0, 0, [1, 2, 3]), **new(0, **params)).token_ids[0])

    assert draw(seed=1) == draw(seed=2)
    assert len({draw(seed=seed, temperature=1.0) for seed in range(8)}) > 1


def test_logprobs_are_of_the_same_logits() -> None:
    executor = make(Script(tokens=[7]))
    out = run(executor, (0, 0, [1]), **new(0, top_logprobs=3, logprob_ids=(7, 9)))
    assert out.top_ids[0, 0] == out.token_ids[0] == 7
    assert out.top_logprobs[0, 0] == out.logprobs[0] > np.log(0.99)
    column = out.id_logprobs[0]
    assert column is not None
    assert column[0] == out.logprobs[0] > column[1]
    plain = run(executor, (1, 0, [1]), **new(1))
    assert np.isnan(plain.logprobs[0])
    assert plain.top_ids.shape == (1, 0)


def test_scores_are_asked_by_flat_index() -> None:
    wanted = {"score_tokens": np.array([0, 3], np.int32), "score_targets": np.array([2, 4], np.int32), "score_top": 2}
    out = run(make(), (0, 0, [1, 2, 3]), (1, 0, [3, 4]), **wanted)
    alone = {"score_tokens": np.array([0], np.int32), "score_targets": np.array([4], np.int32)}
    assert out.score_logprobs[1] == run(make(), (2, 0, [3]), **alone).score_logprobs[0]
    assert out.score_top_ids.shape == out.score_top_logprobs.shape == (2, 2)


def test_failures_are_the_future_s_and_the_next_step_runs() -> None:
    executor = make(Script(fail_steps={0}))
    with pytest.raises(ExecutorError, match="step 0"):
        run(executor, (0, 0, [1]))
    assert run(executor, (0, 0, [1])).token_ids.shape == (1,)
    executor.script.tokens = [NO_TOKEN]
    assert run(executor, (0, 1, [1])).token_ids[0] == NO_TOKEN
    executor.script.read_prefix = False
    executor.close()
    executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        run(executor, (0, 0, [1]))


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([], "rows"),
        ([(0, 0, [1]), (0, 1, [1])], "rows"),
        ([(0, 0, [])], "query lengths"),
        ([(0, 0, [1] * 16), (1, 0, [1] * 16)], "exceed the step limit"),
        ([(0, 14, [1, 1, 1])], "positions"),
        ([(0, -1, [1])], "positions"),
        ([(0, 0, [VOCAB])], "vocabulary"),
        ([(0, 0, [-2])], "vocabulary"),
        ([(0, 9, [1])], "has no page"),
    ],
)
def test_malformed_steps_are_our_bugs(entries: list[tuple[int, int, list[int]]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make().submit(batch(*entries, page_updates=np.array([(0, 0, 0)], np.int32)))


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="columns"):
        make().submit(batch((0, 0, [1]), samples=np.ones(2, np.bool_)))
