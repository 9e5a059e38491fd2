"""Who gives way when the next tokens need more pages than there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ramet.scheduler.state import Request, State


def victim(running: Iterable[Request]) -> Request:
    """The request that loses least and frees most: fewest generated tokens, then longest prompt, then newest."""
    return min(running, key=lambda request: (len(request.outputs), -len(request.prompt), -request.number))


def make_room(
    ready: Sequence[Request], running: Sequence[Request], give_way: Callable[[Request], None]
) -> Request | None:
    """Give every request of `ready` a page for its next token, retracting others of `running`, or itself, for it.

    One request always goes on. None, or the request that is alone and still finds no page: it can never go on.
    """
    for request in ready:
        while request.state is State.DECODING and not request.lease.extend(request.computed + 1):
            holders = [other for other in running if other.leased is not None]
            if len(holders) == 1:
                return request
            give_way(victim(holders))
    return None
