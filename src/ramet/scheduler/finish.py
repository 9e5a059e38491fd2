"""Whether a token ends its request, and how much of the text is cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ramet.errors import RequestError
from ramet.executor.base import F32
from ramet.grammar.stop_regex import too_complex
from ramet.scheduler.state import Request
from ramet.types import FinishReason

NOTHING_DRAWN = FinishReason(
    type="abort",
    message="No token could be drawn: the model's logits hold a NaN, or nothing is allowed.",
    status_code=500,
)

NOT_FINITE = FinishReason(type="abort", message="The model's output holds a NaN or an infinity.", status_code=500)

OUTSIDE_GRAMMAR = FinishReason(
    type="abort", message="A token was drawn that the grammar does not allow.", status_code=500
)

NOTHING_ALLOWED = FinishReason(
    type="abort",
    message="The request's lists of tokens leave none that its grammar allows.",
    status_code=400,
    field="custom_params",
)

TOO_COSTLY = FinishReason(
    type="abort",
    message="The grammar takes too long to follow; one with fewer ways to read the same text may do.",
    status_code=400,
)


def nothing_drawn(request: Request) -> FinishReason:
    """Why a request ends for which no token could be drawn.

    Where a grammar allows nothing but the end of text, `min_new_tokens` forbids just that; it knows of no grammars.
    """
    forbids_end = len(request.outputs) < request.spec.sampling.min_new_tokens
    if request.matcher is not None and request.matcher.accepting and forbids_end:
        return FinishReason(type="stop")
    return NOTHING_DRAWN


def vector_bytes(vector: F32) -> bytes | None:
    """A request's vector as it travels, or None where it is none: not all of it is finite."""
    return vector.astype("<f4").tobytes() if np.isfinite(vector).all() else None


def append_token(request: Request, token: int, vocabulary: Sequence[bytes]) -> tuple[FinishReason | None, int]:
    """Append what the executor drew; (why this ends the request or None, bytes cut off the end of its text).

    In this order: stop string or pattern, stop token or EOS, end of the grammar, length. A stop string goes first
    because its text must not be shown, whatever else the same token is.
    """
    request.outputs.append(token)
    if request.rules is not None:
        request.rules.accept(token, vocabulary[token] if vocabulary else b"")
    if request.matcher is not None and not request.matcher.accept(token):
        return OUTSIDE_GRAMMAR, 0
    if request.stop is not None or request.regexes is not None:
        stopped = _stopped(request, vocabulary[token])
        if stopped is not None:
            return stopped
    if token in request.end_ids:
        return FinishReason(type="stop", matched=token), 0
    if request.matcher is not None and request.matcher.stopped:
        return _grammar_end(request), 0
    if len(request.outputs) >= request.max_new:
        return FinishReason(type="length", length=len(request.outputs)), 0
    return _fill_mask(request), 0


def _stopped(request: Request, data: bytes) -> tuple[FinishReason, int] | None:
    """The stop string or pattern that ends first in the bytes of the last token; a string if both end there."""
    string = request.stop.push(data) if request.stop is not None else None
    try:
        pattern = request.regexes.push(data) if request.regexes is not None else None
    except RequestError as error:
        return too_complex(error), 0
    if pattern is not None and (string is None or pattern.after_bytes > string.after_bytes):
        return FinishReason(type="stop", matched=pattern.pattern), pattern.after_bytes
    if string is None:
        return None
    cut = string.after_bytes if request.spec.sampling.no_stop_trim else string.cut_bytes
    return FinishReason(type="stop", matched=string.string), cut


def _grammar_end(request: Request) -> FinishReason:
    """The last token is text that stays (nothing matched), unless it is an end of text that `ignore_eos` let pass."""
    last = request.outputs[-1]
    return FinishReason(type="stop", matched=last if last in request.spec.eos_token_ids else None)


def _fill_mask(request: Request) -> FinishReason | None:
    """What grammar and rules allow next; why the request ends if that is nothing."""
    if request.mask is None:
        return None
    if request.matcher is None:
        assert request.rules is not None
        request.mask = request.rules.mask
        return None
    if request.matcher.too_costly:
        return TOO_COSTLY
    if request.matcher.fill_mask(request.mask):
        if request.rules is not None:
            request.mask &= request.rules.mask
        return None if request.mask.any() else NOTHING_ALLOWED
    if request.matcher.accepting:
        return _grammar_end(request)
    message = f"The grammar cannot go on from here: {request.matcher.error or 'it allows no token'}"
    return FinishReason(type="abort", message=message, status_code=400)


def held_bytes(request: Request) -> int:
    """Trailing bytes of a request's text that may not be shown yet. A stop string that is kept need not be held."""
    if request.stop is None or request.spec.sampling.no_stop_trim:
        return 0
    return request.stop.held_bytes
