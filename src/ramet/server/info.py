"""Health, facts about model and server, and tokenizing without generating."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import ramet
from ramet.errors import EngineDeadError, RequestError
from ramet.server.body import Body, read_body, require_json
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.native_format import split_ids
from ramet.server.responses import json_response

#: A probe without any message from the engine for this long finds it dead.
PROBE_TIMEOUT_S = 20.0


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of `/v1/tokenize`: a prompt, prompts, or messages."""

    model: str | None = None
    prompt: str | list[str] | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Body of `/v1/detokenize`: token ids, or lists of them."""

    model: str | None = None
    tokens: list[int | list[int]]
    skip_special_tokens: bool | None = None


class Info:
    """The routes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tokenize = Body(TokenizeRequest)
        self._detokenize = Body(DetokenizeRequest)

    async def root(self, request: Request) -> Response:
        return json_response("ramet is running")

    async def health(self, request: Request) -> Response:
        """200 while the engine lives and, when it has work, has been heard of lately; no body."""
        return Response(status_code=200 if is_alive(self._context) else 503)

    async def health_generate(self, request: Request) -> Response:
        """200 when the engine makes a token, or says anything while it is busy; no body."""
        context, frontend = self._context, self._context.frontend
        if context.draining or frontend is None:
            return Response(status_code=503)
        try:
            alive = await frontend.probe(PROBE_TIMEOUT_S)
        except EngineDeadError:
            alive = False
        return Response(status_code=200 if alive else 503)

    async def ready(self, request: Request) -> Response:
        """As `/health`, and 503 during a pause: new requests would only wait."""
        frontend = self._context.frontend
        return Response(status_code=503) if frontend is not None and frontend.paused else await self.health(request)

    async def model_info(self, request: Request) -> Response:
        return json_response(model_info(self._context))

    async def server_info(self, request: Request) -> Response:
        return json_response(await server_info(self._context))

    async def tokenize(self, request: Request) -> Response:
        frontend = self._context.live
        require_json(request)
        raw = await read_body(request, self._context.body_limit_bytes)
        body, unknown = self._tokenize.decode(raw)
        warnings: list[str] = []
        note_unknown(
            unknown,
            warnings,
            strict=self._context.api.strict,
            not_yet=frozenset({"tools", "tool_choice"}),
            harmless=frozenset({"reasoning_effort"}),
        )
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("Give exactly one of prompt and messages.", field="prompt")
        tokens: list[int] | list[list[int]]
        count: int | list[int]
        if body.messages is not None:
            tokens = await frontend.chat_prompt(
                body.messages,
                size=len(raw),
                continue_final_message=bool(body.continue_final_message),
                add_generation_prompt=body.add_generation_prompt is not False,
                template_kwargs=body.chat_template_kwargs,
            )
            count = len(tokens)
        elif isinstance(body.prompt, str):
            tokens = await frontend.encode(body.prompt, body.add_special_tokens is not False)
            count = len(tokens)
        else:
            special = body.add_special_tokens is not False
            lists = [await frontend.encode(text, special) for text in body.prompt or ()]
            tokens, count = lists, [len(ids) for ids in lists]
        answer = {"tokens": tokens, "count": count, "max_model_len": frontend.limits.context_length}
        return json_response(answer, headers=warning_headers(warnings))

    async def detokenize(self, request: Request) -> Response:
        frontend = self._context.live
        require_json(request)
        body, unknown = self._detokenize.decode(await read_body(request, self._context.body_limit_bytes))
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=self._context.api.strict)
        lists, several = split_ids(body.tokens, "tokens")
        for ids in lists:
            frontend.limits.check_ids(ids, "tokens")
        skip = body.skip_special_tokens is not False
        texts = [frontend.tokenizer.decode(ids, skip) for ids in lists]
        return json_response({"text": texts if several else texts[0]}, headers=warning_headers(warnings))


def is_alive(context: Context) -> bool:
    """Whether the engine lives and, when it has work, has been heard of lately."""
    frontend = context.frontend
    if context.draining or frontend is None or frontend.dead is not None:
        return False
    heard_s = max(frontend.last_message_s, frontend.last_submit_s)
    return not frontend.num_live or time.monotonic() - heard_s < PROBE_TIMEOUT_S


def model_info(context: Context) -> dict[str, Any]:
    """`/model_info`."""
    model = context.model
    return {
        "model_path": model.model_path,
        "served_model_name": model.served_name,
        "tokenizer_path": model.tokenizer_path,
        "is_generation": context.live.vectors is None,
        "preferred_sampling_params": None,
        "weight_version": model.weight_version,
        "load_format": model.load_format,
        "reasoning_parser": context.api.reasoning_parser,
        "tool_call_parser": context.api.tool_call_parser,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": model.model_type,
        "architectures": list(model.architectures),
        "max_model_len": context.live.limits.context_length,
        "vocab_size": context.live.limits.vocab_size,
    }


async def engine_state(context: Context) -> Mapping[str, Any]:
    """What the engine says of itself."""
    try:
        state: Mapping[str, Any] = await asyncio.wait_for(context.live.call("server_info"), PROBE_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise EngineDeadError(f"The engine has not answered for {PROBE_TIMEOUT_S:g} s.") from None
    return state


async def server_info(context: Context) -> dict[str, Any]:
    """`/server_info`: every option, and what the engine says of itself."""
    state = await engine_state(context)
    return {
        **context.settings,
        **state,
        "internal_states": [{**context.settings, **state}],
        "startup_time": context.startup_s,
        "version": ramet.__version__,
        "frontend": "python",
    }
