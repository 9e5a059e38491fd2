"""Whether a token ends its request, and how much of the text is cut."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.scheduler.state import Request
from ramet.types import FinishReason

NOTHING_DRAWN = FinishReason(
    type="abort",
    message="No token could be drawn: the model's logits hold a NaN, or nothing is allowed.",
    status_code=500,
)


def append_token(request: Request, token: int, vocabulary: Sequence[bytes]) -> tuple[FinishReason | None, int]:
    """Append what the executor drew; (why this ends the request or None, bytes cut off the end of its text).

    In this order: stop string, stop token or EOS, length. A stop string goes first because its text must not be shown,
    whatever else the same token is.
    """
    request.outputs.append(token)
    if request.stop is not None:
        match = request.stop.push(vocabulary[token])
        if match is not None:
            cut = match.after_bytes if request.spec.sampling.no_stop_trim else match.cut_bytes
            return FinishReason(type="stop", matched=match.string), cut
    if token in request.end_ids:
        return FinishReason(type="stop", matched=token), 0
    if len(request.outputs) >= request.max_new:
        return FinishReason(type="length", length=len(request.outputs)), 0
    return None, 0


def held_bytes(request: Request) -> int:
    """Trailing bytes of a request's text that may not be shown yet. A stop string that is kept need not be held."""
    if request.stop is None or request.spec.sampling.no_stop_trim:
        return 0
    return request.stop.held_bytes
