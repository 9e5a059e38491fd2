"""`POST /generate` (and PUT): SGLang's native route."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import RametError
from ramet.server.body import Body, read_body
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.errors import BodyTypeError, native_object
from ramet.server.native_format import NOT_YET, NativeAnswer, NativeRequest, check_types, to_requests
from ramet.server.responses import json_response
from ramet.server.sse import DONE, EventStream, event, while_connected
from ramet.text.generation import Generation

HARMLESS = frozenset(
    "session_id no_logs custom_labels external_trace_header routing_key conversation_id background routed_dp_rank "
    "data_parallel_rank disagg_prefill_dp_rank modalities kv_hints decode_tp_size video_config images_config "
    "mm_processor_kwargs use_audio_in_video max_dynamic_patch min_dynamic_patch routed_experts_start_len".split()
)

_encode = msgspec.json.Encoder().encode


class Generate:
    """The route."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._body = Body(NativeRequest)

    async def __call__(self, request: Request) -> Response:
        context, frontend = self._context, self._context.live
        body, unknown = self._body.decode(await read_body(request, context.body_limit_bytes))
        check_types(body)
        warnings: list[str] = []
        try:
            note_unknown(unknown, warnings, strict=context.api.strict, not_yet=NOT_YET, harmless=HARMLESS)
            requests, batched = to_requests(body, warnings)
            generation = await frontend.generate(requests, stream=bool(body.stream))
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
        if body.stream:
            return EventStream(
                _events(generation, answer),
                close=generation.close,
                on_error=lambda error: _failed_stream(error, warnings),
                late_error=_late_error,
                keep_alive_s=context.server.stream_keep_alive,
                headers=headers,
            )
        await while_connected(request.receive, generation.wait(), generation.close)
        return json_response(answer.whole(generation.choices), headers=headers)


async def _events(generation: Generation, answer: NativeAnswer) -> AsyncGenerator[bytes, None]:
    """An abort is passed through as a finish reason, whoever made it."""
    async for chunk in generation:
        yield event(_encode(answer.chunk(chunk)))
    yield DONE


def _late_error(error: RametError) -> bytes:
    return event(_encode(native_object(error))) + DONE


def _failed_stream(error: RametError, warnings: list[str]) -> Response:
    """SGLang's clients expect the errors of a stream inside it: status 200 and one error event."""
    return Response(_late_error(error), 200, warning_headers(warnings), "text/event-stream")
