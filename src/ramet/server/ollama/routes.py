"""`POST /api/chat` and `POST /api/generate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import RequestError
from ramet.server.body import Body, read_body
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.dialect import chat_request
from ramet.server.ollama.answer import KEEP_ALIVE, NDJSON, Answer, Data, Piece, head, late_error
from ramet.server.ollama.content import chat_messages, refuse_images
from ramet.server.ollama.options import NAMES, Options, read_options, think_kwargs, unloads
from ramet.server.openai.common import check_top_logprobs
from ramet.server.responses import error_response, json_response
from ramet.server.sse import EventStream, while_connected
from ramet.text.chat import ChatSpec, PreparedChat
from ramet.text.frontend import Frontend
from ramet.text.generation import Choice, Generation
from ramet.text.toolset import read_tools

#: A prompt is never cut and a full context never shifted, whatever these say: the first is refused, the second ends.
HARMLESS = frozenset({"truncate", "shift"})


class SharedFields(msgspec.Struct, kw_only=True):
    """Fields with the same meaning on both routes."""

    model: str
    stream: bool | None = None  # true unless false
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class OllamaChatRequest(SharedFields, kw_only=True):
    """Body of `/api/chat`."""

    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(SharedFields, kw_only=True):
    """Body of `/api/generate`."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    context: list[int] | None = None
    template: str | None = None
    suffix: str | None = None
    images: list[Any] | None = None


class Ollama:
    """The routes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._chat_body = Body(OllamaChatRequest)
        self._generate_body = Body(OllamaGenerateRequest)

    async def chat(self, request: Request) -> Response:
        frontend = self._context.live
        raw = await read_body(request, self._context.body_limit_bytes)
        body, unknown = self._chat_body.decode(raw)
        if not body.messages:
            return _loaded(body, _message(Piece()))
        warnings, options = self._read(body, unknown)
        messages = chat_messages(body.messages)
        prefilled = messages[-1].get("role") == "assistant" and not messages[-1].get("tool_calls")
        spec = ChatSpec(
            messages=messages,
            tools=read_tools(body.tools),
            template_kwargs=think_kwargs(body.think),
            continue_final_message=prefilled,
            add_generation_prompt=not prefilled,
            size=len(raw),
        )
        chat = await frontend.prepare_chat(spec)
        generation = await self._start(body, chat, options, frontend)
        answer = Answer(body.model, generation, _message, table=_table(body, frontend))
        return await self._answer(request, body, answer, generation, [*warnings, *chat.warnings])

    async def generate(self, request: Request) -> Response:
        frontend = self._context.live
        raw = await read_body(request, self._context.body_limit_bytes)
        body, unknown = self._generate_body.decode(raw)
        refuse_images(body.images, "images")
        for name, value in (("template", body.template), ("suffix", body.suffix)):
            if value:
                raise RequestError(f"{name} is not supported by this version of ramet.", field=name)
        if body.raw and (body.system or body.context):
            raise RequestError("raw is a prompt as it is: it takes no system and no context.", field="raw")
        if not body.prompt:
            return _loaded(body, _response(Piece()))
        warnings, options = self._read(body, unknown)
        chat = await _prompt(body, frontend, len(raw))
        generation = await self._start(body, chat, options, frontend)
        answer = Answer(
            body.model,
            generation,
            _response,
            table=_table(body, frontend),
            last=_no_context if body.raw else _context,
        )
        return await self._answer(request, body, answer, generation, [*warnings, *chat.warnings])

    def _read(self, body: SharedFields, unknown: Mapping[str, bytes]) -> tuple[list[str], Options]:
        warnings: list[str] = []
        strict = self._context.api.strict
        note_unknown(unknown, warnings, strict=strict, harmless=HARMLESS)
        if check_top_logprobs(body.top_logprobs, "top_logprobs") and not body.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true.", field="top_logprobs")
        unloads(body.keep_alive)
        defaults = self._context.sampling_defaults()
        return warnings, read_options(body.options, body.format, defaults, warnings, strict=strict)

    async def _start(self, body: SharedFields, chat: PreparedChat, options: Options, frontend: Frontend) -> Generation:
        sampling = options.fit(len(chat.token_ids), frontend.limits)
        request = chat_request(
            chat, sampling, NAMES, return_logprob=bool(body.logprobs), top_logprobs_num=body.top_logprobs or 0
        )
        return await frontend.generate([request], stream=body.stream is not False)

    async def _answer(
        self, request: Request, body: SharedFields, answer: Answer, generation: Generation, warnings: list[str]
    ) -> Response:
        headers = warning_headers([*warnings, *generation.warnings])
        if body.stream is not False:
            return EventStream(
                answer.lines(),
                close=generation.close,
                on_error=lambda error: error_response(error, request.url.path),
                late_error=late_error,
                keep_alive_s=self._context.server.stream_keep_alive,
                keep_alive=KEEP_ALIVE,
                media_type=NDJSON,
                headers=headers,
            )
        await while_connected(request.receive, answer.read(), generation.close)
        return json_response(answer.whole(), headers=headers)


async def _prompt(body: OllamaGenerateRequest, frontend: Frontend, size: int) -> PreparedChat:
    """The prompt as the chat template writes it, behind the `context` of an earlier answer.

    `raw`, or a model without a template: the text itself, behind system text and a blank line.
    """
    prompt, before = body.prompt or "", body.context or []
    frontend.limits.check_ids(before, "context")
    if body.raw or frontend.template is None:
        text = f"{body.system}\n\n{prompt}" if body.system else prompt
        ids = await frontend.encode(text, add_special_tokens=not before)
        return PreparedChat(token_ids=[*before, *ids], text=text, make_parser=None)
    system = [{"role": "system", "content": body.system}] if body.system else []
    messages = [*system, {"role": "user", "content": prompt}]
    chat = await frontend.prepare_chat(ChatSpec(messages=messages, template_kwargs=think_kwargs(body.think), size=size))
    if not before:
        return chat
    ids = chat.token_ids
    if ids[0] == frontend.tokenizer.bos_token_id:
        ids = ids[1:]
    return replace(chat, token_ids=[*before, *ids])


def _loaded(body: SharedFields, shown: Data) -> Response:
    """Nothing to generate: the client wants the model in memory, where it is, or out of it, where it stays."""
    reason = "unload" if unloads(body.keep_alive) else "load"
    return json_response({**head(body.model), **shown, "done_reason": reason, "done": True})


def _table(body: SharedFields, frontend: Frontend) -> Any:
    return frontend.tokenizer.token_bytes if body.logprobs else None


def _message(piece: Piece) -> Data:
    message: Data = {"role": "assistant", "content": piece.content}
    if piece.thinking:
        message["thinking"] = piece.thinking
    if piece.tool_calls:
        message["tool_calls"] = piece.tool_calls
    return {"message": message}


def _response(piece: Piece) -> Data:
    return {"response": piece.content, **({"thinking": piece.thinking} if piece.thinking else {})}


def _context(choice: Choice) -> Data:
    """All tokens so far, with which the next request may go on."""
    return {"context": [*choice.prompt_ids, *choice.output_ids]}


def _no_context(choice: Choice) -> Data:
    return {}
