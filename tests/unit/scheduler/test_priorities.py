"""Priorities: cases.md H20."""

from __future__ import annotations

from typing import Any

import pytest

from support.simulation import Simulation, request, solo

ON: dict[str, Any] = {"enable_priority_scheduling": True}


def test_without_the_flag_a_priority_changes_nothing() -> None:
    sim = Simulation(rows=1)
    sim.run(request("low", [1], 3), request("high", [2], 3, priority=9))
    assert list(sim.deltas) == ["low", "high"]


def test_higher_priorities_start_first_and_equal_ones_by_arrival() -> None:
    sim = Simulation(rows=1, **ON)
    specs = [
        request(rid, [at], 1, priority=rank) for at, (rid, rank) in enumerate({"a": 1, "b": 5, "c": 1, "d": 5}.items())
    ]
    sim.run(*specs)
    assert list(sim.deltas) == ["b", "d", "a", "c"]
    sim = Simulation(rows=1, schedule_low_priority_values_first=True, **ON)
    sim.run(*specs)
    assert list(sim.deltas) == ["a", "c", "b", "d"]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("chunk", [4, 32])
@pytest.mark.parametrize(("rows", "pages"), [(2, 64), (8, 12)])
def test_h20_a_higher_one_takes_row_and_pages_and_who_gave_way_goes_on_as_alone(
    rows: int, pages: int, chunk: int, depth: int
) -> None:
    """Short of rows, and short of pages: each low request needs 5 of 12, the high one 6."""
    sim = Simulation(rows=rows, pages=pages, chunk=chunk, depth=depth, **ON)
    lows = [request(f"low{i}", [i, i, i, i], 16) for i in range(4)]
    sim.submit(*lows)
    sim.step(6)
    high = [request(f"high{i}", [50 + i] * 12, 10, priority=3) for i in range(2)]
    sim.submit(*high)
    sim.step(14 + 2 * depth)
    assert len(sim.tokens("high0")) >= 8
    sim.run()
    for spec in [*lows, *high]:
        assert sim.tokens(spec.rid) == solo(spec)
        assert sim.finish(spec.rid).type == "length"
    assert all(sim.deltas[spec.rid][-1].num_retractions == 0 for spec in high)
    assert any(sim.deltas[spec.rid][-1].num_retractions for spec in lows)


def test_nobody_of_the_same_priority_gives_way() -> None:
    sim = Simulation(rows=1, **ON)
    sim.submit(request("a", [1], 20, priority=2))
    sim.step(3)
    sim.run(request("b", [2], 3, priority=2), request("c", [3], 3, priority=1))
    assert sim.deltas["a"][-1].num_retractions == 0
    assert list(sim.deltas) == ["a", "b", "c"]
