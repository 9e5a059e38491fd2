"""`POST /v1/chat/completions`: messages, answered."""

from __future__ import annotations

from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import RequestError
from ramet.server.body import Body, read_body, require_json
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.openai import common
from ramet.server.openai.chat_format import ChatAnswer, Shown
from ramet.server.responses import error_response, json_response
from ramet.server.sse import EventStream, while_connected
from ramet.text.chat import ChatSpec, PreparedChat, ToolChoice
from ramet.text.frontend import Frontend
from ramet.text.generation import Generation
from ramet.text.toolset import read_tools

NOT_YET = common.NOT_YET | frozenset(
    "functions function_call audio prediction web_search_options return_meta_info echo verbosity "
    "thinking task video_config images_config mm_processor_kwargs use_audio_in_video".split()
)

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")


class ChatRequest(common.SharedFields, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    separate_reasoning: bool | None = None
    stream_reasoning: bool | None = None
    modalities: list[str] | None = None
    reasoning_effort: str | float | None = None
    reasoning: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    input_ids: list[int] | None = None
    return_prompt_token_ids: bool | None = None


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
        note_unknown(unknown, warnings, strict=context.api.strict, not_yet=NOT_YET, harmless=common.HARMLESS)
        chat, generation = await self._start(body, frontend, len(raw))
        answer = ChatAnswer(_shown(body, context), chat, generation, frontend, context)
        headers = warning_headers([*warnings, *chat.warnings, *generation.warnings])
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

    async def _start(self, body: ChatRequest, frontend: Frontend, size: int) -> tuple[PreparedChat, Generation]:
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
        chat = await frontend.prepare_chat(chat_spec(body, size))
        request = common.make_request(
            body,
            chat.token_ids,
            chat.sampling(sampling),
            rid=body.rid,
            return_logprob=bool(body.logprobs),
            top_logprobs_num=top,
            grammar_after=chat.grammar_after,
            make_parser=chat.make_parser,
        )
        return chat, await frontend.generate([request], stream=bool(body.stream))


def refuse_not_yet(body: ChatRequest) -> None:
    """Fields whose part is not built yet."""
    if body.parallel_tool_calls is not None and not body.tools:
        raise RequestError("parallel_tool_calls needs tools.", field="parallel_tool_calls")
    if body.modalities and body.modalities != ["text"]:
        raise RequestError("modalities: only ['text'] is supported.", field="modalities")


def chat_spec(body: ChatRequest, size: int = 0) -> ChatSpec:
    """What the body asks for, in no dialect. `size`: its length in bytes."""
    if not body.messages and not body.input_ids:
        raise RequestError("Messages cannot be empty.", field="messages")
    choice, name = read_tool_choice(body.tool_choice)
    return ChatSpec(
        messages=body.messages,
        token_ids=body.input_ids or None,
        tools=read_tools(body.tools),
        tool_choice=choice,
        tool_name=name,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        separate_reasoning=body.separate_reasoning is not False,
        stream_reasoning=body.stream_reasoning is not False,
        template_kwargs=template_kwargs(body.chat_template_kwargs, body.reasoning_effort, body.reasoning),
        continue_final_message=bool(body.continue_final_message),
        add_generation_prompt=body.add_generation_prompt is not False,
        size=size,
    )


def read_tool_choice(given: str | dict[str, Any] | None) -> tuple[ToolChoice, str | None]:
    """`tool_choice`, and the name of the one function that must be called."""
    if given is None:
        return "auto", None
    if isinstance(given, dict):
        function = given.get("function", given)
        name = function.get("name") if isinstance(function, dict) else None
        if given.get("type", "function") == "function" and isinstance(name, str):
            return "required", name
    elif given in ("auto", "none", "required"):
        return cast(ToolChoice, given), None
    raise RequestError(
        'tool_choice must be "auto", "none", "required" or {"type": "function", "function": {"name": …}}.',
        field="tool_choice",
    )


def template_kwargs(
    given: dict[str, Any] | None, effort: Any = None, reasoning: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Variables for the chat template: what the client set, and what a reasoning effort implies."""
    kwargs = dict(given or {})
    if "chat_template" in kwargs:
        raise RequestError(
            "chat_template_kwargs: a request cannot bring its own chat_template.", field="chat_template_kwargs"
        )
    taken = {"messages", "tools", "add_generation_prompt", "continue_final_message"} & kwargs.keys()
    if taken:
        raise RequestError(
            f"chat_template_kwargs: {', '.join(sorted(taken))} cannot be set here.", field="chat_template_kwargs"
        )
    enabled: Any = None
    field = "reasoning_effort"
    if reasoning:
        field = "reasoning"
        effort = reasoning.get("effort", reasoning.get("reasoning_effort", effort))
        enabled = reasoning.get("enabled", reasoning.get("enable"))
        if not isinstance(enabled, bool | None):
            raise RequestError("reasoning.enabled must be true or false.", field=field)
    if effort is not None:
        number = isinstance(effort, int | float) and not isinstance(effort, bool) and 0 <= effort < 1
        if not number and effort not in _EFFORTS:
            raise RequestError(f"{field}: the effort must be one of {', '.join(_EFFORTS)}, or 0 to 0.99.", field=field)
        kwargs.setdefault("reasoning_effort", effort)
        enabled = effort != "none" if enabled is None else enabled
    if enabled is not None:
        kwargs.setdefault("thinking", enabled)
        kwargs.setdefault("enable_thinking", enabled)
    return kwargs


def _shown(body: ChatRequest, context: Context) -> Shown:
    options = body.stream_options
    return Shown(
        model=body.model or context.model.served_name,
        rid=body.rid,
        logprobs=bool(body.logprobs),
        prompt_token_ids=bool(body.return_prompt_token_ids),
        token_ids=bool(body.return_token_ids),
        explain=bool(body.explain),
        include_usage=options.include_usage if options else None,
        continuous_usage=bool(options and options.continuous_usage_stats),
    )
