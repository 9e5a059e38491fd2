"""Tokens are drawn as often as their probabilities say: chi-square, over seeds and along one request."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ramet.executor.base import F32, RowParams
from ramet.executor.sampling import RowSampler

DRAWS = 3000


def probabilities(logits: F32, params: RowParams) -> NDArray[np.float64]:
    """The distribution by the book, in float64: sort, cut, renormalise."""
    x = logits.astype(np.float64) / params.temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    order = np.argsort(-logits, kind="stable")
    rank = np.empty(len(p), np.int64)
    rank[order] = np.arange(len(p))
    before = np.empty(len(p))
    before[order] = np.cumsum(p[order]) - p[order]
    kept = (p >= params.min_p * p.max()) & (before < params.top_p)
    if params.top_k > 0:
        kept &= rank < params.top_k
    p = np.where(kept, p, 0)
    normalised: NDArray[np.float64] = p / p.sum()
    return normalised


def assert_drawn_as(expected: NDArray[np.float64], tokens: list[int]) -> None:
    """Chi-square with small cells pooled; a true sampler fails once in a million runs, and the seeds here are fixed."""
    counts = np.bincount(tokens, minlength=len(expected))
    assert not counts[expected == 0].any()
    wanted = expected * len(tokens)
    large = wanted >= 8
    cells = [(int(c), float(w)) for c, w in zip(counts[large], wanted[large], strict=True)]
    cells.append((int(counts[~large].sum()), float(wanted[~large].sum())))
    chi = sum((c - w) ** 2 / w for c, w in cells if w > 1e-9)
    degrees = max(len(cells) - 1, 1)
    # Wilson-Hilferty: the cube root of chi-square over its degrees is nearly normal; 4.9 deviations are 1 in 2 million.
    deviations = ((chi / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    assert deviations < 4.9, (deviations, cells)


CASES = [
    RowParams(temperature=1.0),
    RowParams(temperature=0.4),
    RowParams(temperature=3.0),
    RowParams(temperature=1.0, top_k=4),
    RowParams(temperature=1.0, top_p=0.8),
    RowParams(temperature=1.0, min_p=0.2),
    RowParams(temperature=1.5, top_k=9, top_p=0.9, min_p=0.05),
]


@pytest.mark.parametrize("params", CASES)
@pytest.mark.parametrize("seed", [11, 12])
def test_over_seeds(params: RowParams, seed: int) -> None:
    print(f"seed={seed}")
    logits = np.random.default_rng(seed).normal(scale=1.5, size=40).astype(np.float32)
    tokens = [RowSampler(dataclasses.replace(params, seed=s)).sample(logits).token_id for s in range(DRAWS)]
    assert_drawn_as(probabilities(logits, params), tokens)


@pytest.mark.parametrize("params", CASES)
@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_along_one_request(params: RowParams, seed: int) -> None:
    logits = np.random.default_rng(13).normal(scale=1.5, size=40).astype(np.float32)
    sampler = RowSampler(dataclasses.replace(params, seed=seed))
    tokens = [sampler.sample(logits).token_id for _ in range(DRAWS)]
    expected = probabilities(logits, params)
    assert_drawn_as(expected, tokens)
    pairs = [a * 40 + b for a, b in zip(tokens[::2], tokens[1::2], strict=True)]  # neighbours are independent
    assert_drawn_as(np.outer(expected, expected).ravel(), pairs)


def test_the_check_notices_a_biased_sampler() -> None:
    logits = np.random.default_rng(11).normal(scale=1.5, size=40).astype(np.float32)
    tokens = [RowSampler(RowParams(temperature=1.0, seed=s)).sample(logits).token_id for s in range(DRAWS)]
    with pytest.raises(AssertionError):
        assert_drawn_as(probabilities(logits, RowParams(temperature=1.3)), tokens)


logit = st.one_of(
    st.floats(-30, 30, width=32), st.sampled_from([-math.inf, -1e30, 1e30, 0.0, -0.0, 1e-40, 3.4028234663852886e38])
)


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(logit, min_size=1, max_size=70),
    temperature=st.sampled_from([1e-6, 0.3, 1.0, 4e6, 1e300]),
    top_k=st.integers(0, 80),
    top_p=st.sampled_from([1.0, 1 - 2**-53, 0.9, 0.5, 1e-300]),
    min_p=st.sampled_from([0.0, 1e-300, 0.1, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)
def test_what_is_drawn_is_in_every_set(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    z = np.asarray(logits, np.float32)
    params = RowParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, top_logprobs=80)
    drawn = RowSampler(params).sample(z)
    if not (z > -np.inf).any():
        assert drawn.token_id == -1
        return
    rank = np.argsort(-z, kind="stable").tolist().index(drawn.token_id)
    assert top_k == 0 or rank < top_k
    assert top_p > 1e-9 or rank == 0
    best = drawn.top[0][1]
    assert drawn.logprob >= best + (math.log(min_p) if min_p > 0 else -28.5) - 1e-4  # 2^-41 of the best is never drawn
    assert math.isclose(sum(math.exp(logprob) for _, logprob in drawn.top), 1, rel_tol=1e-4)
