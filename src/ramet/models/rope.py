"""Rotary embeddings: from what a checkpoint's config says to the inverse frequency of each pair."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ramet.errors import CheckpointError

RopeKind = Literal["none", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class Rope:
    """How positions rotate queries and keys. Pair i of d / 2 has the inverse frequency base^(-2i / d), then scaled."""

    base: float = 10_000.0
    kind: RopeKind = "none"
    factor: float = 1.0  # context is stretched this many times
    original_context: int = 0  # tokens; llama3 and yarn: what the unscaled frequencies were trained for
    low_freq_factor: float = 1.0  # llama3: pairs turning fewer times than this over the original context are stretched
    high_freq_factor: float = 4.0  # llama3: pairs turning more often are kept
    beta_fast: float = 32.0  # yarn: as high_freq_factor, in turns
    beta_slow: float = 1.0  # yarn: as low_freq_factor, in turns
    attention_factor: float | None = None  # yarn: multiplies cos and sin; None: 1 + ln(factor) / 10
    divisors: tuple[float, ...] | None = None  # one per pair (GGUF's rope_freqs), in place of llama3's formula

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


def inverse_frequencies(rope: Rope, rotary_dim: int) -> tuple[float, ...]:
    """Radians per position of each of the rotary_dim / 2 pairs, in float64.

    Raises:
        CheckpointError: `divisors` has another length.
    """
    pairs = rotary_dim // 2
    plain = [rope.base ** (-2 * i / rotary_dim) for i in range(pairs)]
    if rope.divisors is not None:
        if len(rope.divisors) != pairs:
            raise CheckpointError(f"rope_freqs has {len(rope.divisors)} numbers where {pairs} pairs rotate")
        plain = [f / d for f, d in zip(plain, rope.divisors, strict=True)]
    if rope.kind == "linear":
        return tuple(f / rope.factor for f in plain)
    if rope.kind == "llama3":
        return tuple(_llama3(rope, f) for f in plain)
    if rope.kind == "yarn":
        return _yarn(rope, plain, rotary_dim)
    return tuple(plain)


def _llama3(rope: Rope, frequency: float) -> float:
    """Kept where fast, divided by `factor` where slow, mixed in between by how often the pair turns."""
    turns = rope.original_context * frequency / (2 * math.pi)
    keep = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    keep = min(max(keep, 0.0), 1.0)
    return keep * frequency + (1 - keep) * frequency / rope.factor


def _yarn(rope: Rope, plain: list[float], rotary_dim: int) -> tuple[float, ...]:
    """As llama3, but mixed linearly in the pair's index between the pairs that turn beta_fast and beta_slow times."""

    def index(turns: float) -> float:
        return rotary_dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low = max(math.floor(index(rope.beta_fast)), 0)
    high = float(min(math.ceil(index(rope.beta_slow)), rotary_dim - 1))
    if high == low:
        high += 0.001  # one step instead of a division by zero
    stretch = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(len(plain))]
    return tuple(s * f / rope.factor + (1 - s) * f for s, f in zip(stretch, plain, strict=True))
