"""Serving workloads: what agents, chats and trees of thought send. The same seed gives the same requests.

Prompts are made of common English words, which are one token each (with their space) in the usual vocabularies, so a
prompt of n words is about n tokens for any server; what was really counted comes back in each answer's usage.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

WORDS = (
    "the of and to in for is on that by this with you it not or be are from at as your all have new more an was we "
    "will home can us about if page my has search free but our one other do no information time they site he up may "
    "what which their news out use any there see only so his when contact here business who web also now help get view "
    "online first am been would how were services some these click its like service than find price date back top "
    "people had list name just over state year day into email two health world next used go work last most products "
    "music buy data make them should product system post her city add policy number such please available copyright "
    "support message after best software then good video well where info rights public books high school through each "
    "links she review years order very privacy book items company read group need many user said does set under general"
).split()


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation. Its prompt is the conversation so far (with the answers received) and `text`."""

    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Conversations, each a sequence of turns; at most `concurrency` conversations are under way at once."""

    name: str
    concurrency: int
    conversations: tuple[tuple[Turn, ...], ...]
    stages: tuple[int, ...] = field(default=())  # conversations started only when those before are done (tree levels)

    @property
    def requests(self) -> int:
        return sum(len(turns) for turns in self.conversations)


def words(rng: random.Random, count: int) -> str:
    """About `count` tokens of text, with a leading space."""
    return "".join(" " + rng.choice(WORDS) for _ in range(count))


def plain(seed: int, *, clients: int = 32, input_tokens: int = 100, output_tokens: int = 128) -> Workload:
    """Independent requests, all at once."""
    rng = random.Random(seed)
    turns = tuple((Turn(words(rng, input_tokens), output_tokens),) for _ in range(clients))
    return Workload("plain", clients, turns)


def shared_prefix(
    seed: int,
    *,
    requests: int = 64,
    concurrency: int = 16,
    prefix_tokens: int = 1200,
    own_tokens: int = 40,
    output_tokens: int = 32,
) -> Workload:
    """Many requests behind one long system prompt."""
    rng = random.Random(seed)
    prefix = words(rng, prefix_tokens)
    turns = tuple((Turn(prefix + words(rng, own_tokens), output_tokens),) for _ in range(requests))
    return Workload("shared-prefix", concurrency, turns)


def multi_turn(
    seed: int, *, users: int = 12, turns: int = 5, input_tokens: int = 60, output_tokens: int = 48
) -> Workload:
    """Users who each take several turns; every turn repeats the whole conversation."""
    rng = random.Random(seed)
    talks = tuple(tuple(Turn(words(rng, input_tokens), output_tokens) for _ in range(turns)) for _ in range(users))
    return Workload("multi-turn", users, talks)


def tree(
    seed: int,
    *,
    root_tokens: int = 800,
    branches: int = 4,
    leaves: int = 16,
    branch_tokens: int = 100,
    leaf_tokens: int = 40,
    output_tokens: int = 32,
) -> Workload:
    """One root, branches that extend it, leaves that extend the branches (`leaves` in all)."""
    rng = random.Random(seed)
    root = words(rng, root_tokens)
    stems = [root + words(rng, branch_tokens) for _ in range(branches)]
    tips = [stems[i % branches] + words(rng, leaf_tokens) for i in range(leaves)]
    turns = tuple((Turn(text, output_tokens),) for text in [root, *stems, *tips])
    return Workload("tree", max(branches, leaves), turns, stages=(1, branches, leaves))


WORKLOADS: Mapping[str, Callable[[int], Workload]] = {
    "plain": plain,
    "shared-prefix": shared_prefix,
    "multi-turn": multi_turn,
    "tree": tree,
}
