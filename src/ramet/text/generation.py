"""What one client call generates: a `Choice` per prompt and sample, read together as one stream of chunks.

A chunk is "what is new since the last one", not "one token": when the reader is slow, deltas wait in their choice and
leave as one chunk, so nothing is dropped and nothing is queued twice.

A choice may have an `OutputParser`. Its chunks then say what the text means, as `events`: content, reasoning, calls;
without one all text is content. Both views are cut from the same text, so a renderer takes the one it shows.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ramet.errors import ExecutorError, NotFoundError, OverloadedError, RametError, RequestError
from ramet.text.detokenizer import Detokenizer
from ramet.text.events import Content, Event, Message, merged
from ramet.text.output import OutputParser
from ramet.types import EngineRequest, FinishReason, SamplingParams, TokenDelta, TokenLogprob, Usage

#: As a stream interval: one chunk per choice, when it has finished.
WHOLE = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One prompt and how to continue it, in no dialect."""

    prompt: str | list[int]  # text or token ids
    sampling: SamplingParams  # `n` samples are drawn; `max_new_tokens` None: whatever the context holds
    rid: str | None = None  # unique among live requests; with n > 1 the stem of `rid_0`, `rid_1`, …
    add_special_tokens: bool = True  # when `prompt` is text
    clamp: bool = False  # reduce `max_new_tokens` to what the context holds, with a warning, instead of refusing
    names: Mapping[str, str] = field(default_factory=dict)  # the dialect's spelling of sampling fields, for errors
    namespace: str = ""
    priority: int = 0
    return_logprob: bool = False
    top_logprobs_num: int = 0
    logprob_start_len: int = -1
    token_ids_logprob: tuple[int, ...] = ()
    grammar_after: tuple[int, ...] = ()  # a grammar rules once these ids have come in a row
    make_parser: Callable[[], OutputParser] | None = None  # one parser for each sample
    allowed_ids: tuple[int, ...] = ()  # nothing else is drawn; empty: everything
    banned_ids: tuple[int, ...] = ()  # never drawn
    thinking_tokens: int | None = None  # most tokens of thinking
    timeout_s: float | None = None  # from arrival; then the request is aborted
    stream_interval: int | None = None  # tokens between two chunks; None: the server's


@dataclass(slots=True)
class Chunk:
    """What is new of one choice. Only the last chunk, the one with `finish`, may be without events."""

    choice: Choice
    text: str  # as generated
    events: list[Event]  # what the text means, in order
    token_ids: list[int]
    logprobs: list[TokenLogprob]  # one per new token when asked, else empty
    finish: FinishReason | None  # on the last chunk of the choice, and only there


@dataclass(slots=True, eq=False)
class Choice:
    """One generation of the call. Totals are up to the last chunk taken."""

    index: int  # prompt-major: prompt 0 sample 0, prompt 0 sample 1, …
    request: EngineRequest
    decoder: Detokenizer
    token_bytes: Sequence[bytes]
    interval: int  # tokens between two chunks
    parser: OutputParser | None = None
    submitted: bool = False
    arrived_s: float = field(default_factory=time.monotonic)
    first_token_s: float | None = None
    finished_s: float | None = None
    text: str = ""
    output_ids: list[int] = field(default_factory=list)
    input_logprobs: list[TokenLogprob] = field(default_factory=list)
    output_logprobs: list[TokenLogprob] = field(default_factory=list)
    cached_tokens: int = 0
    num_retractions: int = 0
    queue_s: float | None = None
    prefill_s: float | None = None
    embedding: bytes | None = None  # float32, little-endian; of a request for a vector, once finished
    finish: FinishReason | None = None
    ready: bool = False  # listed in its generation's queue
    _pending: list[TokenDelta] = field(default_factory=list)
    _pending_tokens: int = 0
    _message: Message = field(default_factory=Message)
    _carried_text: str = ""
    _carried_ids: list[int] = field(default_factory=list)
    _carried_logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def rid(self) -> str:
        return self.request.rid

    @property
    def prompt_ids(self) -> list[int]:
        return self.request.token_ids

    @property
    def message(self) -> Message:
        """All events put together."""
        return self._message if self.parser is not None else Message(content=self.text)

    def usage(self) -> Usage:
        """Token counts so far."""
        reasoning = self.parser.reasoning_tokens if self.parser else 0
        return Usage(len(self.request.token_ids), len(self.output_ids), self.cached_tokens, reasoning)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that have arrived and were not taken yet."""
        return self._pending_tokens

    def push(self, delta: TokenDelta) -> bool:
        """Take a delta from the engine; whether there is now reason to look."""
        self._pending.append(delta)
        self._pending_tokens += len(delta.token_ids)
        if self.first_token_s is None and delta.token_ids:
            self.first_token_s = time.monotonic()
            if self.interval < WHOLE:
                return True
        if delta.finish is not None:
            self.finished_s = time.monotonic()
            return True
        return self._pending_tokens >= self.interval

    def take(self) -> Chunk | None:
        """Everything new as one chunk; None when there is nothing to show yet (text held back, half a character)."""
        deltas, self._pending = self._pending, []
        self._pending_tokens = 0
        ids, logprobs = self._carried_ids, self._carried_logprobs
        new_ids: list[int] = []
        for delta in deltas:
            new_ids += delta.token_ids
            if delta.logprobs:
                logprobs += delta.logprobs
            if delta.input_logprobs:
                self.input_logprobs += delta.input_logprobs
            self.cached_tokens = max(self.cached_tokens, delta.cached_tokens)
            self.num_retractions = max(self.num_retractions, delta.num_retractions)
            if delta.queue_s is not None:
                self.queue_s, self.prefill_s = delta.queue_s, delta.prefill_s
        last = deltas[-1]
        self.finish, self.embedding = last.finish, last.embedding
        cut = self._cut(last)
        text = self.decoder.push(new_ids, held_bytes=max(last.held_bytes, cut))
        if last.finish is not None:
            text += self.decoder.finish(cut)
        self.text += text
        self.output_ids += new_ids
        ids += new_ids
        events = self._events(text, new_ids, over=last.finish is not None)
        text = self._carried_text + text
        if not events and last.finish is None:
            self._carried_text = text
            return None  # text and ids wait for the event they belong to
        self.output_logprobs += logprobs
        self._carried_text, self._carried_ids, self._carried_logprobs = "", [], []
        return Chunk(self, text, events, ids, logprobs, last.finish)

    def _events(self, text: str, new_ids: list[int], *, over: bool) -> list[Event]:
        """What new text means."""
        if self.parser is None:
            return [Content(text)] if text else []
        self.parser.count(new_ids)
        events = self.parser.push(text)
        if over:
            events = merged([*events, *self.parser.finish()])
        self._message.add(events)
        return events

    def _cut(self, last: TokenDelta) -> int:
        """Trailing bytes that are no text: a stop string, by the engine, or the stop token unless it is to be kept."""
        finish = last.finish
        if finish is not None and isinstance(finish.matched, int) and not self.request.sampling.no_stop_trim:
            return len(self.token_bytes[finish.matched]) if finish.matched < len(self.token_bytes) else 0
        return last.cut_bytes


class Generation:
    """The choices of one call, merged. Iterate once; `close` when done or gone (idempotent)."""

    def __init__(
        self,
        choices: Sequence[Choice],
        samples: int,
        submit: Callable[[list[Choice]], None],
        forget: Callable[[list[Choice]], None],
        warnings: Sequence[str] = (),
    ) -> None:
        self.choices = choices
        self.samples = samples  # per prompt
        self.warnings = warnings
        self.created = int(time.time())
        self._submit = submit
        self._forget = forget
        self._ready: deque[Choice] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._open = len(choices)
        self._error: RametError | None = None
        self._held: dict[int, list[Choice]] = {}  # index of a first sample -> its siblings, not submitted yet

    def start(self, hold: dict[int, list[Choice]]) -> list[Choice]:
        """The choices to submit now: all except those in `hold`, which follow with the first delta of their key.

        Samples of one prompt wait for the first to have computed it, and then find it in the prefix cache.
        """
        self._held = hold
        waiting = {id(choice) for siblings in hold.values() for choice in siblings}
        return [choice for choice in self.choices if id(choice) not in waiting]

    def deliver(self, choice: Choice, delta: TokenDelta) -> None:
        """Called by the frontend with a delta of one of the choices."""
        if self._held and choice.index in self._held:
            self._submit([sibling for sibling in self._held.pop(choice.index) if sibling.finished_s is None])
        if choice.push(delta) and not choice.ready:
            choice.ready = True
            self._ready.append(choice)
            self._wake()

    def fail(self, error: RametError) -> None:
        """No more deltas will come: the reader gets what has arrived, then this error."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Chunk:
        while True:
            while self._ready:
                choice = self._ready.popleft()
                choice.ready = False
                chunk = choice.take()
                if chunk is not None:
                    if chunk.finish is not None:
                        self._open -= 1
                    return chunk
            if self._open == 0:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def wait(self, finished: Callable[[], None] | None = None) -> None:
        """Read everything; the totals are then in `choices`. Raises what ended a choice by an error.

        `finished` is called after each choice that has ended well.
        """
        async for chunk in self:
            error = abort_error(chunk.finish)
            if error is not None:
                raise error
            if finished is not None and chunk.finish is not None:
                finished()

    def close(self) -> None:
        """End what still runs, at once."""
        self._held = {}
        self._forget([choice for choice in self.choices if choice.finished_s is None])

    def usage(self) -> Usage:
        """Counts of the whole call: each prompt once, all samples' completions."""
        prompt = completion = cached = reasoning = 0
        for choice in self.choices:
            usage = choice.usage()
            completion += usage.completion_tokens
            reasoning += usage.reasoning_tokens
            if choice.index % self.samples == 0:
                prompt += usage.prompt_tokens
                cached += usage.cached_tokens
        return Usage(prompt, completion, cached, reasoning)


def abort_error(finish: FinishReason | None) -> RametError | None:
    """The error behind an abort that the engine made of its own accord; None for any other end."""
    if finish is None or finish.type != "abort" or finish.status_code is None:
        return None
    message = finish.message or "The request was aborted."
    if finish.status_code == 404:
        return NotFoundError(message, field=finish.field)
    if 400 <= finish.status_code < 500:
        return RequestError(message, field=finish.field)
    if finish.status_code == 503:
        return OverloadedError(message)
    return ExecutorError(message)
