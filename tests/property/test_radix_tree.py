"""The prefix tree against a model that remembers every page it was given: match, insert, pin, evict in any order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ramet.cache.eviction import POLICIES
from ramet.cache.radix import Node, PrefixTree

PAGE = 4
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=24)
NAMESPACES = st.sampled_from(["", "other"])


@dataclass
class Pinned:
    node: Node
    namespace: str
    tokens: tuple[int, ...]


class TreeMachine(RuleBasedStateMachine):
    """The model: (namespace, whole-page prefix) -> the page that holds its last page of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree(PAGE, POLICIES["lru"])
        self.pages: dict[tuple[str, tuple[int, ...]], int] = {}
        self.next_page = 0
        self.pinned: list[Pinned] = []

    def known(self, namespace: str, tokens: list[int]) -> int:
        """Leading tokens of `tokens` in the model, to the token."""
        best = 0
        for space, prefix in self.pages:
            if space == namespace:
                same = 0
                while same < min(len(prefix), len(tokens)) and prefix[same] == tokens[same]:
                    same += 1
                best = max(best, same)
        return best

    def whole(self, namespace: str, tokens: list[int]) -> list[int]:
        pages: list[int] = []
        while (key := (namespace, tuple(tokens[: (len(pages) + 1) * PAGE]))) in self.pages:
            pages.append(self.pages[key])
            if len(pages) * PAGE + PAGE > len(tokens):
                break
        return pages

    @rule(namespace=NAMESPACES, tokens=TOKENS, cut=st.integers(0, 24))
    def match(self, namespace: str, tokens: list[int], cut: int) -> None:
        array, limit = np.array(tokens, np.int32), min(cut, len(tokens))
        expected = self.known(namespace, tokens[:limit])
        assert self.tree.matched_tokens(namespace, array, limit) == expected
        found = self.tree.match(namespace, array, limit)
        self.tree.pin(found.node)
        assert found.pages.tolist() == self.whole(namespace, tokens[:limit])
        assert len(found.pages) * PAGE + found.partial_tokens == expected
        if found.partial_tokens:
            owner = next(key for key, page in self.pages.items() if page == found.partial_page)
            assert list(owner[1][:expected]) == tokens[:expected]
            assert found.partial_node is not None
            assert found.partial_page == found.partial_node.pages[0]
        self.tree.unpin(found.node)

    @rule(namespace=NAMESPACES, tokens=TOKENS, keep=st.booleans())
    def insert(self, namespace: str, tokens: list[int], keep: bool) -> None:
        count = len(tokens) // PAGE
        array = np.array(tokens, np.int32)
        start = self.tree.match(namespace, array, 0).node
        self.tree.pin(start)
        fresh = list(range(self.next_page, self.next_page + count))
        self.next_page += count
        node, held = self.tree.insert(start, array[: count * PAGE], np.array(fresh, np.int32))
        for i, page in enumerate(fresh):
            expected = self.pages.setdefault((namespace, tuple(tokens[: (i + 1) * PAGE])), page)
            assert held[i] == expected
        if keep:
            self.tree.pin(node)
            self.pinned.append(Pinned(node, namespace, tuple(tokens[: count * PAGE])))
        self.tree.unpin(start)

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        chosen = self.pinned.pop(data.draw(st.integers(0, len(self.pinned) - 1)))
        self.tree.unpin(chosen.node)

    @precondition(lambda self: self.tree.evictable_pages)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.tree.evictable_pages))
        gone = set(self.tree.evict(count).tolist())
        assert len(gone) == count
        self.pages = {key: page for key, page in self.pages.items() if page not in gone}

    @invariant()
    def pinned_prefixes_stay(self) -> None:
        for pin in self.pinned:
            path = self.tree.path_pages(pin.node).tolist()
            assert path == self.whole(pin.namespace, list(pin.tokens))[: len(path)]
            assert len(path) * PAGE == len(pin.tokens)

    @invariant()
    def pages_agree(self) -> None:
        assert sorted(self.tree.check().tolist()) == sorted(self.pages.values())
        # What is left is whole prefixes: a page's predecessors are there too.
        for namespace, prefix in self.pages:
            assert len(prefix) == PAGE or (namespace, prefix[:-PAGE]) in self.pages

    def teardown(self) -> None:
        for pin in self.pinned:
            self.tree.unpin(pin.node)
        assert sorted(self.tree.clear().tolist()) == sorted(self.pages.values())
        assert self.tree.pages == 0
        assert len(self.tree.check()) == 0


TestPrefixTree = TreeMachine.TestCase
TestPrefixTree.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
