"""`POST /v1/embeddings` and `/v1/classify`, in OpenAI's manner."""

from __future__ import annotations

import base64
import time
import uuid
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import RequestError
from ramet.server.body import Body, read_body, require_json
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.errors import BodyTypeError
from ramet.server.native_format import split_ids
from ramet.server.openai.common import usage_object
from ramet.server.responses import json_response
from ramet.server.vectors import common
from ramet.text.embedding import VectorModel, VectorRequest
from ramet.text.generation import Choice, Generation


class _Inputs(msgspec.Struct, kw_only=True):
    input: str | list[str | int | list[int]]
    model: str | None = None
    rid: str | list[str] | None = None
    priority: int | None = None


class EmbeddingRequest(_Inputs, kw_only=True):
    """Body of `/v1/embeddings`."""

    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class ClassifyRequest(_Inputs, kw_only=True):
    """Body of `/v1/classify`."""


class Embeddings:
    """The routes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._embedding = Body(EmbeddingRequest)
        self._classify = Body(ClassifyRequest)

    async def embeddings(self, request: Request) -> Response:
        """A vector per input."""
        require_json(request)
        body, unknown = self._embedding.decode(await read_body(request, self._context.body_limit_bytes))
        model = common.embedder(self._context.live)
        dimensions = model.check_dimensions(body.dimensions)
        generation, headers = await self._run(request, body, unknown)
        as_base64 = body.encoding_format == "base64"

        def shown(choice: Choice) -> Any:
            vector = common.vector_of(choice, model, dimensions)
            return base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_base64 else vector.tolist()

        answer = {
            "object": "list",
            "data": [{"object": "embedding", "index": c.index, "embedding": shown(c)} for c in generation.choices],
            "model": body.model or self._context.model.served_name,
            "usage": self._usage(generation),
        }
        return json_response(answer, headers=headers)

    async def classify(self, request: Request) -> Response:
        """The most likely class of each input, with the probability of all."""
        require_json(request)
        body, unknown = self._classify.decode(await read_body(request, self._context.body_limit_bytes))
        model = common.classifier(self._context.live)
        generation, headers = await self._run(request, body, unknown)
        answer = {
            "id": f"classify-{uuid.uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": body.model or self._context.model.served_name,
            "data": [_class(choice, model) for choice in generation.choices],
            "usage": self._usage(generation),
        }
        return json_response(answer, headers=headers)

    async def _run(
        self, request: Request, body: _Inputs, unknown: dict[str, bytes]
    ) -> tuple[Generation, dict[str, str] | None]:
        warnings: list[str] = []
        strict = self._context.api.strict
        note_unknown(unknown, warnings, strict=strict, not_yet=common.NOT_YET, harmless=common.HARMLESS)
        prompts, several = _prompts(body.input)
        rids = common.split_rids(body.rid, len(prompts), several=several)
        requests = [
            VectorRequest(prompt=prompt, rid=rid, priority=body.priority or 0)
            for prompt, rid in zip(prompts, rids, strict=True)
        ]
        generation = await common.run(self._context, request, requests)
        return generation, warning_headers([*warnings, *generation.warnings])

    def _usage(self, generation: Generation) -> dict[str, Any]:
        return usage_object(generation.usage(), cache_report=self._context.api.enable_cache_report)


def _prompts(given: str | list[str | int | list[int]]) -> tuple[list[str | list[int]], bool]:
    """The prompts of `input`; whether it was a list of them."""
    if isinstance(given, str):
        return [given], False
    if not given:
        raise RequestError("input: the list is empty.", field="input")
    texts = [item for item in given if isinstance(item, str)]
    if texts and len(texts) != len(given):
        raise BodyTypeError("input: texts and token ids cannot be mixed", field="input")
    if texts:
        return list(texts), True
    lists, several = split_ids([item for item in given if not isinstance(item, str)], "input")
    return list(lists), several


def _class(choice: Choice, model: VectorModel) -> dict[str, Any]:
    shares = common.softmax(common.vector_of(choice, model))
    label = model.labels[shares.index(max(shares))]
    return {"index": choice.index, "label": label, "probs": shares, "num_classes": len(shares)}
