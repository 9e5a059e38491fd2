"""`/v1/responses`: create, and with `--enable-response-store` retrieve, list input, cancel and delete."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import NotFoundError, RametError, RequestError
from ramet.server.body import Body, read_body, require_json
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.openai import common
from ramet.server.openai.responses.answer import ResponseAnswer
from ramet.server.openai.responses.request import (
    HARMLESS,
    LOGPROBS,
    NOT_YET,
    Message,
    ResponsesRequest,
    chat_spec,
    read_input,
    refuse,
    response_format,
    to_messages,
)
from ramet.server.openai.responses.store import ResponseStore, Stored
from ramet.server.responses import error_response, json_response
from ramet.server.sse import EventStream, while_connected

log = logging.getLogger(__name__)

#: Reading a field that asks for less is not worth refusing a whole request, but it is worth a word.
_ENCRYPTED = "reasoning.encrypted_content is not made: reasoning items carry their text, send them back as they are"


class Responses:
    """The routes. The store exists when the server was started with it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._body = Body(ResponsesRequest)
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: ResponseStore | None = None

    async def create(self, request: Request) -> Response:
        """`POST /v1/responses`."""
        context = self._context
        require_json(request)
        raw = await read_body(request, context.body_limit_bytes)
        body, unknown = self._body.decode(raw)
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=context.api.strict, not_yet=NOT_YET, harmless=HARMLESS)
        refuse(body)
        if body.model is not None and body.model != context.model.served_name:
            raise NotFoundError(f"The model '{body.model}' does not exist.", field="model")
        messages = self._conversation(body)
        answer, chat_warnings = await self._start(body, messages, len(raw))
        warnings += chat_warnings
        if "reasoning.encrypted_content" in (body.include or ()):
            warnings.append(_ENCRYPTED)
        headers = warning_headers(warnings)
        generation = answer.generation
        if body.background:
            return json_response(self._in_background(body, answer, messages), headers=headers)

        def finished() -> None:
            if answer.response["store"]:
                self._store().put(_stored(body, answer, messages))

        if body.stream:
            return EventStream(
                answer.events(finished),
                close=generation.close,
                on_error=lambda error: error_response(error, request.url.path),
                late_error=answer.late_error,
                keep_alive_s=context.server.stream_keep_alive,
                headers=headers,
            )
        await while_connected(request.receive, answer.run(), generation.close)
        finished()
        return json_response(answer.response, headers=headers)

    async def _start(
        self, body: ResponsesRequest, messages: list[Message], size: int
    ) -> tuple[ResponseAnswer, list[str]]:
        frontend = self._context.live
        top = common.check_top_logprobs(body.top_logprobs, "top_logprobs")
        plain = msgspec.structs.replace(body, response_format=response_format(body))
        sampling = common.read_sampling(
            plain, body.max_output_tokens, self._context.sampling_defaults(), max_tokens_name="max_output_tokens"
        )
        chat = await frontend.prepare_chat(chat_spec(body, messages, size))
        if LOGPROBS in (body.include or ()) and chat.make_parser is not None:
            raise RequestError(
                f"include: {LOGPROBS} is not available where thinking or tool calls are told apart from the text; "
                "chat completions have logprobs of all tokens.",
                field="include",
            )
        given = body.request_id or body.rid
        if given is not None and not given.startswith("resp_"):
            raise RequestError("request_id must begin with resp_.", field="request_id")
        request = common.make_request(
            body,
            chat.token_ids,
            chat.sampling(sampling),
            rid=given or f"resp_{uuid.uuid4().hex}",
            return_logprob=LOGPROBS in (body.include or ()),
            top_logprobs_num=top,
            grammar_after=chat.grammar_after,
            make_parser=chat.make_parser,
        )
        generation = await frontend.generate([request], stream=bool(body.stream))
        answer = ResponseAnswer(
            body,
            request.sampling,
            generation,
            frontend,
            chat,
            model=self._context.model.served_name,
            stored=self._context.api.enable_response_store and body.store is not False,
        )
        return answer, [*chat.warnings, *generation.warnings]

    def _conversation(self, body: ResponsesRequest) -> list[Message]:
        """What came before and the new input."""
        before: list[Message] = []
        if body.previous_response_id is not None:
            stored = self._store("previous_response_id").get(body.previous_response_id)
            if stored.cancel is not None:
                raise RequestError("previous_response_id: that response still runs.", field="previous_response_id")
            before = stored.messages
        if body.background:
            self._store("background")
            if body.store is False:
                raise RequestError("background: it needs store.", field="background")
        return [*before, *read_input(body.input, self._referenced)]

    def _referenced(self, id: str, path: str) -> dict[str, Any]:
        item = self._store(path).item(id)
        if item is None:
            raise RequestError(f"{path}.id: no stored item has the id '{id}'.", field=f"{path}.id")
        return item

    def _in_background(self, body: ResponsesRequest, answer: ResponseAnswer, messages: list[Message]) -> Any:
        generation, store = answer.generation, self._store()
        stored = _stored(body, answer, messages)

        def cancel() -> None:
            answer.cancel()
            task.cancel()

        async def work() -> None:
            try:
                await answer.run()
            except RametError as error:
                answer.fail(error)
            except asyncio.CancelledError:
                pass  # by `cancel`, or the server ends
            except Exception:
                log.exception("event=background_response_failed id=%s", answer.response["id"])
                answer.fail(RametError("Internal server error."))
            finally:
                generation.close()
                store.settle(stored, [*messages, *_output_messages(answer)])

        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        stored.cancel = cancel
        store.put(stored)
        return answer.response

    async def retrieve(self, request: Request) -> Response:
        """`GET /v1/responses/{id}`."""
        return json_response(self._store().get(request.path_params["id"]).response)

    async def input_items(self, request: Request) -> Response:
        """`GET /v1/responses/{id}/input_items`."""
        items = self._store().get(request.path_params["id"]).input_items
        ids = [item["id"] for item in items]
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        answer = {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": False}
        return json_response(answer)

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/responses/{id}/cancel`: end one that runs in the background."""
        stored = self._store().get(request.path_params["id"])
        if not stored.response["background"]:
            raise RequestError("Only responses made with background can be cancelled.", field="response_id")
        if stored.cancel is not None:
            stored.cancel()
        return json_response(stored.response)

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/responses/{id}`."""
        id = request.path_params["id"]
        self._store().delete(id)
        return json_response({"id": id, "object": "response", "deleted": True})

    def _store(self, field: str | None = None) -> ResponseStore:
        """The store; a `RequestError` where the server has none."""
        if not self._context.api.enable_response_store:
            raise RequestError(
                "Responses are not stored by this server; start it with --enable-response-store.", field=field
            )
        if self._kept is None:
            self._kept = ResponseStore(self._context.api.response_store_mb * 1_000_000)
        return self._kept


def _stored(body: ResponsesRequest, answer: ResponseAnswer, messages: list[Message]) -> Stored:
    given = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input or []
    items = [{"type": "message", "id": f"msg_{uuid.uuid4().hex[:24]}", **item} for item in given]
    return Stored(answer.response, items, [*messages, *_output_messages(answer)])


def _output_messages(answer: ResponseAnswer) -> list[Message]:
    return to_messages(answer.response["output"], lambda id, path: {})
