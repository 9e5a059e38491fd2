"""`POST /encode` and `/classify` (and PUT): SGLang's native routes for vectors and logits of classes."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import RequestError
from ramet.server.body import Body, read_body
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.errors import BodyTypeError
from ramet.server.native_format import split_ids
from ramet.server.responses import json_response
from ramet.server.vectors import common
from ramet.text.embedding import VectorModel, VectorRequest
from ramet.text.generation import Choice, Generation

Prompt = str | list[int] | tuple[str, str]


class EncodeRequest(msgspec.Struct, kw_only=True):
    """Body of `/encode` and `/classify`: text (with `is_cross_encoder_request` pairs of texts) or token ids."""

    text: str | list[str | list[str]] | None = None
    input_ids: list[int | list[int]] | None = None
    is_cross_encoder_request: bool = False
    dimensions: int | None = None
    rid: str | list[str] | None = None
    priority: int | None = None
    sampling_params: Any = None  # there is nothing to sample
    return_prompt_token_ids: bool = False


class Encode:
    """The route."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._body = Body(EncodeRequest)

    async def __call__(self, request: Request) -> Response:
        context = self._context
        body, unknown = self._body.decode(await read_body(request, context.body_limit_bytes))
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=context.api.strict, not_yet=common.NOT_YET, harmless=common.HARMLESS)
        model = common.vector_model(context.live)
        dimensions = model.check_dimensions(body.dimensions)
        requests, several = vector_requests(body)
        generation = await common.run(context, request, requests)
        answer = encode_answer(
            generation,
            model,
            context.model.weight_version,
            several=several,
            dimensions=dimensions,
            ids=body.return_prompt_token_ids,
        )
        return json_response(answer, headers=warning_headers([*warnings, *generation.warnings]))


def vector_requests(body: EncodeRequest) -> tuple[list[VectorRequest], bool]:
    """The prompts of a body; whether there were several."""
    prompts, several = _prompts(body)
    field = "text" if body.text is not None else "input_ids"
    rids = common.split_rids(body.rid, len(prompts), several=several)
    return [
        VectorRequest(prompt=prompt, rid=rid, field=field, priority=body.priority or 0)
        for prompt, rid in zip(prompts, rids, strict=True)
    ], several


def encode_answer(
    generation: Generation,
    model: VectorModel,
    weight_version: str,
    *,
    several: bool,
    dimensions: int | None = None,
    ids: bool = False,
) -> Any:
    """`{"embedding", "meta_info"}`, or a list of those. `ids`: with the prompt's token ids."""

    def shown(choice: Choice) -> dict[str, Any]:
        vector: list[float] = common.vector_of(choice, model, dimensions).tolist()
        answer = {"embedding": vector, "meta_info": common.meta_info(choice, weight_version)}
        return {**answer, "prompt_token_ids": choice.prompt_ids} if ids else answer

    answers = [shown(choice) for choice in generation.choices]
    return answers if several else answers[0]


def _prompts(body: EncodeRequest) -> tuple[list[Prompt], bool]:
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("Give exactly one of text and input_ids.", field="text")
    if body.input_ids is not None:
        if not body.input_ids:
            raise RequestError("input_ids: the prompt has no tokens.", field="input_ids")
        lists, several = split_ids(body.input_ids, "input_ids")
        return list(lists), several
    text = body.text
    if isinstance(text, str):
        return [text], False
    assert text is not None
    if not text:
        raise RequestError("text: the list is empty.", field="text")
    pairs = [item for item in text if isinstance(item, list)]
    if body.is_cross_encoder_request and not pairs and len(text) == 2:
        first, second = text
        assert isinstance(first, str)
        assert isinstance(second, str)
        return [(first, second)], False
    if bool(pairs) != body.is_cross_encoder_request or (pairs and len(pairs) != len(text)):
        raise BodyTypeError(
            "text: pairs of texts go with is_cross_encoder_request, and all must be pairs", field="text"
        )
    if any(len(pair) != 2 for pair in pairs):
        raise BodyTypeError("text: a pair has two texts", field="text")
    if pairs:
        return [(pair[0], pair[1]) for pair in pairs], True
    return [item for item in text if isinstance(item, str)], True
