from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ramet.cache.eviction import POLICIES, Leaves
from ramet.cache.radix import Node, PrefixTree
from ramet.errors import BrokenInvariant
from ramet.executor.base import I32

PAGE = 2


def tokens(text: str) -> I32:
    return np.array([ord(letter) for letter in text], np.int32)


class Tree(PrefixTree):
    """Inserts texts from the root and numbers their pages by itself."""

    def __init__(self) -> None:
        super().__init__(PAGE, POLICIES["lru"])
        self.next_page = 0

    def add(self, text: str, namespace: str = "") -> Node:
        root = self.match(namespace, tokens(""), 0).node
        self.pin(root)
        count = len(text) // PAGE
        node, _ = self.insert(root, tokens(text), np.arange(self.next_page, self.next_page + count, dtype=np.int32))
        self.next_page += count
        self.unpin(root)
        self.check()
        return node

    def found(self, text: str, namespace: str = "") -> int:
        return self.matched_tokens(namespace, tokens(text), len(text))

    def use(self, text: str) -> None:
        node = self.match("", tokens(text), len(text)).node
        self.pin(node)
        self.unpin(node)


def test_matches_end_inside_pages_and_stay_in_their_namespace() -> None:
    tree = Tree()
    tree.add("abcdef")
    tree.add("abcxyz")
    assert [tree.found(text) for text in ("abcdef", "abcde", "abcx", "abz", "ax", "x", "")] == [6, 5, 4, 2, 1, 0, 0]
    assert tree.found("abcdef", "other") == 0
    assert tree.pages == 5  # "ab" is shared


def test_looking_changes_nothing() -> None:
    tree = Tree()
    tree.add("abcdef")
    tree.found("abcq")
    assert len(tree.match("", tokens("abcdef"), 6).node.pages) == 3  # not split
    assert tree.found("zz", "nowhere") == 0
    assert list(tree._roots) == [""]


def test_a_split_keeps_pins_on_both_halves() -> None:
    tree = Tree()
    node = tree.add("abcdef")
    tree.pin(node)
    upper = tree.match("", tokens("abzz"), 4).node
    assert (upper.pins, node.pins, upper.depth, node.depth) == (1, 1, 2, 6)
    assert tree.evictable_pages == 0
    tree.check()
    tree.unpin(node)
    assert tree.evictable_pages == 3


def test_least_recently_used_goes_first_and_the_end_of_a_leaf_before_its_start() -> None:
    tree = Tree()
    tree.add("aaaa")  # pages 0, 1
    tree.add("bbbb")  # pages 2, 3
    tree.use("aaaa")
    assert tree.evict(1).tolist() == [3]
    assert tree.evict(2).tolist() == [2, 1]
    assert tree.found("aaaa") == 2
    assert tree.check().tolist() == [0]


def test_children_go_before_their_parent_and_pinned_ones_stay() -> None:
    tree = Tree()
    tree.add("abcd")  # 0, 1
    kept = tree.add("abxy")  # page 3 below page 0
    tree.pin(kept)
    assert tree.evictable_pages == 1
    assert tree.evict(1).tolist() == [1]
    tree.unpin(kept)
    assert tree.evict(2).tolist() == [3, 0]
    assert tree._roots == {}


def test_clearing_a_pinned_tree_is_our_bug() -> None:
    tree = Tree()
    assert tree.clear().tolist() == []
    node = tree.add("abcd")
    tree.pin(node)
    with pytest.raises(BrokenInvariant):
        tree.clear()
    tree.unpin(node)
    assert sorted(tree.clear().tolist()) == [0, 1]


def test_stale_heap_entries_do_not_pile_up() -> None:
    tree = Tree()
    for i in range(20):
        tree.add(f"{i:04}")
    for _ in range(50):
        for i in range(20):
            tree.use(f"{i:04}")
    assert len(tree._leaves._heap) <= 64 + 4 * len(tree._leaves) + 1
    assert len(tree.evict(tree.pages)) == tree.next_page - 20 + len({f"{i:04}"[:2] for i in range(20)})


def test_a_policy_is_one_key() -> None:
    """Most recently used first, as a policy that is not ours: only the key differs."""
    leaves = Leaves(lambda node: -node.last_use)
    nodes = [Node("", None, tokens(""), np.zeros(0, np.int32)) for _ in range(3)]
    for use, node in enumerate(nodes):
        node.last_use = use
        leaves.add(node)
    leaves.discard(nodes[2])
    leaves.discard(nodes[2])
    assert [leaves.pop(), leaves.pop()] == [nodes[1], nodes[0]]
    assert len(leaves) == 0


def _tokens_lost(tree: Tree, node: Node) -> None:
    node.tokens = node.tokens[:-1]


def _depth_wrong(tree: Tree, node: Node) -> None:
    node.depth += PAGE


def _not_listed(tree: Tree, node: Node) -> None:
    node.listed = False


def _count_wrong(tree: Tree, node: Node) -> None:
    tree.pages += 1


def _order_wrong(tree: Tree, node: Node) -> None:
    assert node.parent is not None
    node.parent.order.clear()


def _root_listed(tree: Tree, node: Node) -> None:
    tree._roots[""].listed = True


def _pins_lost(tree: Tree, node: Node) -> None:
    node.pins += 1


@pytest.mark.parametrize(
    "damage", [_tokens_lost, _depth_wrong, _not_listed, _count_wrong, _order_wrong, _root_listed, _pins_lost]
)
def test_the_check_sees_damage(damage: Callable[[Tree, Any], None]) -> None:
    tree = Tree()
    node = tree.add("abcdef")
    damage(tree, node)
    with pytest.raises(BrokenInvariant):
        tree.check()
