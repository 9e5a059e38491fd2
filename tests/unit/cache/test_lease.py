from __future__ import annotations

import numpy as np
import pytest

from ramet.cache.lease import KvCache, Lease
from ramet.errors import BrokenInvariant
from ramet.executor.base import I32, Layout


def make(pages: int = 8, rows: int = 3, *, keep_prefixes: bool = True) -> KvCache:
    layout = Layout(num_pages=pages, page_size=4, max_rows=rows, max_row_tokens=40, max_step_tokens=16)
    return KvCache(layout, keep_prefixes=keep_prefixes)


def ids(*tokens: int) -> I32:
    return np.array(tokens, np.int32)


def take(cache: KvCache, tokens: I32, headroom: int = 0) -> Lease:
    lease = cache.acquire("", tokens, len(tokens), headroom)
    assert lease is not None
    return lease


def test_a_page_is_copied_where_a_prefix_ends_inside_it() -> None:
    cache = make()
    first = take(cache, np.arange(8, dtype=np.int32))
    first.publish(np.arange(8, dtype=np.int32))
    first.release()
    cache.take_updates()
    second = take(cache, ids(0, 1, 2, 3, 4, 5, 90, 91))
    assert (second.reused, second.shared_pages, second.allocated) == (6, 1, 2)
    updates, copies = cache.take_updates()
    assert updates.tolist() == [[second.row, 0, 0], [second.row, 1, 2]]
    assert copies.tolist() == [[1, 2, 2]]
    assert cache.tree.pinned_pages == 2  # the source too, until the step is on its way
    cache.submitted()
    assert cache.tree.pinned_pages == 1
    assert cache.take_updates()[0].shape == (0, 3)
    cache.check()


def test_a_page_head_is_given_up_where_its_source_is_needed_for_room() -> None:
    cache = make(pages=2)
    first = take(cache, np.arange(8, dtype=np.int32))
    first.publish(np.arange(8, dtype=np.int32))
    first.release()
    second = take(cache, ids(0, 1, 2, 3, 4, 5, 90, 91))
    assert second.reused == 4
    assert cache.tree.pages == 1
    cache.check()


@pytest.mark.parametrize("tokens", [8, 6])
def test_without_room_nothing_is_done(tokens: int) -> None:
    cache = make(pages=4)
    first = take(cache, np.arange(8, dtype=np.int32))
    first.publish(np.arange(8, dtype=np.int32))
    prompt = ids(*range(tokens), *range(50, 62))
    assert cache.acquire("", prompt, len(prompt)) is None
    assert cache.acquire("", ids(70, 71), 1, headroom_pages=2) is None
    assert cache.free_rows == 2
    assert not first.extend(20)
    assert first.allocated == 2
    assert first.extend(5)
    cache.check()
    first.release()
    cache.check()
    assert cache.available_pages == 4


def test_pages_computed_twice_are_freed_and_the_row_repointed() -> None:
    cache = make()
    prompt = np.arange(10, dtype=np.int32)
    first, second = take(cache, prompt), take(cache, prompt)
    cache.take_updates()
    first.publish(prompt)
    second.publish(prompt[:6])
    second.publish(prompt[:7])
    second.publish(prompt)
    assert cache.take_updates()[0].tolist() == [[second.row, 0, 0], [second.row, 1, 1]]
    assert cache.tree.pages == 2
    assert second.own_pages.tolist() == [5]
    cache.check()


def test_updates_of_a_released_row_are_forgotten() -> None:
    cache = make()
    take(cache, ids(1, 2)).release()
    other = take(cache, ids(1, 2))
    assert cache.take_updates()[0].tolist() == [[other.row, 0, 0]]


def test_truncate_gives_back_own_pages_only() -> None:
    cache = make()
    prompt = np.arange(14, dtype=np.int32)
    lease = take(cache, prompt)
    lease.publish(prompt[:8])
    lease.truncate(13)
    assert lease.allocated == 4
    lease.truncate(9)
    assert lease.allocated == 3
    lease.truncate(0)
    assert (lease.allocated, lease.capacity) == (2, 8)
    cache.check()


def test_without_a_prefix_cache_nothing_stays() -> None:
    cache = make(keep_prefixes=False)
    lease = take(cache, ids(1, 2, 3, 4, 5))
    lease.publish(ids(1, 2, 3, 4, 5))
    assert cache.matched_tokens("", ids(1, 2, 3, 4), 4) == 0
    assert lease.path_pages().tolist() == []
    lease.release()
    cache.check()
    assert cache.allocator.free_count == 8


def test_rows_run_out_loudly() -> None:
    cache = make(rows=1)
    lease = take(cache, ids(1))
    with pytest.raises(BrokenInvariant):
        take(cache, ids(2))
    lease.release()
    with pytest.raises(BrokenInvariant, match="released twice"):
        lease.release()


def test_the_check_names_what_is_lost_and_what_is_owned_twice() -> None:
    cache = make()
    lease = take(cache, np.arange(8, dtype=np.int32))
    lease.allocated = 1
    with pytest.raises(BrokenInvariant, match=r"lost \[1\]"):
        cache.check()
    lease.allocated = 2
    cache.table[lease.row, 1] = 0
    with pytest.raises(BrokenInvariant, match=r"owned twice \[0\]"):
        cache.check()
    cache.table[lease.row, 1] = 1
    lease.publish(np.arange(8, dtype=np.int32))
    cache.table[lease.row, 0] = 7
    with pytest.raises(BrokenInvariant, match="does not point"):
        cache.check()
    cache.table[lease.row, 0] = 0
    cache._free_rows.pop()
    with pytest.raises(BrokenInvariant, match="rows leased"):
        cache.check()
