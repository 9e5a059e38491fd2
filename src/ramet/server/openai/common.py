"""What completions and chat share: sampling fields, defaults, usage, refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from ramet import sampling_params
from ramet.errors import RametError, RequestAborted, RequestError
from ramet.server.errors import openai_object
from ramet.server.native_format import namespace
from ramet.server.sampling_fields import SamplingFields
from ramet.text.generation import Chunk, GenerateRequest, abort_error
from ramet.text.processors import check_budget, read_processor
from ramet.types import SamplingParams, Usage

#: Most alternatives per token that these routes return.
MAX_TOP_LOGPROBS = 100

#: The engine's name of a sampling field -> OpenAI's, where they differ.
NAMES = {"sampling_seed": "seed", "min_new_tokens": "min_tokens", "max_new_tokens": "max_tokens"}

_NATIVE_NAMES = {ours: native for native, ours in NAMES.items()}

#: Fields that say nothing about the answer: accepted.
HARMLESS = frozenset(
    "user metadata service_tier safety_identifier prompt_cache_key prompt_cache_retention store session_id log_metrics "
    "routing_key conversation_id custom_labels no_logs".split()
)

#: Fields that would change the answer and are not honoured yet: refused by name unless null, false or empty.
NOT_YET = frozenset(
    "lora_path watermark bootstrap_host bootstrap_port bootstrap_room "
    "session_params return_hidden_states return_routed_experts return_cached_tokens_details return_spec_tokens_details "
    "return_sampling_mask return_flat_raw_output_top_logprobs bad_words allowed_token_ids structured_outputs "
    "guided_json guided_regex guided_choice guided_grammar use_beam_search length_penalty prompt_logprobs "
    "truncate_prompt_tokens logits_processors".split()
)


class StreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SharedFields(SamplingFields, kw_only=True):
    """Fields with the same meaning on both routes. Null means the default."""

    model: str | None = None
    seed: int | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    rid: str | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    return_token_ids: bool | None = None
    custom_logit_processor: str | None = None
    max_thinking_tokens: int | None = None
    timeout_s: float | None = None  # ramet's own: from arrival to a 503
    explain: bool | None = None


#: `SamplingFields` and OpenAI's own names, but for what is no property of the distribution.
_SAMPLING = (*(name for name in SamplingFields.__struct_fields__ if name != "custom_params"), "seed", "min_tokens")


def read_sampling(
    body: SharedFields, max_tokens: int | None, defaults: Mapping[str, Any], *, max_tokens_name: str = "max_tokens"
) -> SamplingParams:
    """Checked parameters. `defaults` lie under the request's own values; errors use OpenAI's names."""
    values = dict(defaults)
    for name in _SAMPLING:
        value = getattr(body, name)
        if value is not None:
            values[_NATIVE_NAMES.get(name, name)] = value
    if body.response_format is not None:
        for name, grammar in read_response_format(body.response_format).items():
            if values.get(name):
                raise RequestError(f"response_format and {name} cannot both be given.", field="response_format")
            values[name] = grammar
    values["max_new_tokens"] = max_tokens
    return sampling_params.parse(values, names={**NAMES, "max_new_tokens": max_tokens_name})


def make_request(
    body: SharedFields, prompt: str | list[int], sampling: SamplingParams, *, rid: str | None, **logprobs: Any
) -> GenerateRequest:
    """The generation for one prompt of a body."""
    extra = read_processor(body.custom_logit_processor, body.custom_params)
    if body.max_thinking_tokens is not None:
        extra["thinking_tokens"] = check_budget(body.max_thinking_tokens, "max_thinking_tokens")
    return GenerateRequest(
        prompt=prompt,
        sampling=sampling,
        rid=rid,
        clamp=True,
        names=NAMES,
        namespace=namespace(body.cache_salt, body.extra_key),
        priority=body.priority or 0,
        timeout_s=body.timeout_s,
        **extra,
        **logprobs,
    )


def read_response_format(given: Mapping[str, Any]) -> dict[str, str]:
    """The sampling field that a `response_format` amounts to, and its value; none for plain text."""
    kind = given.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    if kind == "structural_tag":
        return {"structural_tag": json.dumps(given)}
    if kind != "json_schema":
        raise RequestError(
            f"response_format: type {kind!r} is none of text, json_object, json_schema, structural_tag.",
            field="response_format",
        )
    outer = given.get("json_schema")
    schema = outer.get("schema") if isinstance(outer, Mapping) else None
    if not isinstance(schema, Mapping | bool):
        raise RequestError(
            'response_format: json_schema must be an object with a "schema", which is an object, true or false.',
            field="response_format",
        )
    return {"json_schema": json.dumps(schema)}


def check_top_logprobs(value: int | None, field: str) -> int:
    """The number of alternatives, in range."""
    if value is not None and not 0 <= value <= MAX_TOP_LOGPROBS:
        raise RequestError(f"{field} must be from 0 to {MAX_TOP_LOGPROBS}, not {value}.", field=field)
    return value or 0


def usage_object(usage: Usage, *, cache_report: bool) -> dict[str, Any]:
    """`usage` as OpenAI clients read it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens} if cache_report else None,
        "reasoning_tokens": usage.reasoning_tokens,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens} if usage.reasoning_tokens else None,
    }


def raise_if_aborted(chunk: Chunk) -> None:
    """In a stream an abort is never a normal end."""
    finish = chunk.finish
    if finish is None or finish.type != "abort":
        return
    raise abort_error(finish) or RequestAborted(finish.message or "The request was aborted.")


def late_error(error: RametError) -> bytes:
    """The event that ends a failed stream; no `[DONE]` follows, so it cannot be taken for a success."""
    return b'data: {"error":' + msgspec.json.encode(openai_object(error)) + b"}\n\n"
