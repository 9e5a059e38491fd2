"""The prefix cache's tree: token sequences that have their keys and values in pages, one radix tree per namespace.

Only whole pages live in nodes, and a node is split at page boundaries only. A match may still end inside a page: it
then names the page whose leading tokens agree, and the lease copies that head.

    root --[t0 .. t31 | pages 4, 9]--+--[t32 .. t47 | page 2]
                                     +--[u32 .. u63 | pages 7, 1]     t32 .. t39 == u32 .. u39 is possible (pages of 16)

A node's children are found by the bytes of their first page (big-endian, so that the order of the bytes is the order
of the tokens): equal bytes are a whole-page match, and the longest partial match is a neighbour in sorted order.

Pins: a lease pins the node where its shared prefix ends, and with it the path to the root. What is not pinned can be
evicted, from the leaves up and from a leaf's end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from ramet.cache.eviction import Leaves, Policy
from ramet.errors import BrokenInvariant
from ramet.executor.base import I32


class Node:
    """A run of whole pages. `depth` counts the tokens from the root through this node."""

    __slots__ = ("children", "depth", "last_use", "listed", "namespace", "order", "pages", "parent", "pins", "tokens")

    def __init__(self, namespace: str, parent: Node | None, tokens: I32, pages: I32) -> None:
        self.namespace = namespace
        self.parent = parent
        self.tokens = tokens  # [len(pages) * page_size]
        self.pages = pages
        self.depth: int = (parent.depth if parent else 0) + len(tokens)
        self.children: dict[bytes, Node] = {}
        self.order: list[bytes] = []  # the keys of `children`, sorted
        self.pins = 0  # leases whose shared prefix ends here or below
        self.last_use = 0  # of the tree's logical clock
        self.listed = False  # among the evictable leaves


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known prefix: whole pages down to `node`, then `partial_tokens` leading tokens of `partial_page`."""

    node: Node
    pages: I32
    partial_node: Node | None = None
    partial_page: int = -1
    partial_tokens: int = 0


class PrefixTree:
    """All namespaces of one page pool. `pages` counts what nodes own, `pinned_pages` what of it cannot be evicted."""

    def __init__(self, page_size: int, policy: Policy) -> None:
        self.page_size = page_size
        self.pages = 0
        self.pinned_pages = 0
        self._roots: dict[str, Node] = {}
        self._leaves = Leaves(policy)
        self._clock = 0

    # -- reading ----------------------------------------------------------------------------------------------------

    def match(self, namespace: str, tokens: I32, limit: int) -> Match:
        """The longest prefix of `tokens[:limit]` in the tree. Splits a node where whole pages end inside it."""
        node, inside = self._walk(namespace, tokens[:limit])
        node = node or self._new_root(namespace)
        if inside:
            child, pages = inside
            node = self._split(child, pages)
        return Match(node, self.path_pages(node), *self._partial(node, tokens[:limit]))

    def matched_tokens(self, namespace: str, tokens: I32, limit: int) -> int:
        """How much `match` would find, to the token, without touching anything."""
        node, inside = self._walk(namespace, tokens[:limit])
        if node is None:
            return 0
        if not inside:
            return node.depth + self._partial(node, tokens[:limit])[2]
        child, pages = inside
        at = pages * self.page_size
        rest = tokens[node.depth + at : limit]
        return node.depth + at + _common(child.tokens[at : at + self.page_size], rest)

    def _walk(self, namespace: str, tokens: I32) -> tuple[Node | None, tuple[Node, int] | None]:
        """(deepest node matched to its end, (its child, pages matched of it) if the match goes on inside one)."""
        node = self._roots.get(namespace)
        if node is None:
            return None, None
        size = self.page_size
        while True:
            at = node.depth
            child = node.children.get(_key(tokens[at : at + size])) if len(tokens) - at >= size else None
            if child is None:
                return node, None
            pages = _common(child.tokens, tokens[at:]) // size
            if pages < len(child.pages):
                return node, (child, pages)
            node = child

    def _partial(self, node: Node, tokens: I32) -> tuple[Node | None, int, int]:
        """(child, its first page, leading tokens of it that follow in `tokens`) of the child that shares most."""
        key = _key(tokens[node.depth : node.depth + self.page_size])
        best, shared = None, 0
        place = bisect_left(node.order, key)
        for neighbour in node.order[max(place - 1, 0) : place + 1]:
            common = _common_bytes(neighbour, key)
            if common > shared:
                best, shared = neighbour, common
        if best is None:
            return None, -1, 0
        child = node.children[best]
        return child, int(child.pages[0]), shared

    @staticmethod
    def path_pages(node: Node) -> I32:
        """The pages from the root through `node`."""
        parts = []
        step: Node | None = node
        while step is not None:
            parts.append(step.pages)
            step = step.parent
        return np.concatenate(parts[::-1])

    # -- writing ----------------------------------------------------------------------------------------------------

    def insert(self, start: Node, tokens: I32, pages: I32) -> tuple[Node, I32]:
        """Add whole pages of `tokens` below `start`; returns (node where they end, the pages that hold them now).

        Where a returned page differs from the given one the tree had those tokens already: the given page stays the
        caller's. The others are the tree's from now on.
        """
        node, done, held = start, 0, []
        self._clock += 1
        while done < len(pages):
            rest = tokens[done * self.page_size :]
            child = node.children.get(_key(rest[: self.page_size]))
            if child is None:
                node = self._attach(Node(start.namespace, node, rest.copy(), pages[done:].copy()))
                held.append(node.pages)
                break
            common = _common(child.tokens, rest) // self.page_size
            node = child if common == len(child.pages) else self._split(child, common)
            held.append(node.pages)
            done += common
        self._touch(node)
        return node, np.concatenate(held) if held else pages[:0]

    def pin(self, node: Node) -> None:
        """Keep `node` and its path until `unpin`; they count as used now."""
        self._clock += 1
        self._touch(node)
        step: Node | None = node
        while step is not None:
            step.pins += 1
            if step.pins == 1:
                self.pinned_pages += len(step.pages)
                self._leaves.discard(step)
            step = step.parent

    def unpin(self, node: Node) -> None:
        step: Node | None = node
        while step is not None:
            step.pins -= 1
            if step.pins == 0:
                self.pinned_pages -= len(step.pages)
                self._list(step)
            step = step.parent

    def evict(self, count: int) -> I32:
        """Take `count` pages out of the tree; so many must be evictable. A leaf loses its last pages first."""
        taken = []
        while count:
            node = self._leaves.pop()
            cut = min(count, len(node.pages))
            count -= cut
            self.pages -= cut
            keep = len(node.pages) - cut
            taken.append(node.pages[keep:])
            if keep:
                node.pages = node.pages[:keep]
                node.tokens = node.tokens[: keep * self.page_size]
                node.depth -= cut * self.page_size
                self._list(node)
            else:
                self._detach(node)
        return np.concatenate(taken)

    def clear(self) -> I32:
        """Forget everything; nothing may be pinned. Returns the pages."""
        if any(root.pins for root in self._roots.values()):
            raise BrokenInvariant("the prefix tree is cleared while requests pin it")
        return self.evict(self.pages) if self.pages else np.zeros(0, np.int32)

    @property
    def evictable_pages(self) -> int:
        return self.pages - self.pinned_pages

    # -- structure --------------------------------------------------------------------------------------------------

    def _new_root(self, namespace: str) -> Node:
        root = self._roots[namespace] = Node(namespace, None, np.zeros(0, np.int32), np.zeros(0, np.int32))
        return root

    def _attach(self, node: Node) -> Node:
        parent = node.parent
        assert parent is not None
        key = _key(node.tokens[: self.page_size])
        parent.children[key] = node
        insort(parent.order, key)
        self.pages += len(node.pages)
        self._leaves.discard(parent)
        self._list(node)
        return node

    def _detach(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        key = _key(node.tokens[: self.page_size])
        del parent.children[key]
        del parent.order[bisect_left(parent.order, key)]
        self._list(parent)

    def _split(self, node: Node, pages: int) -> Node:
        """Move the first `pages` pages of `node` into a new parent of it and return that. Pins on `node` stay there."""
        parent = node.parent
        assert parent is not None
        at = pages * self.page_size
        upper = Node(node.namespace, parent, node.tokens[:at], node.pages[:pages])
        upper.pins, upper.last_use = node.pins, node.last_use
        parent.children[_key(node.tokens[: self.page_size])] = upper
        node.parent, node.tokens, node.pages = upper, node.tokens[at:], node.pages[pages:]
        key = _key(node.tokens[: self.page_size])
        upper.children[key] = node
        upper.order.append(key)
        return upper

    def _list(self, node: Node) -> None:
        """`node` may have become an evictable leaf; an empty root goes at once."""
        if node.pins or node.children:
            return
        if node.parent is not None:
            self._leaves.add(node)
        else:
            del self._roots[node.namespace]

    def _touch(self, node: Node) -> None:
        step: Node | None = node
        while step is not None:
            step.last_use = self._clock
            if step.listed:
                self._leaves.add(step)
            step = step.parent

    # -- proof ------------------------------------------------------------------------------------------------------

    def check(self) -> I32:
        """Every page in the tree, after proving structure and counts. Cost: the size of the tree."""
        found, pinned, listed = [], 0, 0
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                found.append(node.pages)
                pinned += len(node.pages) if node.pins else 0
                listed += node.listed
                self._check_node(node, node.parent)
            elif node.listed or len(node.pages):
                raise BrokenInvariant("a root owns no pages and is never evicted")
            if sorted(node.children) != node.order or sum(c.pins for c in node.children.values()) > node.pins:
                raise BrokenInvariant("children out of order, or more pins below a node than on it")
            stack += node.children.values()
        pages = np.concatenate(found) if found else np.zeros(0, np.int32)
        if (len(pages), pinned, listed) != (self.pages, self.pinned_pages, len(self._leaves)):
            raise BrokenInvariant(
                f"the prefix tree holds {len(pages)} pages, {pinned} pinned, {listed} evictable leaves; "
                f"it counted {self.pages}, {self.pinned_pages}, {len(self._leaves)}"
            )
        return pages

    def _check_node(self, node: Node, parent: Node) -> None:
        whole = len(node.tokens) == len(node.pages) * self.page_size and len(node.pages) > 0
        known = parent.children.get(_key(node.tokens[: self.page_size])) is node
        if not whole or not known or node.depth != parent.depth + len(node.tokens):
            raise BrokenInvariant("a node's tokens, pages, depth or key disagree")
        if node.listed != (not node.children and not node.pins):
            raise BrokenInvariant("a leaf is evictable exactly when nothing pins it")


def _key(tokens: I32) -> bytes:
    return tokens.astype(">i4").tobytes()


def _common(a: I32, b: I32) -> int:
    """Leading tokens that agree."""
    count = min(len(a), len(b))
    differ = a[:count] != b[:count]
    first = int(differ.argmax()) if count else 0
    return first if count and differ[first] else count


def _common_bytes(a: bytes, b: bytes) -> int:
    return _common(np.frombuffer(a, ">i4"), np.frombuffer(b, ">i4"))
