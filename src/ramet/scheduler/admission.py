"""What can ever run, shown to users and tested at arrival by the same numbers; and what may start now."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ramet.cache.lease import KvCache, Lease
from ramet.executor.base import Layout
from ramet.grammar import stop_regex
from ramet.scheduler.state import Request
from ramet.types import EngineRequest, FinishReason

#: Best tokens that a request may have named at each position: of a prompt they are kept until it is computed, 100 bytes
#: each. More than the vocabulary would end the step for everybody in it.
MAX_TOP_LOGPROBS = 1024

#: A request is not expected to generate more than this (it may): a huge `max_new_tokens` would hold up the queue.
MAX_EXPECTED_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one request can be. It may use the whole pool: everything else can be evicted or retracted for it."""

    context_tokens: int  # prompt and generated tokens
    pool_tokens: int  # tokens with keys and values: all but the last generated one
    vocab_size: int
    embeds: bool = False  # requests get vectors, or else tokens
    whole_tokens: int | None = None  # the longest prompt of a model that computes prompts whole, in one step

    @classmethod
    def of(cls, layout: Layout, vocab_size: int, *, embeds: bool = False, whole_tokens: int | None = None) -> Capacity:
        pool_tokens = layout.num_pages * layout.page_size
        return cls(layout.max_row_tokens, pool_tokens, vocab_size, embeds=embeds, whole_tokens=whole_tokens)

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that leaves room for one new token."""
        return min(self.context_tokens - 1, self.pool_tokens)

    def new_tokens(self, prompt_tokens: int, asked: int | None) -> int:
        """How many tokens a prompt of this length can get of those asked for (None: as many as fit)."""
        most = min(self.context_tokens - prompt_tokens, self.pool_tokens - prompt_tokens + 1)
        return most if asked is None else min(asked, most)

    def refusal(self, spec: EngineRequest, *, stop_strings: bool) -> FinishReason | None:
        """Why this request can never run here, with the numbers; None if it can. `stop_strings`: can be matched."""
        sampling, prompt = spec.sampling, len(spec.token_ids)
        if not prompt:
            return _refuse("The prompt has no tokens.", "input_ids")
        if spec.embed != self.embeds:
            return _refuse(
                "The model gives embeddings and no text." if self.embeds else "The model gives no embeddings."
            )
        if spec.token_types and len(spec.token_types) != prompt:
            return _refuse(f"{len(spec.token_types)} token types for {prompt} tokens.", "token_types")
        most = self.max_prompt_tokens + (sampling.max_new_tokens == 0 and self.context_tokens <= self.pool_tokens)
        most = most if self.whole_tokens is None else min(most, self.whole_tokens)
        if prompt > most:
            return _refuse(
                f"The prompt has {prompt} tokens; at most {most} can run here (context {self.context_tokens}, "
                f"KV pool {self.pool_tokens} tokens).",
                "input_ids",
            )
        for field, ids in (
            ("input_ids", spec.token_ids),
            ("stop_token_ids", sampling.stop_token_ids),
            ("logit_bias", sampling.logit_bias),
            ("token_ids_logprob", spec.token_ids_logprob),
            ("allowed_ids", spec.allowed_ids),
            ("banned_ids", spec.banned_ids),
        ):
            if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
                wrong = min(ids) if min(ids) < 0 else max(ids)
                return _refuse(f"{field}: token id {wrong} is not in 0 .. {self.vocab_size - 1}.", field)
        top = min(MAX_TOP_LOGPROBS, self.vocab_size)
        if spec.top_logprobs_num > top:
            return _refuse(
                f"top_logprobs_num {spec.top_logprobs_num} is more than the {top} possible here.", "top_logprobs_num"
            )
        if spec.logprob_start_len > prompt:
            return _refuse(
                f"logprob_start_len {spec.logprob_start_len} is beyond the prompt's {prompt} tokens.",
                "logprob_start_len",
            )
        if any(not string for string in sampling.stop):
            return _refuse("A stop string is empty.", "stop")
        if spec.allowed_ids and set(spec.allowed_ids) <= set(spec.banned_ids):
            return _refuse("All tokens that are allowed are disallowed as well.", "allowed_ids")
        for field, given in (("stop", sampling.stop), ("stop_regex", sampling.stop_regex)):
            if given and not stop_strings:
                return _refuse(f"{field} needs the tokens' bytes, which this engine was not given.", field)
        if sampling.n != 1:
            return _refuse("The engine takes one generation per request (n = 1).", "n")
        return stop_regex.refusal(sampling.stop_regex)


def _refuse(message: str, field: str | None = None) -> FinishReason:
    return FinishReason(type="abort", message=message, status_code=400, field=field)


class NewTokenRatio:
    """The share of `max_new_tokens` that requests are expected to use.

    Starts at 0.7 times the conservativeness and falls within 600 steps to 14 % of that, as long as memory lasts; a
    retraction sets it to what the running requests have really used, and an idle engine starts over.
    """

    START, FLOOR, STEPS, HEADROOM_STEPS = 0.7, 0.14, 600, 20

    def __init__(self, conservativeness: float) -> None:
        self._start = min(self.START * conservativeness, 1.0)
        self._floor = self._start * self.FLOOR
        self.value = self._start

    def step(self) -> None:
        self.value = max(self.value - (self._start - self._floor) / self.STEPS, self._floor)

    def retracted(self, running: Iterable[Request]) -> None:
        """Requests had to give way; `running` are left."""
        requests = list(running)
        generated = sum(len(request.outputs) for request in requests)
        asked = sum(request.max_new for request in requests)
        self.value = min(1.0, (generated + self.HEADROOM_STEPS * len(requests)) / (asked + 1))

    def idle(self) -> None:
        self.value = self._start

    def expected_tokens(self, request: Request) -> int:
        """Tokens that `request` is expected to generate yet."""
        share = 1.0 if request.spec.sampling.ignore_eos else self.value
        return math.ceil(min(request.remaining, MAX_EXPECTED_TOKENS) * share)


def growth_pages(requests: Iterable[Request], cache: KvCache, ratio: NewTokenRatio) -> int:
    """Pages that the running requests are expected to need beyond those they have."""
    total = 0
    for request in requests:
        tokens = len(request.prompt) + len(request.outputs) + ratio.expected_tokens(request) - 1
        total += max(cache.pages_for(tokens) - request.lease.allocated, 0)
    return total


def try_admit(request: Request, cache: KvCache, ratio: NewTokenRatio, growth: int) -> Lease | None:
    """A lease for all tokens of `request`, if after it and the expected `growth` its own outputs should fit as well."""
    tokens = len(request.tokens)
    own = cache.pages_for(tokens + max(ratio.expected_tokens(request) - 1, 0)) - cache.pages_for(tokens)
    return cache.acquire(request.spec.namespace, request.tokens, request.reuse_limit(), growth + own)


def has_room(request: Request, running: Iterable[Request], cache: KvCache, ratio: NewTokenRatio) -> bool:
    """Whether a waiting request would find a row, and pages even if the cache had nothing for it."""
    tokens = len(request.tokens) + max(ratio.expected_tokens(request) - 1, 0)
    needed = cache.pages_for(tokens) + growth_pages(running, cache, ratio)
    return cache.free_rows > 0 and cache.available_pages >= needed
