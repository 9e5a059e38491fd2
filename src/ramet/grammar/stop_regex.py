"""`stop_regex`: patterns searched in the bytes of the tokens, at a bounded cost for each byte.

llguidance turns "anything, then the pattern" into a lazily built automaton, so no pattern backtracks: a byte costs
about 2 µs, and a pattern that needs more states than allowed ends its request. The price is a smaller language than
Python's: no look-around, no back-references, no `^`.

The match that ends first wins, however the text was cut into tokens. What matched stays in the text (a pattern may
match text that was shown long ago); what follows it in its last token is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ramet.errors import RequestError
from ramet.types import FinishReason

if TYPE_CHECKING:
    import llguidance

#: 4,000 states take about 8 MB; all requests with a pattern share them.
_LEXER_STATES, _LEXER_FUEL, _ITEMS = 4_000, 20_000, 2_000

#: Patterns that stay compiled.
_CACHED = 32


@dataclass(frozen=True, slots=True)
class RegexMatch:
    """`after_bytes`: from the match's end to the end of what was pushed."""

    pattern: str
    after_bytes: int


class RegexStops:
    """One request's place in its patterns. Raises `RequestError` for one that cannot be searched."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [(pattern, _compiled(pattern)) for pattern in patterns]
        self._places = [fresh.deep_copy() for _, fresh in self._patterns]

    def push(self, data: bytes) -> RegexMatch | None:
        """Go on with the bytes of one token; a match ends the request. Raises `RequestError` at a limit."""
        for at, byte in enumerate(data):
            for i, (pattern, fresh) in enumerate(self._patterns):
                place = self._places[i]
                if place.try_consume_tokens([byte]) != 1:
                    if place.is_error():
                        raise _refuse(pattern, "it needs too many states to be searched")
                    # Not UTF-8 here: no match reaches over that, so begin again.
                    place = self._places[i] = fresh.deep_copy()
                    place.try_consume_tokens([byte])
                if place.is_accepting():
                    return RegexMatch(pattern, len(data) - at - 1)
        return None


@lru_cache(maxsize=_CACHED)
def _compiled(pattern: str) -> llguidance.LLMatcher:
    """A matcher, at its start, of texts that end with a match."""
    import llguidance  # 60 ms, which only servers that meet one pay

    from ramet.grammar import lark

    try:
        grammar = f"start: /{lark.ANY_TEXT}(?:{llguidance.regex_to_lark(pattern)})/"
    except ValueError as error:
        raise _refuse(pattern, str(error)) from None
    limits = llguidance.LLParserLimits(
        step_lexer_fuel=_LEXER_FUEL, step_max_items=_ITEMS, max_lexer_states=_LEXER_STATES, verbose_errors=False
    )
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise _refuse(pattern, lark.reason(matcher.get_error()).split(" in regex /")[0])
    if matcher.is_accepting():
        raise _refuse(pattern, "it matches the empty text")
    return matcher


def check(patterns: Sequence[str]) -> None:
    """Raise `RequestError` for a pattern that cannot be searched."""
    for pattern in patterns:
        _compiled(pattern)


def refusal(patterns: Sequence[str]) -> FinishReason | None:
    """Why these patterns cannot be searched."""
    try:
        check(patterns)
    except RequestError as error:
        return too_complex(error)
    return None


def too_complex(error: RequestError) -> FinishReason:
    """The end of the request whose pattern raised `error`."""
    return FinishReason(type="abort", message=error.message, status_code=400, field="stop_regex")


def _refuse(pattern: str, why: str) -> RequestError:
    return RequestError(f"stop_regex {pattern!a}: {why}.", field="stop_regex")
