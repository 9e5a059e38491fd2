"""The scheduler: requests in, steps to the executor, deltas out. One owner (the engine's thread) calls everything.

A pass is `step`: schedule, launch, settle. Every step has a token budget; decodes go first, prefill chunks fill the
rest. How far launching may run ahead of settling is `depth`.
"""

from __future__ import annotations

import heapq
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ramet.cache.lease import KvCache
from ramet.channel import Abort
from ramet.config.tree import SchedulerSection
from ramet.config.tree import options as config_options
from ramet.errors import ExecutorError, RequestError
from ramet.executor.base import NO_TOKEN, Executor, StepOutput
from ramet.observability.records import Recorder, StepRecord
from ramet.scheduler import state
from ramet.scheduler.admission import Capacity, NewTokenRatio, growth_pages, has_room, try_admit
from ramet.scheduler.finish import NOT_FINITE, append_token, held_bytes, nothing_drawn, vector_bytes
from ramet.scheduler.grammars import Grammars
from ramet.scheduler.logprobs import add_scored, drawn_logprob
from ramet.scheduler.policy import POLICIES
from ramet.scheduler.retract import make_room, preempt, ranking, victim
from ramet.scheduler.rules import TokenRules
from ramet.scheduler.state import Request, State
from ramet.scheduler.step import Chunk, Flight, build_batch
from ramet.types import EngineRequest, FinishReason, TokenDelta

PAUSE_MODES = ("abort", "retract", "in_place")

#: What `set_options` takes.
CHANGEABLE_OPTIONS = {"max_queued_requests", "schedule_conservativeness"}


class Scheduler:
    """See the module. `config.chunked_prefill_size` is the token budget of a step; deltas gather in `deltas`."""

    def __init__(
        self,
        executor: Executor,
        cache: KvCache,
        config: SchedulerSection,
        *,
        clock: Callable[[], float] = time.monotonic,
        depth: int = 0,
    ) -> None:
        self.executor = executor
        self.cache = cache
        self.config = config
        self.depth = depth
        self.vocabulary: Sequence[bytes] = ()  # bytes of each token, for stop strings
        self.recorder = Recorder()
        self.deltas: list[TokenDelta] = []
        self.live: dict[str, Request] = {}  # every request that has not finished, in order of arrival
        self.waiting: list[Request] = []  # in order of arrival
        self.prefilling: list[Request] = []
        self.decoding: list[Request] = []
        self._budget: int = config.chunked_prefill_size or executor.layout.max_step_tokens
        whole_tokens = self._budget if executor.whole_rows else None
        self.capacity = Capacity.of(
            executor.layout, executor.vocab_size, embeds=executor.embedding_size > 0, whole_tokens=whole_tokens
        )
        self._order = POLICIES[config.schedule_policy]
        self._rank = ranking(config)
        self._ratio = NewTokenRatio(config.schedule_conservativeness)
        self._clock = clock
        self._flights: deque[Flight] = deque()
        self._deadlines: list[tuple[float, int, Request]] = []
        self._arrivals = 0
        self._passes = 0
        self._left_waiting = False  # after the last pass some requests still waited
        self.grammars = Grammars(config, executor.vocab_size, clock)
        self.paused = False  # no step starts; requests may arrive, and end by an abort or their deadline

    # -- the loop -----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One pass. False if there was nothing to do, or nothing that could be done now."""
        self._expire()
        self._take_compiled()
        decodes, chunks = ([], []) if self.paused else self._schedule()
        launched = bool(decodes or chunks)
        if launched:
            self._launch(decodes, chunks)
        settles = len(self._flights) > (self.depth if launched else 0)
        if settles:
            self._settle(self._flights.popleft())
        return launched or settles

    @property
    def idle(self) -> bool:
        """No live request and no step in flight."""
        return not self.live and not self._flights

    # -- arrivals and departures --------------------------------------------------------------------------------------

    def submit(self, specs: Iterable[EngineRequest]) -> None:
        """Queue requests; one that can never run, or has a live id, is answered at once."""
        for spec in specs:
            refusal = self._refusal(spec)
            if refusal is not None:
                self.recorder.totals.refused += 1
                self.deltas.append(TokenDelta(rid=spec.rid, finish=refusal))
                continue
            max_new = self.capacity.new_tokens(len(spec.token_ids), spec.sampling.max_new_tokens)
            request = Request(spec, max_new, self._arrivals, self._clock())
            request.rules = TokenRules.of(spec, self.executor.vocab_size)
            request.mask = request.rules.mask if request.rules is not None else None
            self._arrivals += 1
            self.recorder.totals.requests += 1
            self.live[spec.rid] = request
            if not self.grammars.begin(request):
                self.waiting.append(request)
            if spec.deadline_s is not None:
                self._watch(spec.deadline_s, request)

    def _refusal(self, spec: EngineRequest) -> FinishReason | None:
        if spec.rid in self.live:
            return FinishReason(
                type="abort", message=f"Duplicate request ID detected: {spec.rid}", status_code=400, field="rid"
            )
        most = self.config.max_queued_requests
        # Who can start in the next pass does not queue, unless somebody could not in the last one.
        starting = 0 if self._left_waiting else self.cache.free_rows
        queued = max(len(self.waiting) - starting, 0) + len(self.grammars.compiling)
        if most is not None and queued >= most:
            return FinishReason(type="abort", message="The request queue is full.", status_code=503)
        return self.capacity.refusal(spec, stop_strings=bool(self.vocabulary)) or self.grammars.refusal(spec)

    def _take_compiled(self) -> None:
        """Queue the requests whose grammar has come, by arrival, and end those whose grammar cannot be had."""
        outcomes = self.grammars.ready()
        for request, refusal in outcomes:
            if refusal is None:
                insort(self.waiting, request, key=lambda waiting: waiting.number)
            else:
                self._end(request, refusal)
        if outcomes:
            self._forget_finished()

    def abort(self, message: Abort) -> None:
        """End the requests that `message` means, wherever they are; unknown ids are ignored."""
        if message.all:
            chosen = list(self.live.values())
        else:
            chosen = [self.live[rid] for rid in message.rids if rid in self.live]
            if message.prefix:
                chosen += [request for rid, request in self.live.items() if rid.startswith(message.prefix)]
        for request in chosen:
            if request.state is not State.FINISHED:  # named twice
                self._end(request, FinishReason(type="abort", message=message.message))
        self._forget_finished()

    def _watch(self, deadline_s: float, request: Request) -> None:
        """Remember a deadline; those of requests that ended earlier go when they are most of what is remembered."""
        if len(self._deadlines) > 2 * len(self.live) + 64:
            self._deadlines = [entry for entry in self._deadlines if entry[2].state is not State.FINISHED]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (deadline_s, request.number, request))

    def _expire(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._clock():
            request = heapq.heappop(self._deadlines)[2]
            if request.state is not State.FINISHED:
                reason = FinishReason(type="abort", message="The request's deadline has passed.", status_code=503)
                self._end(request, reason)
                self._forget_finished()

    def pause(self, mode: str = "abort") -> None:
        """Start no step until `resume`. Live requests are ended (`abort`), go back to the queue without their memory
        (`retract`) or stay as they are (`in_place`)."""
        if mode not in PAUSE_MODES:
            raise RequestError(f"mode must be one of {', '.join(PAUSE_MODES)}, not {mode!r}.", field="mode")
        self.paused = True
        if mode == "abort":
            self.abort(Abort(all=True, message="The generation was paused."))
        elif mode == "retract":
            while self._flights:
                self._settle(self._flights.popleft())
            for request in self.prefilling + self.decoding:
                self._retract(request)

    def resume(self) -> None:
        """The end of a pause."""
        self.paused = False

    def set_options(self, options: Mapping[str, Any]) -> bool:
        """Change options that may change while requests run; False, and nothing is changed, if one may not."""
        if not options.keys() <= CHANGEABLE_OPTIONS:
            return False
        values = {name: config_options()[name].validate(value) for name, value in options.items()}
        self.config = replace(self.config, **values)
        self._ratio = NewTokenRatio(self.config.schedule_conservativeness)
        return True

    def flush_cache(self) -> bool:
        """Forget all cached prefixes; refused (False) while a request is alive, unless a pause has taken its memory."""
        if self._flights or self.prefilling or self.decoding or (self.live and not self.paused):
            return False
        self.cache.clear()
        self.grammars.clear()
        return True

    # -- schedule -----------------------------------------------------------------------------------------------------

    def _schedule(self) -> tuple[list[Request], list[Chunk]]:
        """What the next step computes: (requests that draw a token, chunks of prefill)."""
        self._passes += 1
        if self.config.retract_every and self._passes % self.config.retract_every == 0:
            # Only who has drawn on past the end of its prefill: else a lone request might never keep a token.
            able = [request for request in self.decoding if request.computed > len(request.tokens)]
            if able:
                self._retract(victim(able, self._rank))
        if self.config.enable_priority_scheduling and self.waiting:
            room = partial(has_room, cache=self.cache, ratio=self._ratio)
            preempt(self._queue()[0], self._running, self._rank, room, self._retract)
        decodes = self._decodes()
        # Prefill gets a quarter of the budget even beside many decodes, or a full house would lock newcomers out.
        budget = max(self._budget - len(decodes), self._budget // 4, 1)
        chunks: list[Chunk] = []
        for request in self.prefilling:  # at most one: only the last chunk of a step can be cut short
            chunks.append(Chunk(request, min(budget, len(request.tokens) - request.computed), is_first=False))
            budget -= chunks[-1].count
        if budget and self.waiting and self.cache.free_rows:
            chunks += self._admit(budget)
        self._left_waiting = bool(self.waiting)
        return decodes, chunks

    def _decodes(self) -> list[Request]:
        """Requests that draw their next token, each with a page for the last one; if memory is short some give way."""
        # Where there is a mask the next one is known only when the last token is.
        ready = [
            request
            for request in self.decoding
            if request.remaining > request.pending and not (request.mask is not None and request.pending)
        ]
        stuck = make_room(ready, self._running(), self._rank, self._retract)
        if stuck is not None:
            self._end(stuck, self._out_of_memory(stuck))
            self._forget_finished()
        return [request for request in ready if request.state is State.DECODING]

    def _running(self) -> list[Request]:
        """Requests that hold memory."""
        return self.decoding + self.prefilling

    def _queue(self) -> Sequence[Request]:
        """The waiting requests in the order in which they are tried: by rank, then as the policy says."""
        return sorted(self._order(self.waiting, self.cache), key=self._rank)

    def _admit(self, budget: int) -> list[Chunk]:
        """First chunks of waiting requests, in the policy's order, up to the first that does not fit."""
        chunks: list[Chunk] = []
        growth = growth_pages(self._running(), self.cache, self._ratio)
        for request in self._queue():
            if not budget or not self.cache.free_rows:
                break
            if self.executor.whole_rows and len(request.tokens) > budget:
                break
            lease = try_admit(request, self.cache, self._ratio, growth)
            if lease is None:
                break
            if request.admitted_s is None:
                self.recorder.totals.prompt_tokens += len(request.prompt)
                self.recorder.totals.cached_tokens += lease.reused
            state.admit(request, lease, self._clock())
            growth += growth_pages([request], self.cache, self._ratio)
            self.prefilling.append(request)
            chunks.append(Chunk(request, min(budget, len(request.tokens) - request.computed), is_first=True))
            budget -= chunks[-1].count
        if chunks:
            self.waiting = [request for request in self.waiting if request.state is State.WAITING]
        return chunks

    def _retract(self, request: Request) -> None:
        (self.decoding if request.state is State.DECODING else self.prefilling).remove(request)
        state.retract(request)
        insort(self.waiting, request, key=lambda waiting: waiting.number)
        self.recorder.totals.retractions += 1
        self._ratio.retracted(self._running())

    # -- launch -------------------------------------------------------------------------------------------------------

    def _launch(self, decodes: list[Request], chunks: list[Chunk]) -> None:
        """Submit the step and move the requests to where they will be once it has run."""
        batch = build_batch(decodes, chunks, self.cache)
        requests = decodes + [chunk.request for chunk in chunks]
        flight = Flight(
            requests=requests,
            generations=[request.generation for request in requests],
            ends=(batch.starts + batch.query_lens).tolist(),
            samples=batch.samples.tolist(),
            num_decodes=len(decodes),
            prefill_tokens=len(batch.token_ids) - len(decodes),
            scored=[chunk.scored for chunk in chunks],
            submitted_s=self._clock(),
            future=self.executor.submit(batch),
        )
        self.cache.submitted()
        self._flights.append(flight)
        for request, end, samples in zip(requests, flight.ends, flight.samples, strict=True):
            request.computed = end
            request.pending += samples
        for request in [chunk.request for chunk in chunks]:
            if request.computed == len(request.tokens):
                state.start_decoding(request)
                self.decoding.append(request)
        self.prefilling = [request for request in self.prefilling if request.state is State.PREFILLING]
        if decodes:
            self._ratio.step()

    # -- settle -------------------------------------------------------------------------------------------------------

    def _settle(self, flight: Flight) -> None:
        """Read a step's results: publish what prefill wrote, append what was drawn, end what is done."""
        try:
            output = flight.future.result()
        except ExecutorError as error:
            self._fail(flight, error)
            return
        now_s = self._clock()
        tokens = output.token_ids.tolist()
        drawn = scored = 0  # places in the output's columns
        for i, request in enumerate(flight.requests):
            samples = flight.samples[i]
            if request.generation == flight.generations[i]:
                if request.spec.embed and samples:
                    self._settle_embedding(request, output, drawn, now_s)
                    drawn += 1
                    continue
                token = tokens[drawn] if samples else None
                if i >= flight.num_decodes and token != NO_TOKEN:
                    self._settle_chunk(request, flight.ends[i], output, scored, flight.scored[i - flight.num_decodes])
                if token is not None:
                    self._settle_token(request, token, output, drawn, now_s)
                elif request.max_new == 0 and flight.ends[i] == len(request.tokens):
                    self._end(request, FinishReason(type="length", length=0))
            drawn += samples
            scored += len(flight.scored[i - flight.num_decodes]) if i >= flight.num_decodes else 0
        self._forget_finished()
        self._record(flight, 0 if self.capacity.embeds else len(tokens), failed=False)

    def _settle_chunk(self, request: Request, end: int, output: StepOutput, first: int, scored: range) -> None:
        request.lease.publish(request.tokens[:end])
        if request.score_from is not None:
            add_scored(request, output, first, scored)

    def _settle_token(self, request: Request, token: int, output: StepOutput, index: int, now_s: float) -> None:
        request.pending -= 1
        if token == NO_TOKEN:
            self._end(request, nothing_drawn(request))
            return
        reason, cut = append_token(request, token, self.vocabulary)
        delta = self._delta(request)
        delta.token_ids = [token]
        if request.spec.return_logprob:
            delta.logprobs = [drawn_logprob(request, output, index)]
        if len(request.outputs) == 1:
            self._describe_start(request, delta, now_s)
        if reason is None:
            delta.held_bytes = held_bytes(request)
        else:
            # The last token drawn has no keys and values yet.
            request.lease.publish(request.known_tokens()[:-1])
            delta.cut_bytes = cut
            self._end(request, reason, delta)

    def _settle_embedding(self, request: Request, output: StepOutput, index: int, now_s: float) -> None:
        request.pending -= 1
        vector = vector_bytes(output.embeddings[index])
        if vector is None:
            self._end(request, NOT_FINITE)
            return
        request.lease.publish(request.tokens)
        delta = self._delta(request)
        delta.embedding = vector
        self._describe_start(request, delta, now_s)
        self._end(request, FinishReason(type="length", length=0), delta)

    def _describe_start(self, request: Request, delta: TokenDelta, now_s: float) -> None:
        """What goes out with a request's first delta only."""
        assert request.admitted_s is not None
        delta.queue_s = request.admitted_s - request.arrived_s
        delta.prefill_s = now_s - request.admitted_s
        if request.score_from is not None:
            delta.input_logprobs = request.input_logprobs
            request.score_from = None

    def _delta(self, request: Request) -> TokenDelta:
        delta = TokenDelta(rid=request.rid, cached_tokens=request.cached_tokens, num_retractions=request.retractions)
        self.deltas.append(delta)
        return delta

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _end(self, request: Request, reason: FinishReason, delta: TokenDelta | None = None) -> None:
        """The one terminal delta of a request, and the end of all it holds."""
        if delta is None:
            delta = self._delta(request)
            if not request.outputs and reason.type == "length":
                self._describe_start(request, delta, self._clock())
        delta.finish = reason
        state.finish(request)
        del self.live[request.rid]
        self.recorder.totals.finished += 1
        self.recorder.totals.aborted += reason.type == "abort"

    def _forget_finished(self) -> None:
        """Take ended requests out of the lists."""
        self.grammars.forget_finished()
        self.waiting = [request for request in self.waiting if request.state is State.WAITING]
        self.prefilling = [request for request in self.prefilling if request.state is State.PREFILLING]
        self.decoding = [request for request in self.decoding if request.state is State.DECODING]
        if not self.live:
            self._ratio.idle()

    def _fail(self, flight: Flight, error: ExecutorError) -> None:
        """End the step's requests; what they wrote is not published.

        Whoever goes on was not in the step, so none of the step's page table changes was for them.
        """
        reason = FinishReason(type="abort", message=f"The step failed: {error}", status_code=500)
        for request, generation in zip(flight.requests, flight.generations, strict=True):
            if request.generation == generation:
                self._end(request, reason)
        self._forget_finished()
        self._record(flight, 0, failed=True)

    def _out_of_memory(self, request: Request) -> FinishReason:
        cache = self.cache
        return FinishReason(
            type="abort",
            status_code=500,
            message=f"Out of KV memory: the request holds {request.lease.allocated} pages of {cache.page_size} tokens "
            f"and needs one more; {cache.available_pages} of {cache.total_pages} can be had and no other request is "
            "left to give way.",
        )

    def _record(self, flight: Flight, generated: int, *, failed: bool) -> None:
        now_s = self._clock()
        self.recorder.add(
            StepRecord(
                ended_s=now_s,
                duration_s=now_s - flight.submitted_s,
                decode_rows=flight.num_decodes,
                prefill_tokens=flight.prefill_tokens,
                generated_tokens=generated,
                running=len(self.decoding) + len(self.prefilling),
                waiting=len(self.waiting),
                used_pages=self.cache.total_pages - self.cache.allocator.free_count,
                failed=failed,
            )
        )
