"""Stop strings under every way to cut the text into tokens, against a search of the whole text."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ramet.scheduler.stop import StopMatcher

STRINGS = st.lists(
    st.text("ab", min_size=1, max_size=4) | st.text("aé", min_size=1, max_size=3), min_size=1, max_size=4
)


def search(text: bytes, strings: list[str]) -> tuple[int, str] | None:
    """(end, string) of the match that ends first; of several that end there, the longest."""
    for end in range(1, len(text) + 1):
        ending = [string for string in strings if text[:end].endswith(string.encode())]
        if ending:
            return end, max(ending, key=lambda string: len(string.encode()))
    return None


def longest_start(text: bytes, strings: list[str]) -> int:
    """The longest end of `text` that a stop string begins with."""
    starts = {string.encode()[:n] for string in strings for n in range(1, len(string.encode()))}
    return max((len(start) for start in starts if text.endswith(start)), default=0)


@given(strings=STRINGS, text=st.text("abé", max_size=24), cuts=st.lists(st.integers(0, 40), max_size=12))
@example(strings=["aba", "b"], text="abaa", cuts=[1])  # a string that ends inside another
@example(strings=["ab", "b"], text="ab", cuts=[])  # two that end together
@example(strings=["aab"], text="aaab", cuts=[1, 2, 3])  # a start that goes on one byte later
@settings(deadline=None)
def test_matches_as_a_search_does(strings: list[str], text: str, cuts: list[int]) -> None:
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    expected = search(data, strings)
    matcher, pushed = StopMatcher(tuple(strings)), 0
    for first, last in itertools.pairwise(edges):
        pushed = last
        match = matcher.push(data[first:last])
        if match is not None:
            assert expected is not None
            end, string = expected
            assert first < end <= last
            assert match.string == string
            assert match.after_bytes == pushed - end
            assert match.cut_bytes == pushed - end + len(string.encode())
            return
        assert matcher.held_bytes == longest_start(data[:last], strings)
    assert expected is None
