"""`stop_regex`: the first match ends the text, wherever the tokens were cut, and no pattern costs more than it may."""

from __future__ import annotations

import contextlib
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.errors import RequestError
from ramet.executor.scripted import Script
from ramet.grammar.stop_regex import RegexMatch, RegexStops
from support.simulation import VOCAB, Simulation, request

LETTERS = [bytes([97 + i % 26]) for i in range(VOCAB)]
LETTERS[30], LETTERS[31], LETTERS[32] = "–".encode(), b"ab", b"12\n\nfour"


def spelled(*tokens: int) -> Simulation:
    sim = Simulation(script=Script(tokens=tokens))
    sim.scheduler.vocabulary = LETTERS
    return sim


def text(sim: Simulation, rid: str) -> bytes:
    data = b"".join(LETTERS[token] for token in sim.tokens(rid))
    return data[: len(data) - sim.deltas[rid][-1].cut_bytes]


def end_of(pattern: str, *pieces: bytes) -> int | None:
    """Bytes up to the end of the match, over all pieces."""
    stops, taken = RegexStops([pattern]), 0
    for piece in pieces:
        taken += len(piece)
        match = stops.push(piece)
        if match is not None:
            return taken - match.after_bytes
    return None


def test_the_match_stays_and_what_follows_it_in_its_token_is_cut() -> None:
    sim = spelled(5, 32, 0)  # f, 12\n\nfour, a
    sim.run(request("a", [1], 9, stop_regex=(r"\d+\n\n",)))
    assert sim.finish("a").matched == r"\d+\n\n"
    assert text(sim, "a") == b"f12\n\n"
    assert sim.tokens("a") == [5, 32]
    assert all(delta.held_bytes == 0 for delta in sim.deltas["a"])


def test_what_ends_first_wins_among_strings_and_patterns() -> None:
    sim = spelled(31, 2)  # ab c
    sim.run(
        request("string", [1], 9, stop=("a",), stop_regex=("ab",)),
        request("pattern", [1], 9, stop=("ab",), stop_regex=("a",)),
        request("both", [1], 9, stop=("ab",), stop_regex=("[ab]b",)),
        request("second", [1], 9, stop_regex=("x", "bc")),
    )
    assert [sim.finish(rid).matched for rid in ("string", "pattern", "both", "second")] == ["a", "a", "ab", "bc"]
    assert [text(sim, rid) for rid in ("string", "pattern", "both", "second")] == [b"", b"a", b"", b"abc"]


def test_a_pattern_goes_before_an_end_token() -> None:
    sim = spelled(0, 1)
    sim.run(request("a", [1], 9, stop_regex=("[xb]",), stop_token_ids=(1,)))
    assert sim.finish("a").matched == "[xb]"


@settings(deadline=None)
@given(st.text("ab1é\n", max_size=30), st.lists(st.integers(0, 40), max_size=8))
def test_every_cut_of_the_bytes_gives_the_same_end(content: str, cuts: list[int]) -> None:
    data = content.encode()
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    pieces = [data[start:end] for start, end in pairwise(places)]
    for pattern in (r"a+b", r"é\n|1{3}", r"b(?s:.){2}1"):
        assert end_of(pattern, *pieces) == end_of(pattern, *(bytes([byte]) for byte in data))


def test_bytes_that_are_no_text_do_not_end_the_search() -> None:
    assert RegexStops(["xy"]).push(b"\xe2x\xffxyz") == RegexMatch("xy", 1)


@pytest.mark.parametrize("pattern", ["^a", r"\bword", "(?=x)y", r"(a)\1", "a*", "("])
def test_what_cannot_be_searched_is_refused_with_the_field(pattern: str) -> None:
    with pytest.raises(RequestError) as caught:
        RegexStops([pattern])
    assert caught.value.field == "stop_regex"
    sim = spelled(0)
    sim.run(request("a", [1], 3, stop_regex=(pattern,)), request("b", [1], 3))
    finish = sim.finish("a")
    assert (finish.type, finish.status_code, finish.field) == ("abort", 400, "stop_regex")
    assert len(sim.tokens("b")) == 3


@pytest.mark.parametrize("pattern", ["(a+)+!", "(?:[a-z]{1,200}){1,200}x", "(a{1000}){1000}", "(a|b)*a(a|b){200}c"])
def test_no_pattern_takes_the_loops_time(pattern: str) -> None:
    """Python's `re` would not come back from the first one."""
    stops = RegexStops([pattern])
    began_s = time.thread_time()
    with contextlib.suppress(RequestError):  # it may reach a limit
        for _ in range(2_000):
            assert stops.push(b"abaa") is None
    assert time.thread_time() - began_s < 2


def test_a_pattern_at_its_limit_ends_its_request_only() -> None:
    sim = Simulation(script=Script(tokens=(0, 1)), context=600, pages=300)
    sim.scheduler.vocabulary = LETTERS
    sim.run(
        request("a", [1], 500, stop_regex=("(?:[a-z]{1,201}){1,201}x",)),
        request("b", [1], 500),
    )
    finish = sim.finish("a")
    assert (finish.type, finish.status_code, finish.field) == ("abort", 400, "stop_regex")
    assert len(sim.tokens("b")) == 500
