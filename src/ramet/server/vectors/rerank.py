"""`POST /v1/rerank`: documents in the order in which a cross-encoder finds them to answer a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ramet.errors import RequestError
from ramet.server.body import Body, read_body, require_json
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.errors import BodyTypeError
from ramet.server.responses import json_response
from ramet.server.vectors import common
from ramet.text.embedding import VectorModel, VectorRequest
from ramet.text.frontend import Frontend
from ramet.text.generation import Generation


class TextPart(msgspec.Struct, kw_only=True):
    """A part of a document that is given in parts. Only text is supported."""

    text: str
    type: str = "text"


class RerankRequest(msgspec.Struct, kw_only=True):
    """Body of `/v1/rerank`."""

    query: str
    documents: list[str | TextPart | list[TextPart]]
    model: str | None = None
    instruct: str | None = None
    top_n: int | None = None
    return_documents: bool = True
    rid: str | None = None
    priority: int | None = None


class Rerank:
    """The route."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._body = Body(RerankRequest)

    async def __call__(self, request: Request) -> Response:
        """A list of `{"score", "document", "index", "meta_info"}`, best first."""
        context = self._context
        require_json(request)
        body, unknown = self._body.decode(await read_body(request, context.body_limit_bytes))
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=context.api.strict, not_yet=common.NOT_YET, harmless=common.HARMLESS)
        model = reranker(context.live)
        if body.instruct:
            raise RequestError("instruct: this model takes no instruction.", field="instruct")
        documents = [document_text(document) for document in body.documents]
        generation = await common.run(
            context, request, pairs(body.query, documents, top_n=body.top_n, rid=body.rid, priority=body.priority or 0)
        )
        shown = documents if body.return_documents else None
        answer = ranked(generation, model, context.model.weight_version, documents=shown, top_n=body.top_n)
        return json_response(answer, headers=warning_headers([*warnings, *generation.warnings]))


def reranker(frontend: Frontend) -> VectorModel:
    """The model, which must give one score; raises what to do otherwise."""
    model = common.classifier(frontend)
    if len(model.labels) != 1:
        raise RequestError(
            f"This model has {len(model.labels)} classes and no single score to rank by; use /classify.", field="model"
        )
    return model


def pairs(
    query: str, documents: Sequence[str], *, top_n: int | None = None, rid: str | None = None, priority: int = 0
) -> list[VectorRequest]:
    """A request per document. Raises for an empty query, no documents, an empty document."""
    if not query.strip():
        raise RequestError("query: the text is empty.", field="query")
    if not documents:
        raise RequestError("documents: the list is empty.", field="documents")
    for i, document in enumerate(documents):
        if not document.strip():
            raise RequestError(f"documents: document {i} is empty.", field="documents")
    if top_n is not None and top_n < 1:
        raise RequestError(f"top_n must be at least 1, not {top_n}.", field="top_n")
    rids = common.split_rids(rid, len(documents), several=True)
    return [
        VectorRequest(prompt=(query, document), rid=one, field="documents", priority=priority)
        for document, one in zip(documents, rids, strict=True)
    ]


def ranked(
    generation: Generation,
    model: VectorModel,
    weight_version: str,
    *,
    documents: Sequence[str] | None,
    top_n: int | None = None,
) -> list[dict[str, Any]]:
    """The answer: best first, equal scores in the order of the documents."""
    scores = [float(common.vector_of(choice, model)[0]) for choice in generation.choices]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[:top_n]
    return [
        {
            "score": scores[index],
            **({"document": documents[index]} if documents is not None else {}),
            "index": index,
            "meta_info": common.meta_info(generation.choices[index], weight_version),
        }
        for index in order
    ]


def document_text(document: str | TextPart | list[TextPart]) -> str:
    """The text of a document that may be given in parts."""
    if isinstance(document, str):
        return document
    parts = document if isinstance(document, list) else [document]
    for part in parts:
        if part.type != "text":
            raise BodyTypeError(
                f"documents: a part of type {part.type!r} is not supported; only text is", field="documents"
            )
    return " ".join(part.text for part in parts)
