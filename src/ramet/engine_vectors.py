"""Vectors and scores from Python: what `Engine.embed` and `Engine.rerank` do on the engine's event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ramet.server.errors import type_error
from ramet.server.vectors.common import embedder
from ramet.server.vectors.encode import EncodeRequest, encode_answer, vector_requests
from ramet.server.vectors.rerank import RerankRequest, document_text, pairs, ranked, reranker

if TYPE_CHECKING:
    from ramet.launch import Running
    from ramet.text.embedding import VectorRequest
    from ramet.text.generation import Generation

T = TypeVar("T")


async def embed(running: Running, values: Mapping[str, Any]) -> Any:
    """`values`: fields of `/encode`. `{"embedding", "meta_info"}` of the prompt, or a list of those."""
    body = _body(values, EncodeRequest)
    model = embedder(running.frontend)
    dimensions = model.check_dimensions(body.dimensions)
    requests, several = vector_requests(body)
    generation = await _finished(running, requests)
    version = running.card.weight_version
    return encode_answer(generation, model, version, several=several, dimensions=dimensions)


async def rerank(running: Running, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`values`: fields of `/v1/rerank`. The answer of that route."""
    body = _body(values, RerankRequest)
    model = reranker(running.frontend)
    documents = [document_text(document) for document in body.documents]
    generation = await _finished(running, pairs(body.query, documents, top_n=body.top_n))
    return ranked(generation, model, running.card.weight_version, documents=documents, top_n=body.top_n)


async def _finished(running: Running, requests: Sequence[VectorRequest]) -> Generation:
    generation = await running.frontend.embed(requests)
    try:
        await generation.wait()
    finally:
        generation.close()
    return generation


def _body(values: Mapping[str, Any], kind: type[T]) -> T:
    """Types are checked as the route checks them."""
    try:
        return msgspec.convert({key: value for key, value in values.items() if value is not None}, kind)
    except msgspec.ValidationError as error:
        raise type_error(str(error)) from None
