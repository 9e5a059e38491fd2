"""Which tokens a request may draw by rules of its own: lists of ids, and a budget for thinking. Applied as a mask."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ramet.executor.base import U32
from ramet.types import EngineRequest, ThinkingBudget


def id_mask(ids: Iterable[int], vocab_size: int) -> U32:
    """[ceil(V/32)] with the bits of these ids."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    bits[list(ids)] = True
    mask: U32 = np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)
    return mask


class TokenRules:
    """One request's rules after the tokens it has accepted."""

    __slots__ = ("_allowed", "_thinking", "_vocab_size")

    def __init__(self, spec: EngineRequest, vocab_size: int) -> None:
        allowed = id_mask(spec.allowed_ids or range(vocab_size), vocab_size)
        self._allowed: U32 = allowed & ~id_mask(spec.banned_ids, vocab_size)
        self._thinking = _Thinking(spec.thinking_budget) if spec.thinking_budget is not None else None
        self._vocab_size = vocab_size

    @classmethod
    def of(cls, spec: EngineRequest, vocab_size: int) -> TokenRules | None:
        """The rules of a request; None if it has none."""
        given = spec.allowed_ids or spec.banned_ids or spec.thinking_budget is not None
        return cls(spec, vocab_size) if given else None

    @property
    def mask(self) -> U32:
        """What may be drawn next. The end of the thinking is written whatever the lists say."""
        forced = self._thinking.forced if self._thinking is not None else None
        return self._allowed if forced is None else id_mask([forced], self._vocab_size)

    def accept(self, token: int, data: bytes) -> None:
        """A token was drawn; `data` are its bytes."""
        if self._thinking is not None:
            self._thinking.accept(token, data)


class _Thinking:
    """Counts tokens of thinking and, when there are as many as allowed, has the thinking closed.

    Markers are recognised by their bytes, so it does not matter how the model cuts them into tokens.
    """

    def __init__(self, budget: ThinkingBudget) -> None:
        self._budget = budget
        self._markers = (budget.opening.encode(), budget.closing.encode())
        self._inside = budget.opened
        self._used = 0
        self._tail = b""
        self._to_force: list[int] = []
        self._close_if_spent()

    @property
    def forced(self) -> int | None:
        """The only token that may come next."""
        return self._to_force[0] if self._to_force else None

    def accept(self, token: int, data: bytes) -> None:
        if self._to_force:
            del self._to_force[0]
            self._inside = bool(self._to_force)
            return
        opening, closing = self._markers
        self._tail = (self._tail + data)[-(len(data) + max(map(len, self._markers)) - 1) :]
        if self._inside:
            self._used += 1
            if closing in self._tail:
                self._inside, self._tail = False, b""
        elif opening in self._tail:
            self._inside, self._tail = True, b""
        self._close_if_spent()

    def _close_if_spent(self) -> None:
        if self._inside and self._used >= self._budget.tokens:
            self._to_force = list(self._budget.close_ids)
