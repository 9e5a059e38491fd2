"""`POST /v1/completions`: text or token prompts, continued."""

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
from ramet.server.errors import BodyTypeError
from ramet.server.explain import explanation
from ramet.server.native_format import split_ids
from ramet.server.openai import common
from ramet.server.openai.logprobs import CompletionLogprobs
from ramet.server.responses import error_response, json_response
from ramet.server.sse import DONE, EventStream, event, while_connected
from ramet.text.frontend import Frontend
from ramet.text.generation import Choice, Generation

DEFAULT_MAX_TOKENS = 16

NOT_YET = common.NOT_YET | {"suffix"}


class CompletionRequest(common.SharedFields, kw_only=True):
    """Body of `/v1/completions`."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


class CompletionChunk(msgspec.Struct, kw_only=True):
    """One event of the stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any] | None = None
    explain: dict[str, Any] | UnsetType = UNSET


class Completions:
    """The route."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._body = Body(CompletionRequest)

    async def __call__(self, request: Request) -> Response:
        context, frontend = self._context, self._context.live
        require_json(request)
        body, unknown = self._body.decode(await read_body(request, context.body_limit_bytes))
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=context.api.strict, not_yet=NOT_YET, harmless=common.HARMLESS)
        generation = await self._start(body, frontend)
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

    async def _start(self, body: CompletionRequest, frontend: Frontend) -> Generation:
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise RequestError("best_of is not supported other than equal to n.", field="best_of")
        top = common.check_top_logprobs(body.logprobs, "logprobs")
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        sampling = common.read_sampling(body, max_tokens, self._context.sampling_defaults())
        prompts = read_prompts(body.prompt)
        requests = []
        for index, prompt in enumerate(prompts):
            rid = f"{body.rid}_{index}" if body.rid and len(prompts) > 1 else body.rid
            requests.append(
                common.make_request(
                    body,
                    prompt,
                    sampling,
                    rid=rid,
                    return_logprob=body.logprobs is not None,
                    top_logprobs_num=top,
                    logprob_start_len=0 if body.echo and body.logprobs is not None else -1,
                )
            )
        return await frontend.generate(requests, stream=bool(body.stream))


def read_prompts(given: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts of a field that holds one or several, as text or token ids."""
    if isinstance(given, str):
        given = [given]
    texts = [item for item in given if isinstance(item, str)]
    prompts: list[str | list[int]]
    if texts:
        if len(texts) != len(given):
            raise BodyTypeError("prompt: texts and token ids cannot be mixed", field="prompt")
        prompts = list(texts)
    else:
        ids = [item for item in given if not isinstance(item, str)]
        prompts = list(split_ids(ids, "prompt")[0])
    if not given or not all(prompts):
        raise RequestError("Prompt cannot be empty.", field="prompt")
    return prompts


class _Answer:
    """Renders one call."""

    def __init__(self, body: CompletionRequest, generation: Generation, frontend: Frontend, context: Context) -> None:
        self._body = body
        self._generation = generation
        self._frontend = frontend
        self._context = context
        self._model = body.model or context.model.served_name
        self._id = body.rid or f"cmpl-{generation.choices[0].rid}"
        table = frontend.tokenizer.token_bytes
        self._logprobs = [CompletionLogprobs(table, body.logprobs or 0) for _ in generation.choices]

    def whole(self) -> dict[str, Any]:
        usage = common.usage_object(self._generation.usage(), cache_report=self._context.api.enable_cache_report)
        answer = {
            "id": self._id,
            "object": "text_completion",
            "created": self._generation.created,
            "model": self._model,
            "choices": [self._choice(choice) for choice in self._generation.choices],
            "usage": usage,
            "metadata": {"weight_version": self._context.model.weight_version},
        }
        if self._body.explain:
            answer["explain"] = explanation(self._generation, self._frontend)
        return answer

    def _choice(self, choice: Choice) -> dict[str, Any]:
        text = self._echo(choice) + choice.text
        shown = self._shown(choice, text, [*choice.input_logprobs, *choice.output_logprobs])
        if self._body.return_token_ids:
            shown["token_ids"] = choice.output_ids
            shown["prompt_token_ids"] = choice.prompt_ids
        return shown

    def _shown(self, choice: Choice, text: str, logprobs: list[Any]) -> dict[str, Any]:
        finish = choice.finish
        return {
            "index": choice.index,
            "text": text,
            "logprobs": None if self._body.logprobs is None else self._logprobs[choice.index].render(logprobs),
            "finish_reason": finish.type if finish else None,
            "matched_stop": finish.matched if finish else None,
        }

    def _echo(self, choice: Choice) -> str:
        """The prompt as it is repeated in front of the text; special tokens that the tokenizer added are not shown."""
        return self._frontend.text_of(choice.prompt_ids) if self._body.echo else ""

    async def events(self) -> AsyncGenerator[bytes, None]:
        options = self._body.stream_options
        continuous = bool(options and options.continuous_usage_stats)
        cache_report = self._context.api.enable_cache_report
        encode = msgspec.json.Encoder().encode
        begun: set[int] = set()
        async for chunk in self._generation:
            common.raise_if_aborted(chunk)
            choice = chunk.choice
            text, logprobs = chunk.text, chunk.logprobs
            if choice.index not in begun:
                begun.add(choice.index)
                text = self._echo(choice) + text
                logprobs = [*choice.input_logprobs, *logprobs]
            usage = None
            if continuous:
                usage = common.usage_object(choice.usage(), cache_report=cache_report)
            shown = self._shown(choice, text, logprobs)
            if self._body.return_token_ids:
                shown["token_ids"] = chunk.token_ids
            yield event(encode(self._chunk([shown], usage)))
        if self._body.explain:
            end = self._chunk([], None)
            end.explain = explanation(self._generation, self._frontend)
            yield event(encode(end))
        wanted = options.include_usage if options else None
        if wanted or (wanted is None and self._context.api.stream_response_default_include_usage):
            usage = common.usage_object(self._generation.usage(), cache_report=cache_report)
            yield event(encode(self._chunk([], usage)))
        yield DONE

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> CompletionChunk:
        return CompletionChunk(
            id=self._id, created=self._generation.created, model=self._model, choices=choices, usage=usage
        )
