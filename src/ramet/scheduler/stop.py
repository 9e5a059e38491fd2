"""Stop strings, matched on the bytes of the tokens with an Aho-Corasick automaton.

The match that ends first wins; of those that end at the same byte the longest, so that most of it is cut from the text.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`cut_bytes`: from the stop string's start to the end of what was pushed. `after_bytes`: from its end."""

    string: str
    cut_bytes: int
    after_bytes: int


class StopAutomaton:
    """All prefixes of the strings as states; a state's edges are complete for the bytes that occur in any string."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        edges: list[dict[int, int]] = [{}]
        self.depth = [0]  # bytes of a string that a state has seen
        self.match: list[str | None] = [None]  # the longest string that ends in a state
        for string in strings:
            state = 0
            for byte in string.encode():
                if byte not in edges[state]:
                    edges[state][byte] = len(edges)
                    edges.append({})
                    self.depth.append(self.depth[state] + 1)
                    self.match.append(None)
                state = edges[state][byte]
            self.match[state] = string
        # Breadth first: a state inherits the edges and the match of its longest proper suffix that is a state.
        suffix = [0] * len(edges)
        queue = deque(edges[0].values())
        while queue:
            state = queue.popleft()
            for byte, target in edges[state].items():
                suffix[target] = edges[suffix[state]].get(byte, 0)
                queue.append(target)
            self.match[state] = self.match[state] or self.match[suffix[state]]
            edges[state] = {**edges[suffix[state]], **edges[state]}
        self.edges = edges


@lru_cache(maxsize=256)
def compile_stop(strings: tuple[str, ...]) -> StopAutomaton:
    """The automaton of these strings (none empty); requests with the same strings share it."""
    return StopAutomaton(strings)


class StopMatcher:
    """One request's place in an automaton."""

    __slots__ = ("_automaton", "_state")

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._automaton = compile_stop(strings)
        self._state = 0

    def push(self, data: bytes) -> StopMatch | None:
        """Go on with the bytes of one token; a match ends the request."""
        edges, match = self._automaton.edges, self._automaton.match
        state = self._state
        for at, byte in enumerate(data):
            state = edges[state].get(byte, 0)
            found = match[state]
            if found is not None:
                after = len(data) - at - 1
                return StopMatch(found, len(found.encode()) + after, after)
        self._state = state
        return None

    @property
    def held_bytes(self) -> int:
        """Trailing bytes that may be the start of a stop string."""
        return self._automaton.depth[self._state]
