"""Who gives way when the next tokens need more pages than there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ramet.config.tree import SchedulerSection
from ramet.scheduler.state import Request, State

Rank = Callable[[Request], int]


def ranking(config: SchedulerSection) -> Rank:
    """A request's rank by its priority; the first rank is the lowest number. Without priorities all have the same."""
    if not config.enable_priority_scheduling:
        return lambda request: 0
    sign = 1 if config.schedule_low_priority_values_first else -1
    return lambda request: sign * request.spec.priority


def victim(running: Iterable[Request], rank: Rank) -> Request:
    """Of the last rank the request that loses least and frees most: fewest generated tokens, then longest prompt, then
    newest."""

    def key(request: Request) -> tuple[int, ...]:
        return -rank(request), len(request.outputs), -len(request.prompt), -request.number

    return min(running, key=key)


def preempt(
    request: Request,
    running: Callable[[], Sequence[Request]],
    rank: Rank,
    has_room: Callable[[Request, Sequence[Request]], bool],
    give_way: Callable[[Request], None],
) -> None:
    """Let running requests of a later rank give way until a waiting one has room, or none of them is left."""
    while not has_room(request, running()):
        later = [other for other in running() if rank(other) > rank(request)]
        if not later:
            return
        give_way(victim(later, rank))


def make_room(
    ready: Sequence[Request], running: Sequence[Request], rank: Rank, give_way: Callable[[Request], None]
) -> Request | None:
    """Give every request of `ready` a page for its next token, retracting others of `running`, or itself, for it.

    One request always goes on. None, or the request that is alone and still finds no page: it can never go on.
    """
    for request in ready:
        while request.state is State.DECODING and not request.lease.extend(request.computed + 1):
            holders = [other for other in running if other.leased is not None]
            if len(holders) == 1:
                return request
            give_way(victim(holders, rank))
    return None
