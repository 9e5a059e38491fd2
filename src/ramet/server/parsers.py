"""The parsers as routes, and what a chat request turns into before anything is generated."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import ConfigError, RequestError
from ramet.server.body import Body, read_body, require_json
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.openai import common
from ramet.server.openai.chat import NOT_YET, ChatRequest, chat_spec
from ramet.server.responses import json_response
from ramet.text.events import Content, Event, Message, Reasoning
from ramet.text.reasoning import FORMATS, make_reasoning_parser
from ramet.text.scanner import Parser
from ramet.text.tools import make_tool_parser
from ramet.text.toolset import read_tools


class FunctionCallRequest(msgspec.Struct, kw_only=True):
    """Body of `/parse_function_call`. Without a parser's name, the server's own is used."""

    text: str
    tools: list[dict[str, Any]]
    tool_call_parser: str | None = None


class ReasoningRequest(msgspec.Struct, kw_only=True):
    """Body of `/separate_reasoning`. Without a parser's name, the server's own is used."""

    text: str
    reasoning_parser: str | None = None
    return_blocks: bool = False


class Parsers:
    """The routes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._call = Body(FunctionCallRequest)
        self._reasoning = Body(ReasoningRequest)
        self._chat = Body(ChatRequest)

    async def parse_function_call(self, request: Request) -> Response:
        """A finished text to content and calls."""
        body, headers = await self._read(request, self._call)
        tools = read_tools(body.tools)
        name = _named(body.tool_call_parser, self._context.live.formats.tools, "tool_call_parser")
        message = Message()
        message.add(_events(_made(lambda: make_tool_parser(name, tools.schemas)), body.text))
        offered = list(tools.schemas)
        calls = [
            {"tool_index": offered.index(call.name), "name": call.name, "parameters": call.arguments}
            for call in message.tool_calls
        ]
        return json_response({"normal_text": message.content, "calls": calls}, headers=headers)

    async def separate_reasoning(self, request: Request) -> Response:
        """A finished text to thinking and answer."""
        body, headers = await self._read(request, self._reasoning)
        name = _named(body.reasoning_parser, self._context.live.formats.reasoning, "reasoning_parser")
        form = FORMATS.get(name)
        before, closed, _ = body.text.partition(form.closing) if form else ("", "", "")
        inside = bool(form and closed and form.opening not in before)  # the prompt had opened it
        events = _events(_made(lambda: make_reasoning_parser(name, prompt_is_open=inside)), body.text)
        message = Message()
        message.add(events)
        answer: dict[str, Any] = {"reasoning_text": message.reasoning, "text": message.content}
        if body.return_blocks:
            blocks = [_block(event) for event in events]
            answer["blocks"] = blocks
            answer["reasoning_blocks"] = [block["text"] for block in blocks if block["type"] == "reasoning"]
            answer["text_blocks"] = [block["text"] for block in blocks if block["type"] == "text"]
        return json_response(answer, headers=headers)

    async def render(self, request: Request) -> Response:
        """The exact prompt of a chat request, and how its output would be read."""
        context, frontend = self._context, self._context.live
        require_json(request)
        raw = await read_body(request, context.body_limit_bytes)
        body, unknown = self._chat.decode(raw)
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=context.api.strict, not_yet=NOT_YET, harmless=common.HARMLESS)
        chat = await frontend.prepare_chat(chat_spec(body, len(raw)))
        answer = {
            "prompt": chat.text,
            "token_ids": chat.token_ids,
            "count": len(chat.token_ids),
            "max_model_len": frontend.limits.context_length,
            "thinking": chat.thinking,
            "reasoning_parser": chat.reasoning,
            "tool_call_parser": frontend.formats.tools,
            "json_schema": chat.calls_schema,
            "warnings": list(chat.warnings),
        }
        return json_response(answer, headers=warning_headers(warnings))

    async def _read(self, request: Request, body: Body[Any]) -> tuple[Any, dict[str, str] | None]:
        require_json(request)
        value, unknown = body.decode(await read_body(request, self._context.body_limit_bytes))
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=self._context.api.strict)
        return value, warning_headers(warnings)


def _named(given: str | None, own: str | None, field: str) -> str:
    name = own if given in (None, "auto") else given
    if name is None:
        raise RequestError(f"{field}: name one, for the server itself has none.", field=field)
    return name


def _made(make: Any) -> Parser:
    try:
        parser: Parser = make()
    except ConfigError as error:
        raise RequestError(error.message.removeprefix("--"), field=error.field) from None
    return parser


def _events(parser: Parser, text: str) -> list[Event]:
    return [*parser.push(text), *parser.finish()]


def _block(event: Event) -> dict[str, str]:
    assert isinstance(event, Content | Reasoning)
    return {"type": "reasoning" if isinstance(event, Reasoning) else "text", "text": event.text}
