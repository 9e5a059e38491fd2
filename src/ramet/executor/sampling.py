"""From a row's logits to its next token: what every executor follows, `native/ops/sample.cc` bit for bit.

Probabilities are integers here. A token weighs `exp((logit - max) / temperature)` in fixed point with 40 fraction bits,
so the best token weighs 2^40 and one that is 2^41 times less likely nothing. Integer sums do not depend on their order:
top-p, min-p and the draw come out the same in numpy, in any vector width and on any number of threads.

The exponential is a float32 polynomial without fused multiply-add, the same operations in the same order everywhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ramet.executor.base import F32, I32, NO_TOKEN, U32, RowParams, StepOutput

#: Temperatures below this are greedy.
GREEDY_TEMPERATURE = 1e-6

#: Fraction bits of a weight. 2^20 tokens of weight 1 sum to 2^60, so totals fit 64 bits with room.
WEIGHT_BITS = 40

_FLOAT_MAX = np.finfo(np.float32).max
_FLOAT_TINY = np.finfo(np.float32).tiny
_LOG2_E = np.float32(1.44269504)
_LN2_HIGH = np.float32(0.693359375)  # ten bits: its product with a whole number up to 2^14 is exact
_LN2_LOW = np.float32(-2.12194440e-4)
_TAYLOR = [np.float32(1 / math.factorial(k)) for k in range(8)]  # error for |r| <= ln(2)/2: 5e-9, a tenth of an ulp

_MASK64 = (1 << 64) - 1
_GOLDEN64 = 0x9E3779B97F4A7C15


def weights(logits: F32, best: np.float32, inverse_temperature: np.float32) -> NDArray[np.int64]:
    """`round(2^40 · exp((logits - best) · inverse_temperature))`, elementwise, as int64 in [0, 2^40]."""
    x = np.maximum((logits - best) * inverse_temperature, np.float32(-40))  # e^-40 · 2^40 already rounds to 0
    n = np.rint(x * _LOG2_E)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = np.full_like(r, _TAYLOR[7])
    for coefficient in reversed(_TAYLOR[:7]):
        p = p * r + coefficient
    rounded: NDArray[np.int64] = np.rint(np.ldexp(p.astype(np.float64), n.astype(np.int32) + WEIGHT_BITS)).astype(
        np.int64
    )
    return rounded


def random64(seed: int, index: int) -> int:
    """Random bits of generated token `index` (from 0): output `index` of SplitMix64 started at mix(seed + golden)."""
    return _mix64((_mix64((seed + _GOLDEN64) & _MASK64) + _GOLDEN64 * (index + 1)) & _MASK64)


def _mix64(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    return z ^ (z >> 31)


@dataclass(frozen=True, slots=True)
class Scored:
    """A token with its logprob, the most likely tokens at its place and their logprobs, best first."""

    token_id: int  # NO_TOKEN where nothing could be drawn; the target where a prompt token is scored
    logprob: float = math.nan  # NaN where not asked, or where there are no probabilities
    top: list[tuple[int, float]] = field(default_factory=list)  # finite logprobs only: may be shorter than asked
    chosen: F32 | None = None  # of `RowParams.logprob_ids`


class RowSampler:
    """Sampling state of one row: parameters, counts of generated tokens, how many there are, the last one."""

    def __init__(self, params: RowParams) -> None:
        self.params = params
        self.counts = Counter(params.generated)
        self.num_generated = len(params.generated)
        self.last_token = params.generated[-1] if params.generated else NO_TOKEN

    def sample(self, logits: F32, mask: U32 | None = None) -> Scored:
        """Draw the next token from `logits` [V] and count it as generated.

        `mask` [ceil(V/32)]: bit `i % 32` of word `i // 32` is set where the grammar allows token `i`. `NO_TOKEN`, and
        nothing counted, if a logit is NaN or +inf or if no token is left to draw.
        """
        if not bool(np.all(logits <= _FLOAT_MAX)):  # false for NaN too
            return Scored(NO_TOKEN)
        params = self.params
        logits = self._edit(logits, mask)
        best = int(np.argmax(logits))  # the lowest id among equals
        if logits[best] == -np.inf:
            return Scored(NO_TOKEN)
        greedy = params.temperature < GREEDY_TEMPERATURE
        distribution = _Distribution(logits, logits[best], 1.0 if greedy else params.temperature)
        token = best if greedy else distribution.draw(params, random64(params.seed, self.num_generated))
        self.counts[token] += 1
        self.num_generated += 1
        self.last_token = token
        if params.top_logprobs < 0:
            return Scored(token)
        return distribution.scored(token, params.top_logprobs, params.logprob_ids)

    def _edit(self, logits: F32, mask: U32 | None) -> F32:
        """Penalties, bias, suppressed ids, grammar mask: in this order, so that no bias revives a token ruled out."""
        params = self.params
        logits = logits.astype(np.float32, copy=True)
        repetition = np.float32(params.repetition_penalty)
        with np.errstate(over="ignore"):
            if params.frequency_penalty or params.presence_penalty or repetition != 1:
                for token, count in self.counts.items():
                    z = logits[token] - np.float32(params.frequency_penalty * count + params.presence_penalty)
                    logits[token] = min(z / repetition if z > 0 else z * repetition, _FLOAT_MAX)
            for token, bias in zip(params.bias_ids, params.bias_values, strict=True):
                logits[token] = min(logits[token] + np.float32(np.clip(bias, -_FLOAT_MAX, _FLOAT_MAX)), _FLOAT_MAX)
        if self.num_generated < params.suppress_until:
            logits[np.asarray(params.suppress_ids, np.int64)] = -np.inf
        if mask is not None:
            logits[~allowed(mask, len(logits))] = -np.inf
        return logits


def score(logits: F32, target: int, top_n: int, chosen_ids: Sequence[int] = ()) -> Scored:
    """Log-softmax of the plain `logits` [V]: the logprobs of `target`, of the `top_n` best and of `chosen_ids`.

    NaN and no tokens if a logit is NaN or +inf or if none is finite.
    """
    best = logits.max()
    if not bool(np.all(logits <= _FLOAT_MAX)) or best == -np.inf:
        return Scored(target)
    return _Distribution(logits, best, 1.0).scored(target, top_n, chosen_ids)


def allowed(mask: U32, vocab_size: int) -> NDArray[np.bool_]:
    """A grammar's bitmask [ceil(V/32)] as [V] booleans."""
    return np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")[:vocab_size].astype(np.bool_)


class _Distribution:
    """One row's logits [V], its largest logit `best`, its temperature, and the weights that follow."""

    def __init__(self, logits: F32, best: np.float32, temperature: float) -> None:
        self.logits = logits
        self.best = best
        # The floor keeps -inf · inverse_temperature from being NaN at temperatures beyond 1e38.
        self.inverse_temperature = max(np.float32(1.0 / temperature), _FLOAT_TINY)
        with np.errstate(over="ignore"):  # a difference beyond float32 is -inf, whose weight is 0
            self.weights = weights(logits, best, self.inverse_temperature)
        self.total = int(self.weights.sum())

    def draw(self, params: RowParams, random: int) -> int:
        """The first token, in id order over the kept set, whose running weight exceeds `random · total / 2^64`."""
        kept = np.where(self._kept(params), self.weights, 0)
        running = np.cumsum(kept)
        return int(np.searchsorted(running, (random * int(running[-1])) >> 64, side="right"))

    def _kept(self, params: RowParams) -> NDArray[np.bool_]:
        """top-k, top-p and min-p, each a set of this same distribution, intersected. The best token is in all."""
        kept = self.weights >= params.min_p * 2.0**WEIGHT_BITS
        limited_k = 0 < params.top_k < len(kept)
        if limited_k or params.top_p < 1:
            order = np.argsort(-self.logits, kind="stable")  # falling logit, then rising id
            if limited_k:
                kept[order[params.top_k :]] = False
            if params.top_p < 1:
                wanted = int(params.top_p * float(self.total))
                before = np.cumsum(self.weights[order]) - self.weights[order]
                kept[order[1:][before[1:] >= wanted]] = False  # the token that reaches the mass stays
        return kept

    def scored(self, token: int, top_n: int, chosen_ids: Sequence[int] = ()) -> Scored:
        order = np.argsort(-self.logits, kind="stable")[:top_n] if top_n else np.zeros(0, np.int64)
        top_ids = order[self.logits[order] > -np.inf]
        return Scored(
            token,
            float(self._logprobs(np.asarray([token]))[0]),
            list(zip(top_ids.tolist(), self._logprobs(top_ids).tolist(), strict=True)),
            self._logprobs(np.asarray(chosen_ids, np.int64)) if chosen_ids else None,
        )

    def _logprobs(self, ids: NDArray[np.int64]) -> F32:
        with np.errstate(over="ignore"):
            x = (self.logits[ids] - self.best) * self.inverse_temperature
        logprobs: F32 = (x.astype(np.float64) - math.log(self.total * 2.0**-WEIGHT_BITS)).astype(np.float32)
        return logprobs


def step_output(
    sampled: Sequence[Scored], scored: Sequence[Scored] = (), *, top: int = 0, score_top: int = 0
) -> StepOutput:
    """The arrays of a `StepOutput` from the S sampled and L scored tokens of a step; `top`: largest `top_logprobs`."""
    top_ids, top_logprobs = _columns(sampled, top)
    score_top_ids, score_top_logprobs = _columns(scored, score_top)
    return StepOutput(
        token_ids=np.asarray([s.token_id for s in sampled], np.int32),
        logprobs=np.asarray([s.logprob for s in sampled], np.float32),
        top_ids=top_ids,
        top_logprobs=top_logprobs,
        id_logprobs=tuple(s.chosen for s in sampled),
        score_logprobs=np.asarray([s.logprob for s in scored], np.float32),
        score_top_ids=score_top_ids,
        score_top_logprobs=score_top_logprobs,
        score_id_logprobs=tuple(s.chosen for s in scored),
    )


def _columns(tokens: Sequence[Scored], width: int) -> tuple[I32, F32]:
    ids = np.full((len(tokens), width), -1, np.int32)
    logprobs = np.full((len(tokens), width), np.nan, np.float32)
    for i, token in enumerate(tokens):
        for j, (token_id, logprob) in enumerate(token.top):
            ids[i, j], logprobs[i, j] = token_id, logprob
    return ids, logprobs
