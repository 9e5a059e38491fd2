"""`POST /v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import RequestTooLong
from ramet.server.anthropic.answer import PING, Blocks, Data, event, late_error, stop_reason, usage_object
from ramet.server.anthropic.request import (
    HARMLESS,
    NAMES,
    NOT_YET,
    CountTokensRequest,
    MessagesRequest,
    chat_spec,
    hides_thinking,
    read_sampling,
)
from ramet.server.body import Body, read_body, require_json
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.dialect import chat_request
from ramet.server.openai.common import raise_if_aborted
from ramet.server.responses import error_response, json_response
from ramet.server.sse import EventStream, while_connected
from ramet.text.chat import PreparedChat
from ramet.text.frontend import Frontend
from ramet.text.generation import Generation
from ramet.types import Usage


class Messages:
    """The routes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._body = Body(MessagesRequest)
        self._count_body = Body(CountTokensRequest)

    async def __call__(self, request: Request) -> Response:
        context, frontend = self._context, self._context.live
        require_json(request)
        raw = await read_body(request, context.body_limit_bytes)
        body, unknown = self._body.decode(raw)
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=context.api.strict, not_yet=NOT_YET, harmless=HARMLESS)
        thinking = body.thinking or {}
        budget = thinking.get("budget_tokens") if thinking.get("type") == "enabled" else None
        if budget is not None and frontend.formats.reasoning is None:
            warnings.append("thinking.budget_tokens is not enforced: the server has no --reasoning-parser")
            budget = None
        params = read_sampling(body, context.sampling_defaults())
        chat = await frontend.prepare_chat(chat_spec(body, len(raw)))
        self._refuse_too_long(chat, frontend)
        wish = chat_request(chat, params, NAMES, thinking_tokens=budget)
        generation = await frontend.generate([wish], stream=bool(body.stream))
        answer = _Answer(body, generation, cache_report=context.api.enable_cache_report)
        headers = {
            **(warning_headers([*warnings, *chat.warnings, *generation.warnings]) or {}),
            "request-id": f"req_{generation.choices[0].rid}",
        }
        if body.stream:
            return EventStream(
                answer.events(),
                close=generation.close,
                on_error=lambda error: error_response(error, request.url.path),
                late_error=late_error,
                keep_alive_s=context.server.stream_keep_alive,
                keep_alive=PING,
                headers=headers,
            )
        await while_connected(request.receive, answer.read(), generation.close)
        return json_response(answer.whole(), headers=headers)

    async def count_tokens(self, request: Request) -> Response:
        frontend = self._context.live
        require_json(request)
        raw = await read_body(request, self._context.body_limit_bytes)
        body, unknown = self._count_body.decode(raw)
        warnings: list[str] = []
        generating = frozenset(self._body.known - self._count_body.known)
        note_unknown(
            unknown, warnings, strict=self._context.api.strict, not_yet=NOT_YET, harmless=HARMLESS | generating
        )
        chat = await frontend.prepare_chat(chat_spec(body, len(raw)))
        return json_response({"input_tokens": len(chat.token_ids)}, headers=warning_headers(warnings))

    def _refuse_too_long(self, chat: PreparedChat, frontend: Frontend) -> None:
        """In the words by which Anthropic's clients know that a conversation must be shortened."""
        context, length = frontend.limits.context_length, len(chat.token_ids)
        if length >= context and not frontend.limits.allow_auto_truncate:
            raise RequestTooLong(f"prompt is too long: {length} tokens > {context - 1} maximum", field="messages")


class _Answer:
    """Renders one call."""

    def __init__(self, body: MessagesRequest, generation: Generation, *, cache_report: bool) -> None:
        self._body = body
        self._generation = generation
        self._choice = generation.choices[0]
        self._cache_report = cache_report
        self._blocks = Blocks(hide_thinking=hides_thinking(body))

    async def read(self) -> None:
        """Everything there is to come; `whole` shows it."""
        async for _ in self._events():
            pass

    async def events(self) -> AsyncGenerator[bytes, None]:
        async for data in self._events():
            yield event(data)

    async def _events(self) -> AsyncGenerator[Data, None]:
        """`message_start` once the engine has begun, the blocks one by one, `message_delta`, `message_stop`."""
        begun = False
        async for chunk in self._generation:
            raise_if_aborted(chunk)
            if not begun:
                begun = True
                usage = msgspec.structs.replace(self._choice.usage(), completion_tokens=0, reasoning_tokens=0)
                yield {"type": "message_start", "message": self._message([], usage, None, None)}
            for data in self._blocks.add(chunk.events):
                yield data
        for data in self._blocks.finish():
            yield data
        yield {"type": "message_delta", "delta": self._end(), "usage": self._usage(self._choice.usage())}
        yield {"type": "message_stop"}

    def whole(self) -> Data:
        return self._message(self._blocks.whole, self._choice.usage(), **self._end())

    def _message(self, content: list[Data], usage: Usage, stop_reason: str | None, stop_sequence: str | None) -> Data:
        return {
            "id": f"msg_{self._choice.rid}",
            "type": "message",
            "role": "assistant",
            "model": self._body.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": self._usage(usage),
        }

    def _end(self) -> Data:
        return stop_reason(self._choice, max_tokens=self._body.max_tokens)

    def _usage(self, usage: Usage) -> Data:
        return usage_object(usage, cache_report=self._cache_report)
