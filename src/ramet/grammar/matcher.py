"""A grammar's state in one request: which tokens may come next, and what those that came amount to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ramet.executor.base import U32
from ramet.grammar.tokens import Tokens

if TYPE_CHECKING:
    import llguidance

#: Processor time that following a grammar may take: at first, and for each token.
ALLOWANCE_S, TOKEN_ALLOWANCE_S = 0.5, 0.01


class Matcher:
    """Follows one generation. Not thread-safe; `copy` for another generation of the same request, or to look ahead.

    With `start_after` the grammar waits: until those token ids have come in a row, every token but the ends of text is
    allowed, and from the next token on the grammar rules.
    """

    __slots__ = ("_after", "_consumed", "_cpu_s", "_free", "_matcher", "_tokens", "_waits")

    def __init__(self, matcher: llguidance.LLMatcher, tokens: Tokens, start_after: Sequence[int] = ()) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self._after = list(start_after)
        self._waits = bool(self._after)
        self._free: list[int] = []  # tokens before the grammar's start
        self._consumed = 0  # tokens since
        self._cpu_s = 0.0

    def copy(self) -> Matcher:
        other = Matcher(self._matcher.deep_copy(), self._tokens, self._after)
        other._waits = self._waits
        other._free = list(self._free)
        other._consumed = self._consumed
        return other

    def fill_mask(self, out: U32) -> bool:
        """Write the row (contiguous, [ceil(V/32)]) of what may come next. False: nothing may."""
        if self._waits:
            out[:] = self._tokens.without_ends
            return True
        began_s = time.thread_time()
        words = self._tokens.fill_words
        target = out if words == len(out) else np.empty(words, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(target.ctypes.data, target.nbytes)
        if target is not out:
            out[:] = target[: len(out)]
        out[-1] &= self._tokens.last_word
        self._cpu_s += time.thread_time() - began_s
        return not self._matcher.is_error() and bool(out.any())

    def accept(self, token_id: int) -> bool:
        """Advance over a drawn token. False if the grammar does not allow it; then nothing has changed."""
        if self._waits:
            self._free.append(token_id)
            self._waits = self._free[-len(self._after) :] != self._after
            return True
        began_s = time.thread_time()
        taken = self._matcher.try_consume_tokens([token_id]) == 1
        self._cpu_s += time.thread_time() - began_s
        if not taken:
            return False
        self._consumed += 1
        return True

    @property
    def accepting(self) -> bool:
        """Whether what came so far is a whole text of the grammar."""
        return not self._waits and bool(self._matcher.is_accepting())

    @property
    def stopped(self) -> bool:
        """Whether the grammar has ended: the text is whole and nothing can follow."""
        return not self._waits and bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    @property
    def too_costly(self) -> bool:
        """Whether it has used more processor time than a grammar may, which the other requests wait for.

        Ordinary grammars use 0.01 to 0.5 ms a token; ambiguous ones can use a hundred and more.
        """
        return self._cpu_s > ALLOWANCE_S + TOKEN_ALLOWANCE_S * (self._consumed + len(self._free))

    @property
    def error(self) -> str:
        """Why the grammar cannot go on (a limit, or a state without an exit); empty while it can."""
        return str(self._matcher.get_error()).split("\n")[0]

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""
        ruled = min(count, self._consumed)
        if ruled and not self._matcher.rollback(ruled):
            raise ValueError(f"the grammar cannot take back {ruled} tokens: {self.error}")
        self._consumed -= ruled
        if count > ruled:
            del self._free[len(self._free) - (count - ruled) :]
            self._waits = True
