"""The definition of sampling, each rule on a row small enough to work out by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from ramet.executor.base import F32, NO_TOKEN, U32, RowParams
from ramet.executor.sampling import RowSampler, Scored, allowed, random64, score, step_output, weights


def row(*logits: float) -> F32:
    return np.asarray(logits, np.float32)


def bitmask(*bits: int) -> U32:
    """A mask for up to 32 tokens from 0s and 1s, token 0 first."""
    return np.asarray([sum(bit << i for i, bit in enumerate(bits))], np.uint32)


def log_softmax(logits: F32) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    x = logits.astype(np.float64)
    x -= x.max()
    logprobs: np.ndarray[tuple[int], np.dtype[np.float64]] = x - np.log(np.exp(x).sum())
    return logprobs


def support(logits: F32, params: RowParams, draws: int = 300) -> set[int]:
    """The tokens that `draws` seeds draw."""
    return {RowSampler(dataclasses.replace(params, seed=seed)).sample(logits).token_id for seed in range(draws)}


def test_weight_is_the_exponential_to_float_precision() -> None:
    x = np.linspace(-20, 0, 100_001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64)) * 2.0**40
    np.testing.assert_allclose(weights(x, np.float32(0), np.float32(1)), exact, rtol=2e-7, atol=0.5)


def test_weight_at_the_ends() -> None:
    assert weights(row(5, 5 - 28.5, 5 - 29.0, -np.inf, -3e38), np.float32(5), np.float32(1)).tolist() == [
        2**40,
        0,
        0,
        0,
        0,
    ]
    assert weights(row(5 - 28.0), np.float32(5), np.float32(1)).tolist() == [1]


def test_random_bits_are_splitmix64() -> None:
    # The stream of this seed starts at state 1234567, for which SplitMix64's first outputs are published.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [random64(11906536674387683726, index) for index in range(4)] == published
    assert len({random64(seed, index) for seed in range(50) for index in range(50)}) == 2500
    assert random64(-1, 0) == random64(2**64 - 1, 0)  # a negative seed is its two's complement


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    assert RowSampler(RowParams()).sample(row(1, 7, 7, -2)).token_id == 1
    assert RowSampler(RowParams(temperature=9e-7, seed=3)).sample(row(1, 7, 7, -2)).token_id == 1


def test_top_k_prefers_lower_ids_among_equals() -> None:
    logits = row(0, 3, 3, 3, 2)
    assert support(logits, RowParams(temperature=1.0, top_k=2)) == {1, 2}
    assert support(logits, RowParams(temperature=1.0, top_k=1)) == {1}
    assert support(logits, RowParams(temperature=4e6, top_k=4)) == {
        1,
        2,
        3,
        4,
    }  # order is that of logits, not of weights
    assert support(logits, RowParams(temperature=4e6, top_k=0)) == {0, 1, 2, 3, 4}
    assert support(logits, RowParams(temperature=4e6, top_k=99)) == {0, 1, 2, 3, 4}


def test_top_p_keeps_the_token_that_crosses() -> None:
    logits = np.log(row(0.5, 0.25, 0.125, 0.125))
    assert support(logits, RowParams(temperature=1.0, top_p=0.49)) == {0}
    assert support(logits, RowParams(temperature=1.0, top_p=0.51)) == {0, 1}
    assert support(logits, RowParams(temperature=1.0, top_p=0.76)) == {0, 1, 2}
    assert support(logits, RowParams(temperature=1.0, top_p=0.88)) == {0, 1, 2, 3}
    assert support(logits, RowParams(temperature=1.0, top_p=1e-9)) == {0}


def test_min_p_is_relative_to_the_best() -> None:
    logits = np.log(row(0.5, 0.25, 0.125, 0.125))
    assert support(logits, RowParams(temperature=1.0, min_p=0.51)) == {0}
    assert support(logits, RowParams(temperature=1.0, min_p=0.49)) == {0, 1}
    assert support(logits, RowParams(temperature=1.0, min_p=0.24)) == {0, 1, 2, 3}
    assert support(row(2, 2, 1), RowParams(temperature=1.0, min_p=1.0)) == {0, 1}


def test_limits_intersect_and_see_the_same_distribution() -> None:
    logits = np.log(row(0.4, 0.3, 0.2, 0.1))
    # Within the two of top-k, 0.4 would be 57 % and top_p=0.5 would stop there; of the whole distribution it needs two.
    assert support(logits, RowParams(temperature=1.0, top_k=2, top_p=0.5)) == {0, 1}
    assert support(logits, RowParams(temperature=1.0, top_k=3, top_p=0.95, min_p=0.6)) == {0, 1}


def test_penalties_count_generated_tokens_only() -> None:
    logits = row(2, 1.9, -1)
    drawn = RowSampler(RowParams(frequency_penalty=0.06, generated=[0, 2]))
    assert drawn.sample(logits).token_id == 0  # 1.94
    assert drawn.sample(logits).token_id == 1  # 1.88 < 1.9: token 0 now counts twice
    assert RowSampler(RowParams(presence_penalty=0.2, generated=[0])).sample(logits).token_id == 1
    assert RowSampler(RowParams(repetition_penalty=1.5, generated=[0])).sample(logits).token_id == 1
    negative = row(-1, -1.2, -9)
    assert RowSampler(RowParams(repetition_penalty=1.5, generated=[0])).sample(negative).token_id == 1


def test_bias_lifts_but_not_what_is_ruled_out() -> None:
    params = RowParams(bias_ids=[2], bias_values=[100.0])
    assert RowSampler(params).sample(row(1, 0, -3)).token_id == 2
    assert RowSampler(params).sample(row(1, 0, -3), bitmask(1, 1, 0)).token_id == 0
    suppressed = dataclasses.replace(params, suppress_ids=[2], suppress_until=1)
    assert RowSampler(suppressed).sample(row(1, 0, -3)).token_id == 0


def test_suppressed_until_enough_tokens() -> None:
    sampler = RowSampler(RowParams(suppress_ids=[0, 1], suppress_until=3, generated=[2]))
    drawn = [sampler.sample(row(5, 4, 3)).token_id for _ in range(4)]
    assert drawn == [2, 2, 0, 0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_to_draw(temperature: float) -> None:
    params = RowParams(temperature=temperature, top_logprobs=2, seed=1)
    for logits in (row(1, math.nan), row(1, math.inf), row(-math.inf, -math.inf)):
        sampler = RowSampler(params)
        drawn = sampler.sample(logits)
        assert drawn.token_id == NO_TOKEN
        assert math.isnan(drawn.logprob)
        assert (drawn.top, sampler.num_generated) == ([], 0)
    assert RowSampler(params).sample(row(1, 2), bitmask(0, 0)).token_id == NO_TOKEN
    assert (
        RowSampler(params).sample(row(1, math.nan), bitmask(1, 0)).token_id == NO_TOKEN
    )  # a masked NaN is still a fault


def test_state_follows_the_row() -> None:
    sampler = RowSampler(RowParams(generated=[4, 2]))
    assert (sampler.num_generated, sampler.last_token) == (2, 2)
    assert RowSampler(RowParams()).last_token == NO_TOKEN
    sampler.sample(row(0, 1, 0, 0, 0))
    assert (sampler.num_generated, sampler.last_token, sampler.counts[1]) == (3, 1, 1)


def test_a_retracted_request_continues_with_the_same_tokens() -> None:
    rng = np.random.default_rng(5)
    steps = [rng.normal(size=50).astype(np.float32) for _ in range(12)]
    params = RowParams(temperature=1.0, seed=77, frequency_penalty=0.5, repetition_penalty=1.2)
    whole = RowSampler(params)
    tokens = [whole.sample(logits).token_id for logits in steps]
    again = RowSampler(dataclasses.replace(params, generated=tokens[:5]))
    assert [again.sample(logits).token_id for logits in steps[5:]] == tokens[5:]


def test_logprobs_are_of_the_edited_distribution_before_truncation() -> None:
    logits = row(1.0, 0.5, -2.0, 0.25)
    params = RowParams(temperature=0.5, top_k=1, top_logprobs=3, logprob_ids=[2, 3], bias_ids=[3], bias_values=[1.0])
    drawn = RowSampler(params).sample(logits, bitmask(1, 0, 1, 1))
    edited = row(1.0, -np.inf, -2.0, 1.25) / np.float32(0.5)
    expected = log_softmax(edited)
    assert drawn.token_id == 3
    assert drawn.logprob == pytest.approx(expected[3], abs=1e-6)
    assert [token for token, _ in drawn.top] == [3, 0, 2]
    assert [logprob for _, logprob in drawn.top] == pytest.approx(expected[[3, 0, 2]], abs=1e-6)
    assert drawn.chosen == pytest.approx(expected[[2, 3]], abs=1e-6)


def test_greedy_logprobs_are_at_temperature_one() -> None:
    logits = row(3, 1, 2)
    drawn = RowSampler(RowParams(top_logprobs=0)).sample(logits)
    assert drawn.logprob == pytest.approx(log_softmax(logits)[0], abs=1e-6)
    assert drawn.top == []


def test_masked_tokens_are_in_no_top_list() -> None:
    drawn = RowSampler(RowParams(top_logprobs=3, logprob_ids=[1])).sample(row(1, 2, 3), bitmask(1, 0, 1))
    assert [token for token, _ in drawn.top] == [2, 0]
    assert drawn.chosen is not None
    assert drawn.chosen[0] == -math.inf


def test_score_uses_plain_logits() -> None:
    logits = row(3, 1, 2)
    scored = score(logits, 1, 2)
    assert scored.logprob == pytest.approx(log_softmax(logits)[1], abs=1e-6)
    assert [token for token, _ in scored.top] == [0, 2]
    for broken in (row(1, math.nan), row(1, math.inf), row(-math.inf, -math.inf)):
        assert math.isnan(score(broken, 0, 1).logprob)


def test_allowed_reads_bits_from_the_low_end() -> None:
    mask = np.asarray([0x80000001, 0x2], np.uint32)
    assert np.flatnonzero(allowed(mask, 34)).tolist() == [0, 31, 33]


def test_step_output_pads_with_no_token() -> None:
    out = step_output(
        [Scored(3, -0.5, [(3, -0.5)]), Scored(NO_TOKEN)], [Scored(1, -1.0, [(0, -0.1), (1, -1.0)])], top=2, score_top=2
    )
    assert out.token_ids.tolist() == [3, NO_TOKEN]
    assert out.top_ids.tolist() == [[3, -1], [-1, -1]]
    assert out.id_logprobs == (None, None)
    assert out.score_top_ids.tolist() == [[0, 1]]
    empty = step_output([])
    assert (empty.token_ids.shape, empty.top_ids.shape, empty.score_top_ids.shape) == ((0,), (0, 0), (0, 0))
