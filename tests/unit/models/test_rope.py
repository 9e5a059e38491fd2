from __future__ import annotations

import math

import pytest

from ramet.errors import CheckpointError
from ramet.models.rope import Rope, inverse_frequencies


def test_plain() -> None:
    assert inverse_frequencies(Rope(10_000.0), 4) == (1.0, 0.01)
    assert Rope().magnitude == 1.0


def test_linear_stretches_everything() -> None:
    assert inverse_frequencies(Rope(10_000.0, "linear", 4.0), 4) == (0.25, 0.0025)


def test_llama3_keeps_fast_pairs_and_stretches_slow_ones() -> None:
    rope = Rope(500_000.0, "llama3", 8.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    plain = inverse_frequencies(Rope(500_000.0), 128)
    scaled = inverse_frequencies(rope, 128)
    turns = [8192 * f / (2 * math.pi) for f in plain]
    for f, s, n in zip(plain, scaled, turns, strict=True):
        if n >= 4:
            assert s == f
        elif n <= 1:
            assert s == f / 8
        else:
            assert f / 8 < s < f
    # Llama 3.1's own: pair 29 is the first that is mixed, 35 the first that is only stretched.
    assert [s == f for f, s in zip(plain, scaled, strict=True)].index(False) == 29
    assert [s == f / 8 for f, s in zip(plain, scaled, strict=True)].index(True) == 35


def test_yarn() -> None:
    # transformers 5.24: ROPE_INIT_FUNCTIONS["yarn"], head_dim 16, base 10000, factor 4, original context 64
    expected = [1.0, 0.2371708155, 0.05, 0.007905694656, 0.0025, 0.00079056947, 0.00025, 0.000079056947]
    rope = Rope(10_000.0, "yarn", 4.0, 64)
    assert inverse_frequencies(rope, 16) == pytest.approx(expected, rel=1e-6)
    assert rope.magnitude == pytest.approx(1.1386294361)
    assert Rope(kind="yarn", factor=4.0, original_context=64, attention_factor=0.5).magnitude == 0.5
    assert Rope(kind="yarn", factor=1.0, original_context=64).magnitude == 1.0


def test_yarn_with_one_step_between_kept_and_stretched() -> None:
    rope = Rope(10_000.0, "yarn", 4.0, 6, beta_fast=1.0, beta_slow=1.0)  # both ends fall on pair 0
    first, second = inverse_frequencies(rope, 4)
    assert (first, second) == (1.0, 0.0025)


def test_divisors_of_gguf() -> None:
    assert inverse_frequencies(Rope(10_000.0, divisors=(1.0, 8.0)), 4) == (1.0, 0.00125)
    with pytest.raises(CheckpointError, match="rope_freqs has 1 numbers where 2 pairs rotate"):
        inverse_frequencies(Rope(divisors=(1.0,)), 4)
