"""A request's states and every way from one to another.

    COMPILING --join_queue--> WAITING --admit--> PREFILLING --start_decoding--> DECODING
                                 ^                   |                             |
                                 +------ retract ----+-----------------------------+
    any of the four --finish--> FINISHED

A request with a grammar starts by `await_grammar` as COMPILING, owned by `Grammars`; the others start as WAITING, owned
by the scheduler's queue. Both hold no memory; PREFILLING and DECODING hold a lease. Whatever ends or
retracts a request raises its `generation`, so the results of its steps still in flight are dropped.
"""

from __future__ import annotations

from concurrent.futures import Future
from enum import Enum

import numpy as np

from ramet.cache.lease import Lease
from ramet.errors import BrokenInvariant
from ramet.executor.base import I32, U32, RowParams
from ramet.grammar import CompiledGrammar, Matcher
from ramet.grammar.stop_regex import RegexStops
from ramet.scheduler.rules import TokenRules
from ramet.scheduler.stop import StopMatcher
from ramet.types import EngineRequest, TokenLogprob

GREEDY_BELOW = 1e-6
_SEED_MASK = (1 << 64) - 1


class State(Enum):
    COMPILING = "compiling"
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"


class Request:
    """One live request. `number` is its place in the order of arrival."""

    __slots__ = (
        "admitted_s",
        "arrived_s",
        "cached_tokens",
        "computed",
        "end_ids",
        "generation",
        "grammar",
        "input_logprobs",
        "leased",
        "mask",
        "matcher",
        "max_new",
        "number",
        "outputs",
        "pending",
        "prompt",
        "regexes",
        "retractions",
        "rid",
        "row",
        "rules",
        "score_from",
        "spec",
        "state",
        "stop",
        "tokens",
    )

    def __init__(self, spec: EngineRequest, max_new: int, number: int, arrived_s: float) -> None:
        sampling = spec.sampling
        self.spec = spec
        self.rid = spec.rid
        self.number = number
        self.max_new = max_new
        self.prompt: I32 = np.array(spec.token_ids, np.int32)
        self.outputs: list[int] = []
        self.end_ids = frozenset(sampling.stop_token_ids + (() if sampling.ignore_eos else spec.eos_token_ids))
        self.stop = StopMatcher(sampling.stop) if sampling.stop else None
        self.regexes = RegexStops(sampling.stop_regex) if sampling.stop_regex else None
        self.grammar: Future[CompiledGrammar] | None = None
        self.matcher: Matcher | None = None  # the grammar's state after `outputs`
        self.rules: TokenRules | None = None  # after `outputs`
        self.mask: U32 | None = None  # [ceil(V/32)] what grammar and rules allow next
        self.state = State.WAITING
        self.generation = 0
        self.leased: Lease | None = None
        self.row = -1
        self.tokens = self.prompt  # what prefill has to compute: the prompt and, after a retraction, the outputs
        self.computed = 0  # tokens whose keys and values are written once the submitted steps have run
        self.pending = 0  # tokens drawn in steps that are not settled
        # Position from which logits of the prompt are wanted (those at p predict the token at p + 1), until delivered.
        scores = spec.return_logprob and spec.logprob_start_len >= 0
        self.score_from = max(spec.logprob_start_len - 1, 0) if scores else None
        self.input_logprobs: list[TokenLogprob] = []
        self.cached_tokens = 0
        self.retractions = 0
        self.arrived_s = arrived_s
        self.admitted_s: float | None = None

    @property
    def lease(self) -> Lease:
        assert self.leased is not None
        return self.leased

    @property
    def remaining(self) -> int:
        """Tokens it may still generate."""
        return self.max_new - len(self.outputs)

    def reuse_limit(self) -> int:
        """How many leading tokens may come from the cache: all but the last, and none whose logits are wanted."""
        limit = len(self.tokens) - 1
        return limit if self.score_from is None else min(limit, self.score_from)

    def known_tokens(self) -> I32:
        """Prompt and outputs so far."""
        return np.concatenate([self.prompt, np.array(self.outputs, np.int32)])

    def row_params(self) -> RowParams:
        """What the executor keeps for the row."""
        sampling, wants = self.spec.sampling, self.spec.return_logprob
        return RowParams(
            temperature=0.0 if sampling.temperature < GREEDY_BELOW else sampling.temperature,
            top_k=max(sampling.top_k, 0),
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=(sampling.sampling_seed or 0) & _SEED_MASK,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=sampling.repetition_penalty,
            bias_ids=tuple(sampling.logit_bias),
            bias_values=tuple(sampling.logit_bias.values()),
            suppress_ids=tuple(self.end_ids) if sampling.min_new_tokens > 0 else (),
            suppress_until=sampling.min_new_tokens,
            generated=tuple(self.outputs),
            top_logprobs=self.spec.top_logprobs_num if wants else -1,
            logprob_ids=self.spec.token_ids_logprob if wants else (),
        )


def await_grammar(request: Request) -> None:
    """WAITING → COMPILING, on arrival."""
    _leave(request, State.WAITING)
    request.state = State.COMPILING


def join_queue(request: Request) -> None:
    """COMPILING → WAITING: its grammar is there."""
    _leave(request, State.COMPILING)
    request.state = State.WAITING


def admit(request: Request, lease: Lease, now_s: float) -> None:
    """WAITING → PREFILLING: it has a row and pages for its tokens, some of them computed already."""
    _leave(request, State.WAITING)
    request.state = State.PREFILLING
    request.leased = lease
    request.row = lease.row
    request.computed = lease.reused
    if request.admitted_s is None:
        request.admitted_s = now_s
        request.cached_tokens = lease.reused


def start_decoding(request: Request) -> None:
    """PREFILLING → DECODING: the last chunk has been submitted."""
    _leave(request, State.PREFILLING)
    request.state = State.DECODING


def retract(request: Request) -> None:
    """PREFILLING or DECODING → WAITING: it gives up its memory and keeps its tokens."""
    _leave(request, State.PREFILLING, State.DECODING)
    request.state = State.WAITING
    _give_up(request)
    request.retractions += 1
    request.tokens = request.known_tokens()
    request.input_logprobs = []


def finish(request: Request) -> None:
    """→ FINISHED, from anywhere. What is to stay in the cache has been published before."""
    _leave(request, State.COMPILING, State.WAITING, State.PREFILLING, State.DECODING)
    request.state = State.FINISHED
    if request.leased is not None:
        _give_up(request)


def _leave(request: Request, *expected: State) -> None:
    if request.state not in expected:
        raise BrokenInvariant(f"request {request.rid} is {request.state.value}, not {expected[0].value}")


def _give_up(request: Request) -> None:
    request.lease.release()
    request.leased = None
    request.computed = request.pending = 0
    request.generation += 1
