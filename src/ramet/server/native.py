"""`POST /generate` (and PUT): SGLang's native route."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import RametError, RequestError
from ramet.server.body import Body, read_body
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.errors import BodyTypeError, native_object
from ramet.server.native_format import NOT_YET, NativeAnswer, NativeRequest, check_types, to_requests
from ramet.server.responses import json_response
from ramet.server.sessions import Place, SessionParams, Sessions
from ramet.server.sse import DONE, EventStream, event, while_connected
from ramet.text.generation import GenerateRequest, Generation

HARMLESS = frozenset(
    "session_id no_logs custom_labels external_trace_header routing_key conversation_id background routed_dp_rank "
    "data_parallel_rank disagg_prefill_dp_rank modalities kv_hints decode_tp_size video_config images_config "
    "mm_processor_kwargs use_audio_in_video max_dynamic_patch min_dynamic_patch routed_experts_start_len".split()
)

_encode = msgspec.json.Encoder().encode


class GenerateBody(NativeRequest, kw_only=True):
    """Body of the route: what the generation is, and its place in a session."""

    session_params: SessionParams | list[SessionParams] | None = None


class Generate:
    """The route."""

    def __init__(self, context: Context, sessions: Sessions) -> None:
        self._context = context
        self._sessions = sessions
        self._body = Body(GenerateBody)

    async def __call__(self, request: Request) -> Response:
        context, frontend = self._context, self._context.live
        body, unknown = self._body.decode(await read_body(request, context.body_limit_bytes))
        check_types(body)
        warnings: list[str] = []
        place: Place | None = None
        try:
            note_unknown(unknown, warnings, strict=context.api.strict, not_yet=NOT_YET, harmless=HARMLESS)
            requests, batched = to_requests(body, warnings, may_be_empty=body.session_params is not None)
            if body.session_params is not None:
                place, requests = await self._in_session(body.session_params, requests, batched)
            generation = await self._start(requests, place, stream=bool(body.stream))
        except BodyTypeError:
            raise
        except RametError as error:
            if not body.stream:
                raise
            return _failed_stream(error, warnings)
        answer = NativeAnswer(
            body,
            batched=batched,
            weight_version=context.model.weight_version,
            decode=lambda ids: frontend.text_of(ids, skip_special_tokens=False),
            incremental=context.api.incremental_streaming_output,
        )
        headers = warning_headers([*warnings, *generation.warnings])

        def close() -> None:
            generation.close()
            if place is not None:
                self._sessions.leave(place)

        if body.stream:
            return EventStream(
                self._events(generation, answer, place),
                close=close,
                on_error=lambda error: _failed_stream(error, warnings),
                late_error=_late_error,
                keep_alive_s=context.server.stream_keep_alive,
                headers=headers,
            )
        await while_connected(request.receive, generation.wait(), close)
        if place is not None:
            self._sessions.finish(place, generation.choices[0])
        return json_response(answer.whole(generation.choices), headers=headers)

    async def _in_session(
        self, params: SessionParams | list[SessionParams], requests: list[GenerateRequest], batched: bool
    ) -> tuple[Place, list[GenerateRequest]]:
        """The one request with the history of its session in front."""
        given = params if isinstance(params, list) else [params]
        if len(given) != 1 or len(requests) != 1 or (batched and not isinstance(params, list)):
            raise RequestError("A session takes one prompt at a time, with n = 1.", field="session_params")
        (request,), frontend = requests, self._context.live
        prompt = request.prompt
        if isinstance(prompt, str):
            prompt = await frontend.encode(prompt, request.add_special_tokens)
        rid = request.rid or uuid.uuid4().hex
        place, ids = self._sessions.begin(given[0], prompt, rid, frontend.tokenizer.bos_token_id)
        return place, [replace(request, prompt=ids, rid=rid)]

    async def _start(self, requests: list[GenerateRequest], place: Place | None, *, stream: bool) -> Generation:
        try:
            return await self._context.live.generate(requests, stream=stream)
        except BaseException:
            if place is not None:
                self._sessions.leave(place)
            raise

    async def _events(
        self, generation: Generation, answer: NativeAnswer, place: Place | None
    ) -> AsyncGenerator[bytes, None]:
        """An abort is passed through as a finish reason, whoever made it."""
        async for chunk in generation:
            if place is not None and chunk.finish is not None:
                self._sessions.finish(place, chunk.choice)
                self._sessions.leave(place)  # before the client knows that it may go on
            yield event(_encode(answer.chunk(chunk)))
        yield DONE


def _late_error(error: RametError) -> bytes:
    return event(_encode(native_object(error))) + DONE


def _failed_stream(error: RametError, warnings: list[str]) -> Response:
    """SGLang's clients expect the errors of a stream inside it: status 200 and one error event."""
    return Response(_late_error(error), 200, warning_headers(warnings), "text/event-stream")
