"""Scoring and penalties on a real, tiny model: prompt logprobs, chosen ids and penalised text do not depend on chunks,
cache, threads, neighbours or the executor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ramet

CHECKPOINT = str(Path(__file__).parent.parent / "reference" / "checkpoints" / "llama")
PROMPT = [(7 * i * i + 3 * i) % 256 for i in range(53)]
CHOSEN = [5, 200, 31]
SETTINGS: list[dict[str, Any]] = [
    {"chunked_prefill_size": 4},
    {"chunked_prefill_size": 11, "page_size": 1},
    {"disable_radix_cache": True, "threads": 1},
    {"retract_every": 1, "page_size": 4, "chunked_prefill_size": 16},
]


@pytest.fixture(scope="module")
def engine() -> Iterator[ramet.Engine]:
    with ramet.Engine(CHECKPOINT) as engine:
        yield engine


def score(engine: ramet.Engine, start: int = 0, **fields: Any) -> dict[str, Any]:
    answer = engine.generate(
        input_ids=PROMPT,
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=start,
        **{"top_logprobs_num": 3, "token_ids_logprob": CHOSEN, **fields},
    )
    assert answer["text"] == ""
    assert answer["output_ids"] == []
    meta: dict[str, Any] = answer["meta_info"]
    assert meta["completion_tokens"] == 0
    assert meta["finish_reason"] == {"type": "length", "length": 0}
    return meta


def scores(meta: dict[str, Any]) -> tuple[Any, Any, Any]:
    return meta["input_token_logprobs"], meta["input_top_logprobs"], meta["input_token_ids_logprobs"]


def test_chosen_ids_are_scored_on_the_same_distribution(engine: ramet.Engine) -> None:
    vocab = engine.get_model_info()["vocab_size"]
    everything = score(engine, token_ids_logprob=list(range(vocab)))
    assert everything["input_token_ids_logprobs"][0] is None
    for drawn, top, column in zip(*(part[1:] for part in scores(everything)), strict=True):
        logprobs = [value for value, *_ in column]
        assert [token for _, token, _ in column] == list(range(vocab))
        assert math.fsum(map(math.exp, logprobs)) == pytest.approx(1, abs=1e-4)
        assert drawn[0] == logprobs[drawn[1]]
        assert top == sorted(column, key=lambda triple: (-triple[0], triple[1]))[:3]
    few = score(engine)
    assert few["input_token_ids_logprobs"][1:] == [
        [column[id] for id in CHOSEN] for column in everything["input_token_ids_logprobs"][1:]
    ]


def test_g05_scores_are_the_same_bits_after_a_cache_hit_and_from_any_start(engine: ramet.Engine) -> None:
    engine.flush_cache()
    cold = scores(score(engine))
    engine.generate(input_ids=PROMPT, sampling_params={"max_new_tokens": 4})
    warm = score(engine, top_logprobs_num=3)
    assert scores(warm) == cold
    for start in (1, 16, 17, 40, 52, 53):
        late = score(engine, start)
        assert scores(late) == tuple(part[start:] for part in cold)
        assert late["cached_tokens"] < start  # the logits before it are wanted
        if start > 16:
            assert late["cached_tokens"] >= 16


@pytest.mark.parametrize("options", SETTINGS)
def test_g10_scores_are_the_same_bits_however_the_prompt_is_cut(engine: ramet.Engine, options: dict[str, Any]) -> None:
    expected = scores(score(engine))
    with ramet.Engine(CHECKPOINT, **options) as other:
        beside = other.generate(
            input_ids=[PROMPT[:9], PROMPT, PROMPT[5:]],
            sampling_params={"max_new_tokens": 5, "ignore_eos": True},
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=3,
            token_ids_logprob=CHOSEN,
        )
        assert scores(beside[1]["meta_info"]) == expected
        assert scores(score(other)) == expected


def test_the_reference_executor_gives_nearly_the_same_scores(engine: ramet.Engine) -> None:
    with ramet.Engine(CHECKPOINT, executor="reference") as reference:
        left, right = score(engine), score(reference)
    for ours, theirs in zip(left["input_token_ids_logprobs"][1:], right["input_token_ids_logprobs"][1:], strict=True):
        assert [value for value, *_ in ours] == pytest.approx([value for value, *_ in theirs], abs=1e-2)


def test_a17_penalties_leave_a_favourite_at_the_step_that_they_say(engine: ramet.Engine) -> None:
    """A bias of 40 makes one token the favourite; each time that it is drawn, the frequency penalty takes 2 of it."""
    sampling = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True, "logit_bias": {"77": 40.0}}
    ask: dict[str, Any] = {"input_ids": PROMPT, "return_logprob": True, "token_ids_logprob": [77]}
    plain = engine.generate(sampling_params=sampling, **ask)
    assert plain["output_ids"] == [77] * 40
    penalised = {**sampling, "frequency_penalty": 2.0}
    expected = engine.generate(sampling_params=penalised, **ask)["output_ids"]
    left_at = next(i for i, token in enumerate(expected) if token != 77)
    assert 5 < left_at < 40
    for options in ({"executor": "reference"}, {"retract_every": 3, "page_size": 1}, {"chunked_prefill_size": 8}):
        with ramet.Engine(CHECKPOINT, **options) as other:
            beside = other.generate(
                input_ids=[PROMPT[:3], PROMPT], sampling_params=[sampling, penalised], return_logprob=True
            )
            assert [answer["output_ids"] for answer in beside][1] == expected
    presence = engine.generate(sampling_params={**sampling, "presence_penalty": 2.0}, **ask)
    assert presence["output_ids"] == [77] * 40  # taken once, however often it was drawn
    biased = {**sampling, "repetition_penalty": 2.0, "logit_bias": {"77": 2.0}}
    repeats = engine.generate(sampling_params=biased, **ask)["output_ids"]
    assert len(set(repeats)) > len(
        set(engine.generate(sampling_params={**biased, "repetition_penalty": 1}, **ask)["output_ids"])
    )
