"""Which unused prefix goes first: a policy is one comparable key per leaf, and the smallest key is evicted first."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ramet.cache.radix import Node

Policy = Callable[["Node"], Any]


def lru(node: Node) -> tuple[int, int]:
    """Least recently used; of leaves used by the same request the deeper one, whose prefix is the rarer."""
    return node.last_use, -node.depth


POLICIES: dict[str, Policy] = {"lru": lru}


class Leaves:
    """The evictable leaves in the policy's order.

    A heap whose entries go stale instead of being searched for: an entry counts only while its node is still an
    evictable leaf under the same key, and the heap is rebuilt once most of it is stale.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._heap: list[tuple[Any, int, Node]] = []
        self._tie = 0  # nodes do not compare
        self._live = 0

    def add(self, node: Node) -> None:
        """`node` is now an evictable leaf, or its key has changed."""
        if not node.listed:
            node.listed = True
            self._live += 1
        self._push(node)
        if len(self._heap) > 64 + 4 * self._live:
            self._heap, old = [], self._heap
            for candidate in {id(entry[2]): entry[2] for entry in old if entry[2].listed}.values():
                self._push(candidate)

    def discard(self, node: Node) -> None:
        """`node` is no longer an evictable leaf."""
        if node.listed:
            node.listed = False
            self._live -= 1

    def pop(self) -> Node:
        """Remove and return the leaf to evict next. There must be one."""
        while True:
            key, _, node = heapq.heappop(self._heap)
            if node.listed and key == self._policy(node):
                self.discard(node)
                return node

    def __len__(self) -> int:
        return self._live

    def _push(self, node: Node) -> None:
        self._tie += 1
        heapq.heappush(self._heap, (self._policy(node), self._tie, node))
