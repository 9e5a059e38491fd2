from __future__ import annotations

import numpy as np
import pytest

from ramet.cache.pages import PageAllocator
from ramet.errors import BrokenInvariant


def pages(*ids: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(ids, np.int32)


def test_every_page_is_given_out_once_and_the_last_freed_is_reused_first() -> None:
    allocator = PageAllocator(4)
    assert allocator.allocate(3).tolist() == [0, 1, 2]
    allocator.free(pages(1))
    assert allocator.allocate(1).tolist() == [1]
    assert allocator.free_count == 1
    assert allocator.free_pages().tolist() == [3]
    assert allocator.allocate(0).tolist() == []


def test_double_frees_and_overdrafts_are_our_bugs() -> None:
    allocator = PageAllocator(4)
    allocator.allocate(3)
    with pytest.raises(BrokenInvariant, match="2 pages wanted, 1 free"):
        allocator.allocate(2)
    with pytest.raises(BrokenInvariant, match="freed twice"):
        allocator.free(pages(3))
    with pytest.raises(BrokenInvariant, match="freed twice"):
        allocator.free(pages(0, 0))
    assert allocator.free_count == 1
    allocator.free(pages(0, 2))
    with pytest.raises(BrokenInvariant):
        allocator.free(pages(1, 2))
