"""Sessions of `/generate`: conversations that the server remembers as token ids.

A session is a tree of finished turns, named by their request ids; a streaming session is a single line of them. A turn
is recorded when its generation has finished. One that was aborted, refused, or whose client went away leaves no trace,
so the next turn goes on from the last finished one. Keys and values are not held for a session: its tokens find them in
the prefix cache, or have them computed again.
"""

from __future__ import annotations

import time
import uuid
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import DuplicateRequestError, OverloadedError, RequestError
from ramet.server.body import Body, read_body
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.responses import json_response
from ramet.text.generation import Choice

#: All sessions together; beyond, those used longest ago are closed. 64 MB.
MAX_TOKENS = 16_000_000
MAX_SESSIONS = 4096


class OpenSession(msgspec.Struct, kw_only=True):
    """Body of `/open_session`."""

    capacity_of_str_len: int  # what SGLang's clients send; the bound here is that of all sessions together
    session_id: str | None = None
    streaming: bool | None = None
    timeout: float | None = None  # seconds without a turn, after which the session is closed


class CloseSession(msgspec.Struct, kw_only=True):
    """Body of `/close_session`."""

    session_id: str


class SessionParams(msgspec.Struct, kw_only=True):
    """`session_params` of `/generate`: in which session, after which turn."""

    id: str
    rid: str | None = None  # the turn to go on from; None: a new beginning, in a streaming session the last turn
    offset: int | None = None  # so many tokens of the history stay
    replace: bool | None = None  # first forget the turns that followed the one to go on from
    drop_previous_output: bool | None = None  # of the turn to go on from, only the prompt stays


@dataclass(slots=True, eq=False)
class Turn:
    """A finished turn: the first `kept` tokens of the parent's history, then its own."""

    rid: str
    parent: Turn | None
    kept: int
    prompt: array[int]
    output: array[int]
    children: list[Turn] = field(default_factory=list)

    def history(self, *, with_output: bool = True) -> list[int]:
        """All token ids up to its end."""
        turns: list[tuple[Turn, int]] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append((turn, turn.kept))
            turn = turn.parent
        ids: list[int] = []
        for turn, kept in reversed(turns):
            ids = [*ids[:kept], *turn.prompt]
            if with_output or turn is not self:
                ids += turn.output
        return ids

    def following(self) -> Iterator[Turn]:
        """It and all that came after it."""
        stack = [self]
        while stack:
            turn = stack.pop()
            yield turn
            stack += turn.children


@dataclass(slots=True)
class Session:
    """One conversation."""

    id: str
    streaming: bool
    timeout_s: float | None
    used_s: float = field(default_factory=time.monotonic)
    turns: dict[str, Turn] = field(default_factory=dict)
    last: Turn | None = None  # of a streaming session
    busy: str | None = None  # a streaming session's request in flight


@dataclass(slots=True)
class Place:
    """Where in its session a request that runs will stand, if it finishes."""

    session: Session
    parent: Turn | None
    rid: str
    kept: int


class Sessions:
    """All sessions, and their routes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._open = Body(OpenSession)
        self._close = Body(CloseSession)
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # that used last comes last
        self._tokens = 0

    # The routes

    async def open_session(self, request: Request) -> Response:
        """Opens a session and answers its id, as a JSON string."""
        body, unknown = self._open.decode(await read_body(request, self._context.body_limit_bytes))
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=self._context.api.strict)
        if body.capacity_of_str_len < 0:
            raise RequestError("capacity_of_str_len must be at least 0.", field="capacity_of_str_len")
        if body.timeout is not None and not 0 < body.timeout < 1e9:
            raise RequestError("timeout must be a number of seconds above 0.", field="timeout")
        self._expire()
        id = body.session_id or uuid.uuid4().hex
        if id in self._sessions:
            raise DuplicateRequestError(f"Session id {id[:80]!a} exists already.", field="session_id")
        if len(self._sessions) >= MAX_SESSIONS:
            raise OverloadedError(f"{MAX_SESSIONS} sessions are open; close some, or open them with a timeout.")
        self._sessions[id] = Session(id, bool(body.streaming), body.timeout)
        return json_response(id, headers=warning_headers(warnings))

    async def close_session(self, request: Request) -> Response:
        """Forgets a session; an unknown one is no error. Its requests in flight go on."""
        body, unknown = self._close.decode(await read_body(request, self._context.body_limit_bytes))
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=self._context.api.strict)
        self._drop(body.session_id)
        return Response(headers=warning_headers(warnings))

    # What /generate does with them

    def begin(self, params: SessionParams, new: list[int], rid: str, bos: int | None) -> tuple[Place, list[int]]:
        """Where a turn with these `new` tokens stands, and its whole prompt. Raises `RequestError`."""
        self._expire()
        session = self._sessions.get(params.id)
        if session is None:
            raise _refuse(f"session id {params.id[:80]!a} does not exist")
        session.used_s = time.monotonic()
        self._sessions.move_to_end(session.id)
        if rid in session.turns:
            raise _refuse(f"request id {rid[:80]!a} names a turn of this session already")
        parent = self._parent(session, params)
        history = parent.history(with_output=not params.drop_previous_output) if parent is not None else []
        if params.offset is not None:
            if not 0 <= params.offset <= len(history):
                raise _refuse(f"offset {params.offset} is not in 0 .. {len(history)}, the tokens of the history")
            history = history[: params.offset]
        if history and bos is not None and new[:1] == [bos]:
            new = new[1:]
        if not history and not new:
            raise RequestError("The prompt has no tokens.", field="input_ids")
        if session.streaming:
            session.busy = rid
        return Place(session, parent, rid, len(history)), [*history, *new]

    def _parent(self, session: Session, params: SessionParams) -> Turn | None:
        if session.streaming:
            if params.replace or params.drop_previous_output or params.offset is not None:
                raise _refuse("a streaming session can only be appended to")
            if session.busy is not None:
                raise _refuse("a streaming session takes one request at a time")
            return session.last
        if params.rid is None:
            if params.replace:
                for turn in list(session.turns.values()):
                    self._forget(session, turn)
            return None
        parent = session.turns.get(params.rid)
        if parent is None:
            raise _refuse(f"the session has no finished turn {params.rid[:80]!a}")
        if params.replace:
            for child in list(parent.children):
                for turn in list(child.following()):
                    self._forget(session, turn)
        return parent

    def finish(self, place: Place, choice: Choice) -> None:
        """The turn is part of the session from now on, if it ended as it should and the session is still there."""
        finish, session = choice.finish, place.session
        if finish is None or finish.type == "abort" or self._sessions.get(session.id) is not session:
            return
        if place.parent is not None and session.turns.get(place.parent.rid) is not place.parent:
            return  # it was replaced meanwhile
        prompt = array("i", choice.prompt_ids[place.kept :])
        turn = Turn(place.rid, place.parent, place.kept, prompt, array("i", choice.output_ids))
        session.turns[place.rid] = turn
        if place.parent is not None:
            place.parent.children.append(turn)
        if session.streaming:
            session.last = turn
        session.used_s = time.monotonic()
        self._tokens += len(turn.prompt) + len(turn.output)
        while self._tokens > MAX_TOKENS and len(self._sessions) > 1:
            self._drop(next(iter(self._sessions)))

    def leave(self, place: Place) -> None:
        """The request is over, however it ended."""
        if place.session.busy == place.rid:
            place.session.busy = None

    def _forget(self, session: Session, turn: Turn) -> None:
        del session.turns[turn.rid]
        if turn.parent is not None:
            turn.parent.children.remove(turn)
        self._tokens -= len(turn.prompt) + len(turn.output)

    def _drop(self, id: str) -> None:
        session = self._sessions.pop(id, None)
        if session is not None:
            self._tokens -= sum(len(turn.prompt) + len(turn.output) for turn in session.turns.values())

    def _expire(self) -> None:
        now_s = time.monotonic()
        for session in list(self._sessions.values()):
            if session.timeout_s is not None and session.busy is None and now_s - session.used_s > session.timeout_s:
                self._drop(session.id)


def _refuse(why: str) -> RequestError:
    return RequestError(f"Invalid request: {why}.", field="session_params")
