"""In which order waiting requests are tried: a policy gives back the queue, sorted, without those to sit out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ramet.cache.lease import KvCache
from ramet.scheduler.state import Request

Policy = Callable[[Sequence[Request], KvCache], Sequence[Request]]

#: Longer queues are served in order of arrival: matching all of them in every pass would cost more than it saves.
MAX_MATCHED = 128
#: A request that finds at most this much in the cache waits a pass if one before it has the same first tokens ...
KNOWN_TOKENS = 32
#: ... so many of them: that one computes the prefix for both.
SAME_TOKENS = 32


def fcfs(waiting: Sequence[Request], cache: KvCache) -> Sequence[Request]:
    """In order of arrival; a retracted request keeps its place."""
    return waiting


def lpm(waiting: Sequence[Request], cache: KvCache) -> Sequence[Request]:
    """Longest cached prefix first, ties in order of arrival."""
    if len(waiting) > MAX_MATCHED or not cache.keep_prefixes:
        return waiting
    ranked: list[tuple[int, int, Request]] = []
    starts: set[tuple[str, bytes]] = set()
    for request in waiting:
        known = cache.matched_tokens(request.spec.namespace, request.tokens, request.reuse_limit())
        if known <= KNOWN_TOKENS and request.reuse_limit() >= SAME_TOKENS:
            start = (request.spec.namespace, request.tokens[:SAME_TOKENS].tobytes())
            if start in starts:
                continue
            starts.add(start)
        ranked.append((-known, request.number, request))
    ranked.sort(key=lambda entry: entry[:2])
    return [request for _, _, request in ranked]


POLICIES: dict[str, Policy] = {"fcfs": fcfs, "lpm": lpm}
