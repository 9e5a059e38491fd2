"""`POST /v1/chat/completions`: messages, answered."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import RequestError
from ramet.server.body import Body, read_body, require_json
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.openai import common
from ramet.server.openai.logprobs import chat_logprobs
from ramet.server.responses import error_response, json_response
from ramet.server.sse import DONE, EventStream, event, while_connected
from ramet.text.frontend import Frontend
from ramet.text.generation import Choice, Generation
from ramet.types import TokenLogprob

NOT_YET = common.NOT_YET | frozenset(
    "functions function_call audio prediction web_search_options return_meta_info echo json_schema verbosity "
    "thinking task video_config images_config mm_processor_kwargs use_audio_in_video".split()
)

#: No effect without a reasoning parser.
HARMLESS = common.HARMLESS | {"separate_reasoning", "stream_reasoning"}


class ChatRequest(common.SharedFields, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    reasoning_effort: str | float | None = None
    reasoning: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    input_ids: list[int] | None = None
    return_prompt_token_ids: bool | None = None


class Delta(msgspec.Struct, kw_only=True):
    """What a chunk adds to the message. `reasoning_content` is always there, the rest only when set."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | None = None


class ChunkChoice(msgspec.Struct, kw_only=True):
    """The one choice of a chunk."""

    index: int
    delta: Delta
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    matched_stop: int | str | None = None


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of the stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: dict[str, Any] | UnsetType = UNSET


class Chat:
    """The route."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._body = Body(ChatRequest)

    async def __call__(self, request: Request) -> Response:
        context, frontend = self._context, self._context.live
        require_json(request)
        raw = await read_body(request, context.body_limit_bytes)
        body, unknown = self._body.decode(raw)
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=context.api.strict, not_yet=NOT_YET, harmless=HARMLESS)
        generation = await self._start(body, frontend, len(raw))
        answer = _Answer(body, generation, frontend, context)
        headers = warning_headers([*warnings, *generation.warnings])
        if body.stream:
            return EventStream(
                answer.events(),
                close=generation.close,
                on_error=lambda error: error_response(error, request.url.path),
                late_error=common.late_error,
                keep_alive_s=context.server.stream_keep_alive,
                headers=headers,
            )
        await while_connected(request.receive, generation.wait(), generation.close)
        return json_response(answer.whole(), headers=headers)

    async def _start(self, body: ChatRequest, frontend: Frontend, size: int) -> Generation:
        refuse_not_yet(body)
        top = common.check_top_logprobs(body.top_logprobs, "top_logprobs")
        if top and not body.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true.", field="top_logprobs")
        if body.stream and (body.return_prompt_token_ids or body.return_token_ids):
            name = "return_token_ids" if body.return_token_ids else "return_prompt_token_ids"
            raise RequestError(f"{name} is not available with stream.", field=name)
        name = "max_completion_tokens" if body.max_completion_tokens is not None else "max_tokens"
        max_tokens = getattr(body, name)
        if max_tokens is not None and max_tokens > frontend.limits.context_length:
            raise RequestError(
                f"{name} ({max_tokens}) is more than the context length of {frontend.limits.context_length} tokens.",
                field=name,
            )
        sampling = common.read_sampling(body, max_tokens, self._context.sampling_defaults(), max_tokens_name=name)
        if body.input_ids:
            prompt = body.input_ids
        else:
            prompt = await frontend.chat_prompt(
                body.messages,
                size=size,
                continue_final_message=bool(body.continue_final_message),
                add_generation_prompt=body.add_generation_prompt is not False,
                template_kwargs=template_kwargs(body),
            )
        request = common.make_request(
            body,
            prompt,
            sampling,
            rid=body.rid,
            return_logprob=bool(body.logprobs),
            top_logprobs_num=top,
        )
        return await frontend.generate([request], stream=bool(body.stream))


def refuse_not_yet(body: ChatRequest) -> None:
    """Fields whose part is not built yet."""
    common.refuse_response_format(body)
    if not body.messages and not body.input_ids:
        raise RequestError("Messages cannot be empty.", field="messages")
    if body.tools:
        raise RequestError("tools are not supported by this version of ramet.", field="tools")
    if body.tool_choice not in (None, "none", "auto"):
        raise RequestError(
            "tool_choice needs tools, which this version of ramet does not support.", field="tool_choice"
        )
    if body.parallel_tool_calls is not None:
        raise RequestError("parallel_tool_calls needs tools.", field="parallel_tool_calls")
    if body.modalities and body.modalities != ["text"]:
        raise RequestError("modalities: only ['text'] is supported.", field="modalities")


def template_kwargs(body: ChatRequest) -> dict[str, Any]:
    """Variables for the chat template: what the client set, and what a reasoning effort implies."""
    kwargs = dict(body.chat_template_kwargs or {})
    if "chat_template" in kwargs:
        raise RequestError(
            "chat_template_kwargs: a request cannot bring its own chat_template.", field="chat_template_kwargs"
        )
    taken = {"messages", "tools", "add_generation_prompt", "continue_final_message"} & kwargs.keys()
    if taken:
        raise RequestError(
            f"chat_template_kwargs: {', '.join(sorted(taken))} cannot be set here.", field="chat_template_kwargs"
        )
    effort: Any = body.reasoning_effort
    enabled: Any = None
    if body.reasoning:
        effort = body.reasoning.get("effort", body.reasoning.get("reasoning_effort", effort))
        enabled = body.reasoning.get("enabled", body.reasoning.get("enable"))
    if effort is not None:
        kwargs.setdefault("reasoning_effort", effort)
        enabled = effort != "none" if enabled is None else enabled
    if enabled is not None:
        kwargs.setdefault("thinking", bool(enabled))
        kwargs.setdefault("enable_thinking", bool(enabled))
    return kwargs


class _Answer:
    """Renders one call."""

    def __init__(self, body: ChatRequest, generation: Generation, frontend: Frontend, context: Context) -> None:
        self._body = body
        self._generation = generation
        self._table = frontend.tokenizer.token_bytes
        self._api = context.api
        self._weight_version = context.model.weight_version
        self._model = body.model or context.model.served_name
        self._id = body.rid or f"chatcmpl-{generation.choices[0].rid}"

    def whole(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "chat.completion",
            "created": self._generation.created,
            "model": self._model,
            "choices": [self._choice(choice) for choice in self._generation.choices],
            "usage": common.usage_object(self._generation.usage(), cache_report=self._api.enable_cache_report),
            "metadata": {"weight_version": self._weight_version},
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        finish = choice.finish
        assert finish is not None
        shown = {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "reasoning_content": None},
            "logprobs": self._logprobs(choice.output_logprobs),
            "finish_reason": finish.type,
            "matched_stop": finish.matched,
        }
        if self._body.return_prompt_token_ids or self._body.return_token_ids:
            shown["prompt_token_ids"] = choice.prompt_ids
        if self._body.return_token_ids:
            shown["response_token_ids"] = choice.output_ids
        return shown

    def _logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(entries, self._table) if self._body.logprobs else None

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Per choice a role chunk and its content; then the finish chunks of all, usage when asked, `[DONE]`."""
        options = self._body.stream_options
        continuous = bool(options and options.continuous_usage_stats)
        begun: set[int] = set()
        async for chunk in self._generation:
            common.raise_if_aborted(chunk)
            choice = chunk.choice
            if choice.index not in begun:
                begun.add(choice.index)
                role = ChunkChoice(index=choice.index, delta=Delta(role="assistant", content=""))
                yield self._event(role, choice if continuous else None)
            if chunk.text or chunk.logprobs:
                content = ChunkChoice(
                    index=choice.index, delta=Delta(content=chunk.text), logprobs=self._logprobs(chunk.logprobs)
                )
                yield self._event(content, choice if continuous else None)
        for choice in self._generation.choices:
            finish = choice.finish
            assert finish is not None
            end = ChunkChoice(index=choice.index, delta=Delta(), finish_reason=finish.type, matched_stop=finish.matched)
            yield self._event(end, choice if continuous else None)
        wanted = options.include_usage if options else None
        if wanted or (wanted is None and self._api.stream_response_default_include_usage):
            usage = common.usage_object(self._generation.usage(), cache_report=self._api.enable_cache_report)
            yield event(_encode(self._chunk([], usage)))
        yield DONE

    def _event(self, choice: ChunkChoice, usage_of: Choice | None) -> bytes:
        usage: dict[str, Any] | UnsetType = UNSET
        if usage_of is not None:
            usage = common.usage_object(usage_of.usage(), cache_report=self._api.enable_cache_report)
        return event(_encode(self._chunk([choice], usage)))

    def _chunk(self, choices: list[ChunkChoice], usage: dict[str, Any] | UnsetType) -> ChatChunk:
        return ChatChunk(id=self._id, created=self._generation.created, model=self._model, choices=choices, usage=usage)


_encode = msgspec.json.Encoder().encode
