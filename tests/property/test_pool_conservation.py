"""Leases over a pool of a few pages: whatever is acquired, extended, published, truncated and released, every page is
free, the tree's or one lease's, and a row reads what was written for its tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ramet.cache.lease import KvCache, Lease
from ramet.errors import BrokenInvariant
from ramet.executor.base import Layout

PAGE, PAGES, ROWS = 4, 10, 3


class PoolMachine(RuleBasedStateMachine):
    """Pages hold, per slot, the whole prefix that ends there: as strict as a cache can be read."""

    def __init__(self) -> None:
        super().__init__()
        layout = Layout(num_pages=PAGES, page_size=PAGE, max_rows=ROWS, max_row_tokens=64, max_step_tokens=64)
        self.cache = KvCache(layout)
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}  # (page, slot) -> prefix written there
        self.table = np.full((ROWS, 16), -1, np.int32)
        self.leases: list[tuple[Lease, list[int]]] = []

    def write(self, lease: Lease, tokens: list[int], first: int) -> None:
        """What a step does: updates, copies, then the tokens from `first` on."""
        updates, copies = self.cache.take_updates()
        for row, index, page in updates.tolist():
            self.table[row, index] = page
        for source, target, count in copies.tolist():
            for slot in range(count):
                self.slots[target, slot] = self.slots[source, slot]
        for at in range(first, len(tokens)):
            self.slots[int(self.table[lease.row, at // PAGE]), at % PAGE] = tuple(tokens[: at + 1])
        self.cache.submitted()

    @precondition(lambda self: self.cache.free_rows)
    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=30),
        headroom=st.integers(0, 3),
        less=st.integers(1, 3),
    )
    def acquire(self, tokens: list[int], headroom: int, less: int) -> None:
        limit = max(len(tokens) - less, 0)
        array = np.array(tokens, np.int32)
        before = self.cache.available_pages
        would = self.cache.matched_tokens("", array, limit)
        lease = self.cache.acquire("", array, limit, headroom)
        if lease is None:
            assert self.cache.available_pages == before
            assert before < self.cache.pages_for(len(tokens)) + headroom
            return
        assert lease.reused in (would, would // PAGE * PAGE)
        assert lease.capacity >= len(tokens)
        assert self.cache.available_pages >= headroom
        self.leases.append((lease, tokens))
        self.write(lease, tokens, lease.reused)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def extend(self, data: st.DataObject, more: list[int]) -> None:
        lease, tokens = data.draw(st.sampled_from(self.leases))
        missing = self.cache.pages_for(len(tokens) + len(more)) - lease.allocated
        fits = missing <= self.cache.available_pages
        assert lease.extend(len(tokens) + len(more)) == fits
        if fits:
            first = len(tokens)
            tokens += more
            self.write(lease, tokens, first)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        lease, tokens = data.draw(st.sampled_from(self.leases))
        upto = data.draw(st.integers(0, len(tokens)))
        lease.publish(np.array(tokens[:upto], np.int32))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        lease, tokens = data.draw(st.sampled_from(self.leases))
        keep = data.draw(st.integers(lease.shared_pages * PAGE, len(tokens)))
        del tokens[keep:]
        lease.truncate(keep)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        lease.release()
        with pytest.raises(BrokenInvariant):
            lease.release()

    @precondition(lambda self: not self.leases)
    @rule()
    def clear(self) -> None:
        self.cache.clear()
        assert self.cache.allocator.free_count == PAGES

    @invariant()
    def every_page_has_one_owner(self) -> None:
        self.cache.check()

    @invariant()
    def rows_read_their_own_prefix(self) -> None:
        for lease, tokens in self.leases:
            for at in range(len(tokens)):
                page = int(self.cache.table[lease.row, at // PAGE])
                assert self.slots[page, at % PAGE] == tuple(tokens[: at + 1])


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
