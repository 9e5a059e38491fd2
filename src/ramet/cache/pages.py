"""The page allocator: which page ids are free. It knows nothing of what the pages hold or who has them."""

from __future__ import annotations

import numpy as np

from ramet.errors import BrokenInvariant
from ramet.executor.base import I32


class PageAllocator:
    """Free pages of ids 0 .. total - 1, as a stack (the page freed last is reused first: it is warm in the caches)."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free_count = total
        self._stack = np.arange(total - 1, -1, -1, dtype=np.int32)  # the free pages are the first free_count
        self._is_free = np.ones(total, np.bool_)

    def allocate(self, count: int) -> I32:
        """`count` pages, no longer free. The caller has made sure that there are as many."""
        left = self.free_count - count
        if left < 0:
            raise BrokenInvariant(f"{count} pages wanted, {self.free_count} free")
        pages: I32 = self._stack[left : self.free_count][::-1].copy()
        self.free_count = left
        self._is_free[pages] = False
        return pages

    def free(self, pages: I32) -> None:
        """Give pages back. A page that is free already, or given twice, is our bug and ends the engine."""
        count = len(pages)
        if self._is_free[pages].any() or (count > 1 and len(np.unique(pages)) != count):
            raise BrokenInvariant(f"a page was freed twice: {np.sort(pages).tolist()}")
        self._is_free[pages] = True
        self._stack[self.free_count : self.free_count + count] = pages
        self.free_count += count

    def free_pages(self) -> I32:
        """The free pages, for `check`."""
        return self._stack[: self.free_count]
