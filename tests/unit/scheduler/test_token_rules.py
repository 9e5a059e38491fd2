"""Rules of a request's own: lists of ids and a budget for thinking, alone and together with a grammar."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ramet.executor.scripted import Script
from ramet.scheduler.rules import TokenRules, id_mask
from ramet.types import ThinkingBudget
from support.simulation import VOCAB, Simulation, request, solo

LETTERS = [bytes([97 + i % 26]) for i in range(VOCAB)]
LETTERS[50], LETTERS[51], LETTERS[52], LETTERS[53] = b"<t>", b"</t>", b"\n", b"</"
BUDGET: dict[str, Any] = {"opening": "<t>", "closing": "</t>", "close_ids": (52, 51)}


def think(tokens: int, *, opened: bool = True) -> ThinkingBudget:
    return ThinkingBudget(tokens=tokens, opened=opened, **BUDGET)


def said(*tokens: int, **options: Any) -> Simulation:
    sim = Simulation(script=Script(tokens=tokens), **options)
    sim.scheduler.vocabulary = LETTERS
    return sim


def test_a_mask_has_the_bits_of_its_ids() -> None:
    mask = id_mask([0, 33, 100], VOCAB)
    assert np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist() == [0, 33, 100]


def test_disallowed_tokens_are_never_drawn() -> None:
    plain = solo(request("a", [1, 2], 6))
    sim = Simulation()
    sim.run(request("a", [1, 2], 6, banned_ids=(plain[2],)), request("b", [1, 2], 6))
    assert sim.tokens("a")[:2] == plain[:2]
    assert plain[2] not in sim.tokens("a")
    assert sim.tokens("b") == plain


def test_a08_only_allowed_tokens_are_drawn_and_a_contradiction_is_refused() -> None:
    sim = Simulation()
    sim.run(
        request("a", [1, 2], 9, temperature=1.0, sampling_seed=4, allowed_ids=(7, 8)),
        request("both", [1, 2], 9, allowed_ids=(7, 8), banned_ids=(8,)),
        request("none", [1, 2], 9, allowed_ids=(7, 8), banned_ids=(8, 7)),
    )
    assert set(sim.tokens("a")) <= {7, 8}
    assert set(sim.tokens("both")) == {7}
    assert (sim.finish("none").status_code, sim.finish("none").field) == (400, "allowed_ids")


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_thinking_is_closed_when_the_budget_is_spent(budget: int) -> None:
    sim = said(0, 1, 2, 3, 4, 5, 6)
    sim.run(request("a", [1], 7, thinking_budget=think(budget)))
    expected = [0, 1, 2, 3, 4, 5, 6]
    expected[budget : budget + 2] = [52, 51]
    assert sim.tokens("a") == expected


def test_thinking_that_ends_by_itself_is_left_alone_however_its_marker_is_cut() -> None:
    for closing in ([51], [53, 19, 20]):  # "</t>"; "</", "t", "u": no marker
        sim = said(0, *closing, 2, 3, 4, 5)
        sim.run(request("a", [1], 7, thinking_budget=think(4)))
        forced = 52 in sim.tokens("a")
        assert forced == (closing != [51])


def test_thinking_that_the_model_opens_itself_is_counted_from_there() -> None:
    sim = said(0, 1, 50, 2, 3, 4, 5)
    sim.run(request("a", [1], 7, thinking_budget=think(2, opened=False)), request("b", [1], 7))
    assert sim.tokens("a") == [0, 1, 50, 2, 3, 52, 51]
    assert sim.tokens("b") == [0, 1, 50, 2, 3, 4, 5]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("retract", [0, 1])
def test_rules_go_on_after_a_retraction_and_wait_for_the_last_token(depth: int, retract: int) -> None:
    sim = said(0, 1, 2, 3, 4, 5, 6, depth=depth, retract_every=retract)
    sim.run(request("a", [1], 7, thinking_budget=think(3)), request("b", [1], 7, banned_ids=(3,)))
    assert sim.tokens("a") == [0, 1, 2, 52, 51, 5, 6]
    assert 3 not in sim.tokens("b")


def test_the_forced_end_of_thinking_may_be_on_the_list_of_disallowed_tokens() -> None:
    rules = TokenRules.of(request("a", [1], banned_ids=(52,), thinking_budget=think(0)), VOCAB)
    assert rules is not None
    assert rules.mask.tolist() == id_mask([52], VOCAB).tolist()
    assert TokenRules.of(request("a", [1]), VOCAB) is None
