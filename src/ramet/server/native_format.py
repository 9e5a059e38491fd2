"""The shapes of `/generate`: its request, its answer, its `meta_info`. Shared by the route and the offline `Engine`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ramet import sampling_params
from ramet.errors import RequestError
from ramet.server.errors import BodyTypeError, type_error
from ramet.server.sampling_fields import SamplingFields
from ramet.text.generation import Choice, Chunk, GenerateRequest
from ramet.text.processors import check_budget, read_processor
from ramet.text.surrogates import refuse_unpaired
from ramet.types import FinishReason, SamplingParams, TokenLogprob

T = TypeVar("T")


class NativeRequest(msgspec.Struct, kw_only=True):
    """Body of `/generate`. A list of prompts is a batch, and most fields may then be lists, one value per prompt."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int | list[int]] | None = None
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None
    return_prompt_token_ids: bool = False
    cache_salt: str | list[str | None] | None = None
    extra_key: str | list[str | None] | None = None
    priority: int | None = None
    log_metrics: bool | None = None
    custom_logit_processor: str | list[str | None] | None = None
    max_thinking_tokens: int | None = None
    timeout_s: float | None = None  # ramet's own: from arrival to a finish of type abort


#: Fields that SGLang knows and that would change the answer: refused by name unless null, false or empty.
NOT_YET = frozenset(
    "input_embeds image_data video_data audio_data mm_hashes mm_content_hashes return_hidden_states "
    "return_routed_experts return_indexer_topk lora_path bootstrap_host bootstrap_port "
    "bootstrap_room return_sampling_mask sampling_logprobs_mode return_entropy return_bytes require_reasoning "
    "watermark return_flat_raw_top_logprobs return_flat_raw_output_top_logprobs "
    "return_flat_raw_top_logprobs_b64 return_flat_raw_output_top_logprobs_b64 multi_item_delimiter_indices "
    "token_indices_to_pool embed_overrides".split()
)


class SamplingTypes(SamplingFields, kw_only=True):
    """JSON types of `sampling_params`."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    sampling_seed: int | None = None
    structural_tag: str | None = None
    stream_interval: int | None = None


#: Fields of `sampling_params` that are no property of the distribution.
_BESIDE_SAMPLING = ("custom_params", "stream_interval")

_SAMPLING_KEYS = (*SamplingTypes.__struct_fields__, *sampling_params.UNSUPPORTED_FIELDS)


def check_types(body: NativeRequest) -> None:
    """The JSON types and names inside `sampling_params`; what is wrong is a `BodyTypeError`."""
    given = body.sampling_params
    for params in given if isinstance(given, list) else [given or {}]:
        for key in params:
            if key not in _SAMPLING_KEYS:
                names = ", ".join(f"`{name}`" for name in _SAMPLING_KEYS)
                raise BodyTypeError(f"sampling_params: unknown field `{key}`, expected one of {names}", field=key)
        try:
            msgspec.convert(params, SamplingTypes)
        except msgspec.ValidationError as error:
            raise type_error(str(error), "sampling_params") from None


def _read_sampling(given: Mapping[str, Any] | SamplingParams) -> tuple[SamplingParams, bool, Mapping[str, Any]]:
    """Checked parameters, whether `max_new_tokens` was said, and what else stood there. The offline `Engine` may give
    parameters ready made."""
    if isinstance(given, SamplingParams):
        return given, True, {}
    sampling = {name: value for name, value in given.items() if name not in _BESIDE_SAMPLING}
    return sampling_params.parse(sampling), given.get("max_new_tokens") is not None, given


def to_requests(
    body: NativeRequest, warnings: list[str], *, may_be_empty: bool = False
) -> tuple[list[GenerateRequest], bool]:
    """The generations asked for, and whether the answer is a list. `may_be_empty`: `input_ids` may be `[]`."""
    prompts, batched = _prompts(body, warnings) if body.input_ids != [] or not may_be_empty else ([[]], False)
    count = len(prompts)

    def each(field: str, value: T | list[T] | None, default: T) -> list[T]:
        if isinstance(value, list):
            if not batched or len(value) != count:
                raise RequestError(f"{field}: a list needs one value for each of {count} prompts.", field=field)
            return [default if item is None else item for item in value]
        return [default if value is None else value] * count

    sampling: list[Any] = each("sampling_params", body.sampling_params, {})
    rids = each("rid", body.rid, "")
    if batched and isinstance(body.rid, str):
        rids = [f"{body.rid}_{index}" for index in range(count)]
    logprob = each("return_logprob", body.return_logprob, False)
    starts = each("logprob_start_len", body.logprob_start_len, -1)
    tops = each("top_logprobs_num", body.top_logprobs_num, 0)
    chosen = _chosen_ids(body, count, batched)
    salts = each("cache_salt", body.cache_salt, None)
    keys = each("extra_key", body.extra_key, None)
    processors = each("custom_logit_processor", body.custom_logit_processor, None)
    requests: list[GenerateRequest] = []
    for index, prompt in enumerate(prompts):
        params, said, beside = _read_sampling(sampling[index])
        extra = read_processor(processors[index], beside.get("custom_params"))
        if body.max_thinking_tokens is not None:
            extra["thinking_tokens"] = check_budget(body.max_thinking_tokens, "max_thinking_tokens")
        if tops[index] < 0 or starts[index] < -1:
            name = "top_logprobs_num" if tops[index] < 0 else "logprob_start_len"
            raise RequestError(f"{name} must be at least {0 if tops[index] < 0 else -1}.", field=name)
        requests.append(
            GenerateRequest(
                prompt=prompt,
                sampling=params,
                rid=rids[index] or None,
                clamp=not said,
                namespace=namespace(salts[index], keys[index]),
                priority=body.priority or 0,
                return_logprob=logprob[index],
                top_logprobs_num=tops[index],
                logprob_start_len=starts[index],
                token_ids_logprob=chosen[index],
                timeout_s=body.timeout_s,
                stream_interval=beside.get("stream_interval"),
                **extra,
            )
        )
    if any(request.sampling.n != requests[0].sampling.n for request in requests):
        raise RequestError("n must be the same for all prompts of a batch.", field="n")
    return requests, batched or requests[0].sampling.n > 1


def namespace(cache_salt: str | None, extra_key: str | None) -> str:
    """The part of the prefix cache that a request shares; "" is everybody's."""
    if not cache_salt and not extra_key:
        return ""
    refuse_unpaired(cache_salt or "", "cache_salt")
    refuse_unpaired(extra_key or "", "extra_key")
    return msgspec.json.encode([cache_salt or "", extra_key or ""]).decode()


def _prompts(body: NativeRequest, warnings: list[str]) -> tuple[Sequence[str | list[int]], bool]:
    if body.text is not None:
        if body.input_ids is not None:
            warnings.append("input_ids was ignored because text was given")
        texts = [body.text] if isinstance(body.text, str) else body.text
        if not texts:
            raise RequestError("text: the list of prompts is empty.", field="text")
        return texts, isinstance(body.text, list)
    if body.input_ids is None:
        raise RequestError("Either text, input_ids or input_embeds should be provided.", field="text")
    if not body.input_ids:
        raise RequestError("input_ids: the prompt has no tokens.", field="input_ids")
    return split_ids(body.input_ids, "input_ids")


def split_ids(given: Sequence[int | list[int]], field: str) -> tuple[list[list[int]], bool]:
    """Token prompts of a field that holds one or several; whether it held several."""
    lists = [item for item in given if isinstance(item, list)]
    if not lists:
        return [[item for item in given if isinstance(item, int)]], False
    if len(lists) != len(given):
        raise BodyTypeError(f"{field}: token ids and lists of token ids cannot be mixed", field=field)
    return lists, True


def _chosen_ids(body: NativeRequest, count: int, batched: bool) -> list[tuple[int, ...]]:
    if not body.token_ids_logprob:
        return [()] * count
    lists, several = split_ids(body.token_ids_logprob, "token_ids_logprob")
    if not several:
        return [tuple(lists[0])] * count
    if not batched or len(lists) != count:
        raise RequestError(
            f"token_ids_logprob: a list of lists needs one for each of {count} prompts.", field="token_ids_logprob"
        )
    return [tuple(ids) for ids in lists]


class NativeAnswer:
    """Renders choices and chunks of one call as `/generate` shows them."""

    def __init__(
        self,
        body: NativeRequest,
        *,
        batched: bool,
        weight_version: str,
        decode: Callable[[list[int]], str],
        incremental: bool = False,
    ) -> None:
        self._with_prompt_ids = body.return_prompt_token_ids
        self._with_text = bool(body.return_text_in_logprobs)
        self._batched = batched
        self._weight_version = weight_version
        self._decode = decode
        self._incremental = incremental

    def whole(self, choices: Sequence[Choice]) -> Any:
        """The answer when everything has finished."""
        answers = [self._state(choice, choice.text, choice.output_ids, choice.output_logprobs) for choice in choices]
        return answers if self._batched else answers[0]

    def chunk(self, chunk: Chunk) -> dict[str, Any]:
        """One streamed event: all so far, or with `incremental` what is new. Counters are totals in both."""
        choice = chunk.choice
        if self._incremental:
            state = self._state(choice, chunk.text, chunk.token_ids, chunk.logprobs)
        else:
            state = self._state(choice, choice.text, choice.output_ids, choice.output_logprobs)
        if self._batched:
            state["index"] = choice.index
        return state

    def _state(self, choice: Choice, text: str, ids: list[int], logprobs: list[TokenLogprob]) -> dict[str, Any]:
        usage = choice.usage()
        meta: dict[str, Any] = {
            "id": choice.rid,
            "finish_reason": finish_object(choice.finish),
            "prompt_tokens": usage.prompt_tokens,
            "weight_version": self._weight_version,
            "num_retractions": choice.num_retractions,
            "reasoning_tokens": usage.reasoning_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
        }
        if choice.request.return_logprob:
            meta.update(self._logprobs(choice, logprobs))
        if choice.finish is not None and choice.finished_s is not None:
            meta["e2e_latency"] = choice.finished_s - choice.arrived_s
            meta["response_sent_to_client_ts"] = time.time()
        state: dict[str, Any] = {"text": text, "output_ids": ids, "meta_info": meta}
        if self._with_prompt_ids:
            state["prompt_token_ids"] = choice.prompt_ids
        return state

    def _logprobs(self, choice: Choice, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        request = choice.request
        found: dict[str, Any] = {}
        for side, entries in (("input", choice.input_logprobs), ("output", logprobs)):
            found[f"{side}_token_logprobs"] = [self._triple(entry.logprob, entry.token_id) for entry in entries]
            if request.top_logprobs_num:
                found[f"{side}_top_logprobs"] = [self._triples(entry.top) for entry in entries]
            if request.token_ids_logprob:
                found[f"{side}_token_ids_logprobs"] = [self._triples(entry.chosen) for entry in entries]
        found["output_token_logprobs_length"] = len(choice.output_logprobs)
        return found

    def _triple(self, logprob: float | None, token_id: int) -> tuple[float | None, int, str | None]:
        return logprob, token_id, self._decode([token_id]) if self._with_text else None

    def _triples(self, pairs: list[tuple[int, float]] | None) -> list[tuple[float | None, int, str | None]] | None:
        return None if pairs is None else [self._triple(logprob, token_id) for token_id, logprob in pairs]


def finish_object(finish: FinishReason | None) -> dict[str, Any] | None:
    """`finish_reason` of meta_info."""
    if finish is None:
        return None
    if finish.type == "stop":
        return {"type": "stop", "matched": finish.matched}
    if finish.type == "length":
        return {"type": "length", "length": finish.length}
    shown: dict[str, Any] = {"type": "abort", "message": finish.message or ""}
    if finish.status_code is not None:
        shown["status_code"] = finish.status_code
    return shown
