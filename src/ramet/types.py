"""Plain data that travels between the parts: requests, deltas, finish reasons, usage. Imports none of the parts."""

from __future__ import annotations

from typing import Literal

import msgspec

FinishType = Literal["stop", "length", "abort"]

#: `max_new_tokens` on `/generate` and `Engine.generate` when the request does not say (SGLang's default).
DEFAULT_MAX_NEW_TOKENS = 128


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How tokens are chosen and when a request ends. Defaults, names and ranges follow SGLang's `/generate`.

    `ramet.sampling_params.parse` turns a client's mapping into one of these and checks every range; an instance built
    directly is checked when it is submitted.

    Distribution, in this order: penalties and `logit_bias` on the logits, grammar mask, divide by `temperature`,
    softmax, `top_k`, `top_p`, `min_p` (each keeps a set of the same distribution; the sets are intersected), then one
    draw from a counter-based generator keyed by (`sampling_seed`, index of the generated token).
    """

    max_new_tokens: int | None = DEFAULT_MAX_NEW_TOKENS  # None: whatever the context still holds
    min_new_tokens: int = 0  # until reached, EOS and stop ids cannot be drawn
    temperature: float = 1.0  # below 1e-6: greedy
    top_p: float = 1.0
    top_k: int = -1  # -1: the whole vocabulary
    min_p: float = 0.0
    frequency_penalty: float = 0.0  # over generated tokens
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0  # over generated tokens
    logit_bias: dict[int, float] = {}
    sampling_seed: int | None = None  # None: a fresh random seed per request
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    n: int = 1
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None


class ThinkingBudget(msgspec.Struct, frozen=True, kw_only=True):
    """At most so many tokens of thinking; then the engine writes `close_ids`."""

    tokens: int
    opening: str
    closing: str
    close_ids: tuple[int, ...]
    opened: bool  # the prompt has opened the thinking


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, tag="request"):
    """One generation as the engine sees it: token ids in, token ids out. Text has been dealt with before."""

    rid: str  # unique among live requests
    token_ids: list[int]  # the whole prompt, at least one
    sampling: SamplingParams  # with n == 1 and `sampling_seed` filled in
    eos_token_ids: tuple[int, ...] = ()  # of tokenizer and model config; disabled by `ignore_eos`
    embed: bool = False  # its vector is wanted, and no token; `sampling.max_new_tokens` is 0
    token_types: list[int] = []  # of an embedding's tokens; empty: all 0
    namespace: str = ""  # cache isolation: salt, adapter; equal prompts in different namespaces share nothing
    priority: int = 0
    return_logprob: bool = False
    top_logprobs_num: int = 0
    logprob_start_len: int = -1  # first prompt position whose logprob is wanted; -1: none
    token_ids_logprob: tuple[int, ...] = ()
    grammar_after: tuple[int, ...] = ()  # the grammar rules once these ids have come in a row (the end of thinking)
    allowed_ids: tuple[int, ...] = ()  # nothing else is drawn; empty: everything
    banned_ids: tuple[int, ...] = ()  # never drawn
    thinking_budget: ThinkingBudget | None = None
    deadline_s: float | None = None  # time.monotonic() of the engine's machine after which the request is aborted


class FinishReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request ended. Exactly one per request, on its last delta."""

    type: FinishType
    matched: int | str | None = None  # stop: the token id or the stop string
    length: int | None = None  # length: tokens generated
    message: str | None = None  # abort: for people
    status_code: int | None = None  # abort: HTTP status; None for an abort that the client asked for
    field: str | None = None  # abort by validation: the field at fault


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Logprob of one token and of the most likely ones at its position (best first)."""

    token_id: int
    logprob: float | None  # None: first prompt token, which nothing predicts
    top: list[tuple[int, float]] | None = None
    chosen: list[tuple[int, float]] | None = None  # of the request's `token_ids_logprob`


class TokenDelta(msgspec.Struct, kw_only=True, tag="delta"):
    """What one step added to one request. The last delta, and only it, has `finish`.

    `held_bytes`: that many trailing bytes of all bytes generated so far may turn out to be the start of a stop string
    and must not be shown yet. `cut_bytes` (with `finish`): that many trailing bytes are not part of the text (a matched
    stop string and what followed it inside its last token, or just the latter with `no_stop_trim`).
    """

    rid: str
    token_ids: list[int] = []
    held_bytes: int = 0
    cut_bytes: int = 0
    finish: FinishReason | None = None
    logprobs: list[TokenLogprob] | None = None  # one per new token
    input_logprobs: list[TokenLogprob] | None = None  # on the first delta, when asked
    embedding: bytes | None = None  # float32, little-endian; on the one delta of a request with `embed`
    cached_tokens: int = 0  # prompt tokens reused from the cache (first admission)
    num_retractions: int = 0
    queue_s: float | None = None  # on the first delta: time from arrival to first admission
    prefill_s: float | None = None  # on the first delta: time from admission to first token


class Usage(msgspec.Struct, frozen=True):
    """Token accounting of one request, computed once, rendered by each dialect."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens
