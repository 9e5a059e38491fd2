"""What a request owns in the cache, and the only code that allocates or frees pages and rows.

    positions   0 ............ shared ............ computed ...... allocated * page_size
    pages       [ tree's, pinned ][ the lease's own                                   ]
                 whole pages       written so far    not written yet

`shared` is a multiple of the page size. A match that ends inside a page gives the lease a private copy of that page's
head, made by the executor in the request's first step; until that step is submitted the source stays pinned. At every
step boundary `free + tree + leased = total`; `KvCache.check` proves it page by page.
"""

from __future__ import annotations

import numpy as np

from ramet.cache.eviction import POLICIES
from ramet.cache.pages import PageAllocator
from ramet.cache.radix import Match, Node, PrefixTree
from ramet.errors import BrokenInvariant
from ramet.executor.base import I32, Layout

NO_PAGES = np.zeros(0, np.int32)


class KvCache:
    """All pages and rows of one executor: free, in the prefix tree, or leased.

    What the executor must be told (page table changes, page copies) gathers here until `take_updates`.
    """

    def __init__(self, layout: Layout, *, keep_prefixes: bool = True, eviction: str = "lru") -> None:
        self.page_size = layout.page_size
        self.total_pages = layout.num_pages
        self.keep_prefixes = keep_prefixes
        self.tree = PrefixTree(layout.page_size, POLICIES[eviction])
        self.allocator = PageAllocator(layout.num_pages)
        self.leases: dict[int, Lease] = {}  # by row
        self._free_rows = list(range(layout.max_rows - 1, -1, -1))
        # One row's pages per line, as in the executor; a lease uses the first `allocated` of its line.
        self.table = np.zeros((layout.max_rows, -(-layout.max_row_tokens // layout.page_size)), np.int32)
        self._updates: list[tuple[int, int, int]] = []  # (row, index, page)
        self._copies: list[tuple[int, int, int]] = []  # (from page, to page, leading tokens)
        self._copy_sources: list[Node] = []  # pinned until the copies are submitted

    @property
    def free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def available_pages(self) -> int:
        """Pages that `extend` can still get: free ones, and those of prefixes that nobody uses."""
        return self.allocator.free_count + self.tree.evictable_pages

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def acquire(self, namespace: str, tokens: I32, limit: int, headroom_pages: int = 0) -> Lease | None:
        """A lease on a free row (there must be one), with pages for all `tokens`; `lease.reused` of them are computed.

        Reuse is the longest cached prefix of `tokens[:limit]`. None, and nothing done, unless `headroom_pages` stay
        available afterwards.
        """
        if not self._free_rows:
            raise BrokenInvariant("a lease is asked for without a free row")
        match = self.tree.match(namespace, tokens, limit) if self.keep_prefixes else None
        lease = Lease(self, self._free_rows[-1], match)
        need = self.pages_for(len(tokens)) - lease.allocated
        pages = None
        if match is not None and match.partial_node is not None:
            # Pinned before room is made: making it must not evict the page that is to be copied.
            self.tree.pin(match.partial_node)
            if need + headroom_pages <= self.available_pages:
                pages = self._allocate(need)
            else:
                self.tree.unpin(match.partial_node)
                match = None  # room is short: compute that page's head again
        if pages is None and need + headroom_pages <= self.available_pages:
            pages = self._allocate(need)
        if pages is None:
            lease._unpin()
            return None
        self._free_rows.pop()
        self.leases[lease.row] = lease
        self._point(lease.row, 0, lease.path_pages())
        if match is not None and match.partial_node is not None:
            self._copy_sources.append(match.partial_node)
            self._copies.append((match.partial_page, int(pages[0]), match.partial_tokens))
            lease.reused += match.partial_tokens
        self._point(lease.row, lease.allocated, pages)
        lease.allocated += len(pages)
        return lease

    def matched_tokens(self, namespace: str, tokens: I32, limit: int) -> int:
        """What `acquire` would reuse now; changes nothing."""
        return self.tree.matched_tokens(namespace, tokens, limit) if self.keep_prefixes else 0

    def take_updates(self) -> tuple[I32, I32]:
        """([U, 3] page updates, [C, 3] page copies) for the step about to be submitted."""
        updates = np.array(self._updates, np.int32).reshape(-1, 3)
        copies = np.array(self._copies, np.int32).reshape(-1, 3)
        self._updates, self._copies = [], []
        return updates, copies

    def submitted(self) -> None:
        """The step with the updates taken last is submitted: later steps may overwrite the copies' sources."""
        for node in self._copy_sources:
            self.tree.unpin(node)
        self._copy_sources = []

    def clear(self) -> int:
        """Forget all cached prefixes; returns how many pages that freed. There must be no leases."""
        pages = self.tree.clear()
        self.allocator.free(pages)
        return len(pages)

    def check(self) -> None:
        """Prove that every page is free, the tree's or one lease's, and that leases and tree agree on shared ones."""
        parts = [self.allocator.free_pages(), self.tree.check()]
        for lease in self.leases.values():
            parts.append(lease.own_pages)
            if not np.array_equal(self.table[lease.row, : lease.shared_pages], lease.path_pages()):
                raise BrokenInvariant(f"row {lease.row} does not point at the prefix that it pins")
        counts = np.bincount(np.concatenate(parts), minlength=self.total_pages)
        if len(counts) != self.total_pages or (counts != 1).any():
            sizes = [len(part) for part in parts]
            raise BrokenInvariant(
                f"pages free {sizes[0]} + tree {sizes[1]} + leased {sum(sizes[2:])}, total {self.total_pages}; "
                f"lost {np.flatnonzero(counts == 0).tolist()}, owned twice {np.flatnonzero(counts > 1).tolist()}"
            )
        if len(self.leases) + len(self._free_rows) != len(self.table):
            raise BrokenInvariant(f"{len(self.leases)} rows leased, {len(self._free_rows)} free of {len(self.table)}")

    # -- for Lease ----------------------------------------------------------------------------------------------------

    def _allocate(self, count: int) -> I32 | None:
        """`count` pages, evicting unused prefixes for what is missing; None (and nothing done) if there are too few."""
        missing = count - self.allocator.free_count
        if missing > 0:
            if missing > self.tree.evictable_pages:
                return None
            self.allocator.free(self.tree.evict(missing))
        return self.allocator.allocate(count)

    def _point(self, row: int, first: int, pages: I32) -> None:
        """Row `row` has `pages` from index `first` on; the executor hears of it with the next step."""
        self.table[row, first : first + len(pages)] = pages
        self._updates += [(row, first + i, page) for i, page in enumerate(pages.tolist())]

    def _drop_row(self, row: int) -> None:
        del self.leases[row]
        self._free_rows.append(row)
        self._updates = [update for update in self._updates if update[0] != row]


class Lease:
    """See the module. Made by `KvCache.acquire`; ends with `release`."""

    __slots__ = ("_cache", "_node", "_released", "allocated", "reused", "row", "shared_pages")

    def __init__(self, cache: KvCache, row: int, match: Match | None) -> None:
        self._cache = cache
        self._node = match.node if match is not None else None  # where the shared prefix ends; None: no prefix cache
        self._released = False
        self.row = row
        self.shared_pages = len(match.pages) if match is not None else 0
        self.allocated = self.shared_pages  # pages, shared ones included
        self.reused = self.shared_pages * cache.page_size  # tokens that were in the cache
        if self._node is not None:
            cache.tree.pin(self._node)

    @property
    def capacity(self) -> int:
        """Positions that have a page."""
        return self.allocated * self._cache.page_size

    @property
    def own_pages(self) -> I32:
        return self._cache.table[self.row, self.shared_pages : self.allocated]

    def path_pages(self) -> I32:
        """The shared prefix's pages, as the tree has them."""
        return NO_PAGES if self._node is None else self._cache.tree.path_pages(self._node)

    def extend(self, tokens: int) -> bool:
        """Give positions below `tokens` a page. False, and nothing done, if there are too few."""
        count = self._cache.pages_for(tokens) - self.allocated
        if count > 0:
            pages = self._cache._allocate(count)
            if pages is None:
                return False
            self._cache._point(self.row, self.allocated, pages)
            self.allocated += count
        return True

    def publish(self, tokens: I32) -> None:
        """Share `tokens`, whose keys and values are written: whole pages go to the tree, a rest stays private.

        Pages of tokens that the tree has by now are freed and the row is pointed at the tree's.
        """
        cache, size, first = self._cache, self._cache.page_size, self.shared_pages
        upto = len(tokens) // size
        if self._node is None or upto <= first:
            return
        own = cache.table[self.row, first:upto].copy()
        node, held = cache.tree.insert(self._node, tokens[first * size : upto * size], own)
        cache.tree.pin(node)
        cache.tree.unpin(self._node)
        self._node, self.shared_pages = node, upto
        double = np.flatnonzero(held != own)  # a run at the front: once the tree takes a page it takes the rest
        if len(double):
            cache.allocator.free(own[double])
            cache._point(self.row, first, held[double])

    def truncate(self, tokens: int) -> None:
        """Give back own pages that hold no position below `tokens`."""
        keep = max(self._cache.pages_for(tokens), self.shared_pages)
        if keep < self.allocated:
            self._cache.allocator.free(self._cache.table[self.row, keep : self.allocated])
            self.allocated = keep

    def release(self) -> None:
        """Give everything back. Once."""
        if self._released:
            raise BrokenInvariant(f"the lease of row {self.row} is released twice")
        self._released = True
        self._cache.allocator.free(self.own_pages)
        self._unpin()
        self._cache._drop_row(self.row)

    def _unpin(self) -> None:
        if self._node is not None:
            self._cache.tree.unpin(self._node)
