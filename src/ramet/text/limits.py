"""What a prompt and its parameters may be for this model: checked once, before anything is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ramet import sampling_params
from ramet.errors import RequestError, RequestTooLong
from ramet.grammar import stop_regex
from ramet.text.generation import GenerateRequest
from ramet.text.surrogates import refuse_unpaired
from ramet.types import EngineRequest, SamplingParams

#: Generations that one request may start by asking for several samples: each takes some 3 kB until it ends.
MAX_SAMPLES = 16_384

#: A request that may take longer (seconds, a year) has no deadline.
MAX_TIMEOUT_S = 31_536_000

#: Ids whose logprobs a request may have at every position: the answer holds ids × tokens of them.
MAX_SCORED_IDS = 1024

#: Whole numbers that a message to the engine can hold.
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes that a request must fit."""

    context_length: int  # prompt and generated tokens together
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    allow_auto_truncate: bool = False
    truncate_prompt: str = "left"  # what is cut: the beginning, or the "middle"

    def check_ids(self, token_ids: Sequence[int], field: str) -> None:
        """Raise unless every id is in the vocabulary."""
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self.vocab_size:
            wrong = next(token for token in token_ids if not 0 <= token < self.vocab_size)
            raise RequestError(
                f"{field}: token id {wrong} is outside the vocabulary (0 to {self.vocab_size - 1}).", field=field
            )


def check_samples(prompts: int, samples: int) -> None:
    """Raise when a short request asks for more generations than memory should be spent on."""
    if samples > 1 and prompts * samples > MAX_SAMPLES:
        raise RequestError(
            f"n {samples} for each of {prompts} prompts asks for {prompts * samples} generations; at most "
            f"{MAX_SAMPLES} are possible in one request.",
            field="n",
        )


def check_sendable(request: EngineRequest) -> None:
    """Raise for what a message to the engine cannot carry: numbers beyond 64 bits, text that is not Unicode."""
    for name in ("priority", "top_logprobs_num", "logprob_start_len"):
        if getattr(request, name) not in _INT64:
            raise RequestError(f"{name} must be a 64-bit integer.", field=name)
    refuse_unpaired(request.rid, "rid")


def fit(request: GenerateRequest, prompt: list[int], limits: Limits) -> tuple[list[int], SamplingParams, str | None]:
    """The prompt and parameters as they will run, and a warning if either had to give way.

    `max_new_tokens` is a number afterwards: at most what the context holds beside the prompt.
    """
    context, sampling, asked = limits.context_length, request.sampling, request.sampling.max_new_tokens
    warning = None
    if len(prompt) >= context:
        if not limits.allow_auto_truncate:
            raise RequestTooLong(
                f"The input ({len(prompt)} tokens) is longer than the model's context length ({context} tokens).",
                field="prompt",
            )
        reserve = max(1, min(asked or context // 2, context // 2))
        head = (context - reserve) // 2 if limits.truncate_prompt == "middle" else 0
        tail = context - reserve - head
        what = f"tokens {head + 1} to {len(prompt) - tail}" if head else f"the first {len(prompt) - tail}"
        warning = f"{what} of {len(prompt)} prompt tokens were cut"
        prompt = prompt[:head] + prompt[-tail:]
    room = context - len(prompt)
    if asked is None:
        asked = room
    elif asked > room:
        if not (request.clamp or limits.allow_auto_truncate):
            raise RequestTooLong(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. "
                f"You requested a total of {len(prompt) + asked} tokens: {len(prompt)} tokens from the input and "
                f"{asked} tokens for the completion.",
                field=request.names.get("max_new_tokens", "max_new_tokens"),
            )
        note = f"max tokens reduced from {asked} to {room}, what the context of {context} holds"
        warning = f"{warning}; {note}" if warning else note
        asked = room
    if request.logprob_start_len > len(prompt):
        raise RequestError(
            f"logprob_start_len {request.logprob_start_len} is beyond the prompt's {len(prompt)} tokens.",
            field="logprob_start_len",
        )
    if request.top_logprobs_num > limits.vocab_size:
        raise RequestError(
            f"top_logprobs_num {request.top_logprobs_num} is more than the {limits.vocab_size} tokens there are.",
            field="top_logprobs_num",
        )
    if len(request.token_ids_logprob) > MAX_SCORED_IDS:
        raise RequestError(
            f"token_ids_logprob names {len(request.token_ids_logprob)} ids; at most {MAX_SCORED_IDS} are possible.",
            field="token_ids_logprob",
        )
    limits.check_ids(request.token_ids_logprob, "token_ids_logprob")
    for ids in (request.allowed_ids, request.banned_ids):
        limits.check_ids(ids, "custom_params")
    if request.timeout_s is not None and not 0 < request.timeout_s < MAX_TIMEOUT_S:
        raise RequestError(f"timeout_s must be above 0 and below {MAX_TIMEOUT_S}.", field="timeout_s")
    if request.stream_interval is not None and request.stream_interval < 1:
        raise RequestError("stream_interval must be at least 1.", field="stream_interval")
    stop_regex.check(sampling.stop_regex)
    sampling_params.check(sampling, vocab_size=limits.vocab_size, names=request.names)
    if sampling.min_new_tokens > asked:
        sampling = msgspec.structs.replace(sampling, min_new_tokens=asked)
    return prompt, msgspec.structs.replace(sampling, max_new_tokens=asked), warning
