"""`POST /v1/score`: how likely given tokens are after a query and each item, or a cross-encoder's scores of pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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
from ramet.server.sse import while_connected
from ramet.server.vectors import common
from ramet.text.embedding import VectorRequest
from ramet.text.frontend import Frontend
from ramet.text.generation import Choice, GenerateRequest, Generation
from ramet.types import SamplingParams

#: One token, whose logprobs are those of the plain softmax.
_NEXT_TOKEN = SamplingParams(max_new_tokens=1, temperature=0.0)


class ScoreRequest(msgspec.Struct, kw_only=True):
    """Body of `/v1/score`. Query and items are texts, or all token ids."""

    query: str | list[int]
    items: str | list[str | int | list[int]]
    label_token_ids: list[int | list[int]] | None = None
    apply_softmax: bool = False
    item_first: bool = False
    temperature: float = 1.0
    return_token_logprobs: bool = False
    model: str | None = None
    rid: str | None = None
    priority: int | None = None


class Score:
    """The route."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._body = Body(ScoreRequest)

    async def __call__(self, request: Request) -> Response:
        """`scores` has a list per item: a number per label, or per class."""
        context = self._context
        require_json(request)
        body, unknown = self._body.decode(await read_body(request, context.body_limit_bytes))
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=context.api.strict, not_yet=common.NOT_YET, harmless=common.HARMLESS)
        if not 0 < body.temperature < math.inf:
            raise RequestError("temperature must be positive.", field="temperature")
        if body.temperature != 1.0 and not body.apply_softmax:
            raise RequestError("temperature needs apply_softmax.", field="temperature")
        items = _items(body)
        frontend = context.live
        scores: list[list[float]] = []
        logprobs: list[list[float]] | None = [] if body.return_token_logprobs else None
        usage = None
        if items and frontend.vectors is None:
            generation = await self._next_tokens(request, body, items, frontend)
            found = [_label_logprobs(choice) for choice in generation.choices]
            scores = [_scaled(row, body) if body.apply_softmax else list(map(math.exp, row)) for row in found]
            logprobs = found if logprobs is not None else None
            usage = generation.usage()
            warnings += generation.warnings
        elif items:
            model = common.classifier(frontend)
            generation = await common.run(context, request, _pair_requests(body, items))
            rows = [common.vector_of(choice, model).tolist() for choice in generation.choices]
            scores = [_scaled(row, body) if body.apply_softmax else row for row in rows]
            usage = generation.usage()
            warnings += generation.warnings
        answer: dict[str, Any] = {
            "scores": scores,
            "token_logprobs": logprobs,
            "model": body.model or context.model.served_name,
            "usage": usage_object(usage, cache_report=context.api.enable_cache_report) if usage is not None else None,
            "object": "scoring",
        }
        return json_response(answer, headers=warning_headers(warnings))

    async def _next_tokens(
        self, request: Request, body: ScoreRequest, items: Sequence[str | list[int]], frontend: Frontend
    ) -> Generation:
        """What comes after the query and each item."""
        labels = _labels(body, len(items), frontend)
        requests = [
            GenerateRequest(
                prompt=await _joined(body, item, frontend),
                sampling=_NEXT_TOKEN,
                rid=rid,
                priority=body.priority or 0,
                return_logprob=True,
                token_ids_logprob=ids,
            )
            for item, ids, rid in zip(items, labels, common.split_rids(body.rid, len(items), several=True), strict=True)
        ]
        generation = await frontend.generate(requests, stream=False)
        await while_connected(request.receive, generation.wait(), generation.close)
        return generation


def _items(body: ScoreRequest) -> list[str | list[int]]:
    """Items of the query's kind."""
    if isinstance(body.query, str):
        items = [body.items] if isinstance(body.items, str) else body.items
        texts = [item for item in items if isinstance(item, str)]
        if len(texts) != len(items):
            raise BodyTypeError("items: must be texts, as the query is", field="items")
        return list(texts)
    if isinstance(body.items, str) or any(isinstance(item, str) for item in body.items):
        raise BodyTypeError("items: must be lists of token ids, as the query is", field="items")
    if not body.items:
        return []
    return list(split_ids([item for item in body.items if not isinstance(item, str)], "items")[0])


def _labels(body: ScoreRequest, count: int, frontend: Frontend) -> list[tuple[int, ...]]:
    """The label ids of each item."""
    if not body.label_token_ids:
        raise RequestError("label_token_ids is needed: whose probabilities are wanted?", field="label_token_ids")
    lists, several = split_ids(body.label_token_ids, "label_token_ids")
    if several and len(lists) != count:
        raise RequestError(f"label_token_ids: {len(lists)} lists for {count} items.", field="label_token_ids")
    for ids in lists:
        if not ids or len(set(ids)) != len(ids):
            raise RequestError("label_token_ids must be different ids, at least one.", field="label_token_ids")
        frontend.limits.check_ids(ids, "label_token_ids")
    return [tuple(lists[i if several else 0]) for i in range(count)]


async def _joined(body: ScoreRequest, item: str | list[int], frontend: Frontend) -> list[int]:
    """Token ids of query and item in their order; special tokens stand at the front only."""
    parts: list[str | list[int]] = [item, body.query] if body.item_first else [body.query, item]
    ids: list[int] = []
    for place, part in enumerate(parts):
        if isinstance(part, list):
            frontend.limits.check_ids(part, "items" if part is item else "query")
            ids += part
        elif part:
            ids += await frontend.encode(part, add_special_tokens=place == 0)
    return ids


def _pair_requests(body: ScoreRequest, items: Sequence[str | list[int]]) -> list[VectorRequest]:
    if body.label_token_ids:
        raise RequestError("label_token_ids: this model scores pairs and predicts no tokens.", field="label_token_ids")
    if not isinstance(body.query, str):
        raise RequestError("query: this model scores pairs of texts, not of token ids.", field="query")
    if not body.query.strip():
        raise RequestError("query: the text is empty.", field="query")
    requests = []
    for item, rid in zip(items, common.split_rids(body.rid, len(items), several=True), strict=True):
        assert isinstance(item, str)
        pair = (item, body.query) if body.item_first else (body.query, item)
        requests.append(VectorRequest(prompt=pair, rid=rid, field="items", priority=body.priority or 0))
    return requests


def _label_logprobs(choice: Choice) -> list[float]:
    chosen = choice.output_logprobs[0].chosen
    assert chosen is not None
    return [logprob for _, logprob in chosen]


def _scaled(row: Sequence[float], body: ScoreRequest) -> list[float]:
    return common.softmax([x / body.temperature for x in row])
