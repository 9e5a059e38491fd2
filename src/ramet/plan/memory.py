"""How long each value of a plan lives, and how much memory activations take at once."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.plan.plan import Plan
from ramet.plan.verify import num_inputs


@dataclass(frozen=True, slots=True)
class ActivationPeak:
    """Most floats alive at once, apart for the two kinds of rows; the two peaks may come at different operations."""

    floats_per_token: int
    floats_per_logits_row: int

    def bytes(self, tokens: int, logits_rows: int) -> int:
        """Enough for a step of this size."""
        return 4 * (tokens * self.floats_per_token + logits_rows * self.floats_per_logits_row)


def live_ranges(plan: Plan) -> tuple[tuple[int, int], ...]:
    """For each value (index of the op that gives it, index of the last op that reads it).

    -1 for the plan's inputs, `len(plan.ops)` for its outputs; a value that is never read ends where it begins.
    """
    begin = [-1] * len(plan.values)
    end = [-1] * len(plan.values)
    for i, op in enumerate(plan.ops):
        for value in op.outputs:
            begin[value] = end[value] = i
        for value in op.inputs:
            end[value] = i
    for value in plan.outputs.values():
        end[value] = len(plan.ops)
    return tuple(zip(begin, end, strict=True))


def last_uses(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """For each op, the values nobody needs after it."""
    freed: list[list[int]] = [[] for _ in plan.ops]
    for value, (_, end) in enumerate(live_ranges(plan)):
        if 0 <= end < len(plan.ops):
            freed[end].append(value)
    return tuple(tuple(values) for values in freed)


def activation_peak(plan: Plan) -> ActivationPeak:
    """The most that is alive during any operation: its operands, its results, and what waits for later ones."""
    alive = {"tokens": 0, "logits": 0}
    peak = dict(alive)
    ends = last_uses(plan)
    for spec in plan.values[: num_inputs(plan.values)]:
        alive[spec.rows] += spec.width
    for i, op in enumerate(plan.ops):
        for value in op.outputs:
            alive[plan.values[value].rows] += plan.values[value].width
        for rows, floats in alive.items():
            peak[rows] = max(peak[rows], floats)
        for value in ends[i]:
            alive[plan.values[value].rows] -= plan.values[value].width
    return ActivationPeak(peak["tokens"], peak["logits"])
