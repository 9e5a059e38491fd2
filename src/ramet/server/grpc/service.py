"""The methods of `ramet.v1.Ramet`: the native routes' bodies and answers as messages, over the same pipeline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import msgspec

from ramet.errors import RametError
from ramet.server import native
from ramet.server.auth import carries
from ramet.server.body import decode_with
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.errors import grpc_code
from ramet.server.grpc.messages import SERVICE, fields_of, json_map, message_class, parse, to_struct, unknown_fields
from ramet.server.info import is_alive, model_info, server_info
from ramet.server.native_format import NOT_YET, NativeAnswer, NativeRequest, check_types, to_requests
from ramet.server.vectors import common
from ramet.server.vectors.encode import EncodeRequest, encode_answer, vector_requests
from ramet.text.generation import Generation, abort_error

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

_JSON_OBJECT: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])

#: Methods that need no key, and those that want the admin key where there is one.
OPEN_METHODS = frozenset({"HealthCheck"})
ADMIN_METHODS = frozenset({"Abort"})

#: A status travels in a header, and clients take about 8 kB of those; each byte may need three there.
MAX_DETAILS_BYTES = 2000


class Service:
    """The methods. Each takes its request and the call, and returns its answer, or writes several and returns None."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._methods: dict[str, Callable[[Any, Any, Any], Awaitable[Any]]] = {
            "TextGenerate": self._generate,
            "Generate": self._generate,
            "TextEmbed": self._embed,
            "Embed": self._embed,
            "HealthCheck": self._health_check,
            "GetModelInfo": self._model_info,
            "GetServerInfo": self._server_info,
            "Abort": self._abort,
        }

    def handlers(self) -> Any:
        """What a gRPC server is given. Requests come as bytes, so that malformed ones get our error and not gRPC's."""
        table = {}
        for method in SERVICE.methods:
            make = (
                grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
            )
            table[method.name] = make(self._handler(method), response_serializer=lambda m: m.SerializeToString())
        return grpc.method_handlers_generic_handler(SERVICE.full_name, table)

    def _handler(self, method: Any) -> Callable[[bytes, Any], Awaitable[Any]]:
        work, answer_class = self._methods[method.name], message_class(method.output_type)

        async def handle(raw: bytes, call: Any) -> Any:
            try:
                if not self._allowed(method.name, call):
                    code, details = "UNAUTHENTICATED", "Unauthorized"
                else:
                    return await work(parse(method.input_type, raw), call, answer_class)
            except RametError as error:
                code, details = grpc_code(error), error.message
            except Exception:
                if call.cancelled():  # the answer had nowhere to go
                    raise asyncio.CancelledError from None
                log.exception("event=rpc_failed method=%s", method.name)
                code, details = "INTERNAL", "Internal server error."
            shown = details.encode("utf-8", "backslashreplace")[:MAX_DETAILS_BYTES].decode("utf-8", "ignore")
            return await call.abort(grpc.StatusCode[code], shown)

        return handle

    def _allowed(self, method: str, call: Any) -> bool:
        server = self._context.server
        key = server.admin_api_key if method in ADMIN_METHODS and server.admin_api_key else server.api_key
        if method in OPEN_METHODS or not key:
            return True
        headers = {name: value for name, value in call.invocation_metadata() if isinstance(value, str)}
        return carries(headers, key)

    def _body(
        self, kind: type[T], request: Any, warnings: list[str], not_yet: frozenset[str], harmless: frozenset[str]
    ) -> T:
        """The body that the HTTP route would have got, and what it says about fields that it does not have."""
        prompt = request.DESCRIPTOR.fields[0].name
        given: dict[str, Any] = {prompt: "" if prompt == "text" else [], **fields_of(request)}
        sampling = given.get("sampling_params", {})
        if "custom_params" in sampling:
            raw = sampling["custom_params"].encode()
            sampling["custom_params"] = decode_with(_JSON_OBJECT, raw, "sampling_params.custom_params")
        known = {name: given.pop(name) for name in kind.__struct_fields__ if name in given}
        unknown = {name: msgspec.json.encode(value) for name, value in given.items()}
        unknown |= {f"field {name}": b"1" for name in unknown_fields(request)}
        note_unknown(
            unknown,
            warnings,
            strict=self._context.api.strict,
            not_yet=not_yet | {"disaggregated_params"},
            harmless=harmless | {"trace_headers"},
        )
        return to_struct(kind, known)

    async def _generate(self, request: Any, call: Any, answer_class: Any) -> None:
        context, frontend = self._context, self._context.live
        warnings: list[str] = []
        body = self._body(NativeRequest, request, warnings, NOT_YET, native.HARMLESS)
        check_types(body)
        requests, _ = to_requests(body, warnings)
        generation = await frontend.generate(requests, stream=bool(body.stream))
        answer = NativeAnswer(
            body,
            batched=True,
            weight_version=context.model.weight_version,
            decode=lambda ids: frontend.text_of(ids, skip_special_tokens=False),
            incremental=True,
        )
        try:
            await _send_warnings(call, warnings, generation)
            if not body.stream:
                await generation.wait()
                for index, state in enumerate(answer.whole(generation.choices)):
                    await call.write(_generated(answer_class, state, index))
                return
            async for chunk in generation:
                await call.write(_generated(answer_class, answer.chunk(chunk), chunk.choice.index))
                error = abort_error(chunk.finish)
                if error is not None:
                    raise error
        finally:
            generation.close()

    async def _embed(self, request: Any, call: Any, answer_class: Any) -> Any:
        context, warnings = self._context, list[str]()
        body = self._body(EncodeRequest, request, warnings, common.NOT_YET, common.HARMLESS)
        model = common.vector_model(context.live)
        dimensions = model.check_dimensions(body.dimensions)
        requests, _ = vector_requests(body)
        generation = await context.live.embed(requests)
        try:
            await generation.wait()
        finally:
            generation.close()
        await _send_warnings(call, warnings, generation)
        weight_version = context.model.weight_version
        answer = encode_answer(generation, model, weight_version, several=False, dimensions=dimensions)
        return answer_class(embedding=answer["embedding"], meta_info=json_map(answer["meta_info"]))

    async def _health_check(self, request: Any, call: Any, answer_class: Any) -> Any:
        return answer_class(healthy=is_alive(self._context))

    async def _model_info(self, request: Any, call: Any, answer_class: Any) -> Any:
        info = model_info(self._context)
        return answer_class(model_path=info["model_path"], json_info=msgspec.json.encode(info).decode())

    async def _server_info(self, request: Any, call: Any, answer_class: Any) -> Any:
        return answer_class(json_info=msgspec.json.encode(await server_info(self._context)).decode())

    async def _abort(self, request: Any, call: Any, answer_class: Any) -> Any:
        frontend = self._context.live
        if request.abort_all:
            frontend.abort(everything=True)
        elif request.rid:
            frontend.abort(request.rid)
        return answer_class(success=bool(request.abort_all or request.rid))


async def _send_warnings(call: Any, warnings: list[str], generation: Generation) -> None:
    """What gave way, in the initial metadata, as HTTP has it in a header."""
    headers = warning_headers([*warnings, *generation.warnings])
    if headers:
        await call.send_initial_metadata(tuple(headers.items()))


def _generated(answer_class: Any, state: dict[str, Any], index: int) -> Any:
    """A `/generate` answer as a message."""
    meta = state["meta_info"]
    return answer_class(
        text=state["text"],
        output_ids=state["output_ids"],
        prompt_token_ids=state.get("prompt_token_ids", ()),
        meta_info=json_map(meta),
        index=index,
        finished=meta["finish_reason"] is not None,
    )
