"""What these routes share: prompts and ids of a body, and the wait for its vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from starlette.requests import Request

from ramet.errors import RequestError
from ramet.executor.base import F32
from ramet.server.context import Context
from ramet.server.native_format import finish_object
from ramet.server.sse import while_connected
from ramet.text.embedding import NO_VECTORS, VectorModel, VectorRequest
from ramet.text.frontend import Frontend
from ramet.text.generation import Choice, Generation

#: Fields that say nothing about the answer: accepted.
HARMLESS = frozenset(
    "user session_id log_metrics no_logs custom_labels routing_key conversation_id external_trace_header background "
    "routed_dp_rank data_parallel_rank".split()
)

#: Fields that would change the answer and are not honoured yet: refused by name unless null, false or empty.
NOT_YET = frozenset(
    "lora_path image_data video_data audio_data modalities embed_override_token_id embed_overrides "
    "return_pooled_hidden_states score_extraction_token bootstrap_host bootstrap_port bootstrap_room".split()
)


def vector_model(frontend: Frontend) -> VectorModel:
    """The model's side of these routes; raises where it generates text."""
    if frontend.vectors is None:
        raise RequestError(NO_VECTORS, field="model")
    return frontend.vectors


def embedder(frontend: Frontend) -> VectorModel:
    """As `vector_model`; raises also where the vectors are scores of classes."""
    model = vector_model(frontend)
    if model.labels:
        raise RequestError(
            "This model scores texts and gives no embeddings; use /v1/rerank, /v1/score or /classify.", field="model"
        )
    return model


def classifier(frontend: Frontend) -> VectorModel:
    """As `vector_model`; raises also where the vectors are embeddings."""
    model = vector_model(frontend)
    if not model.labels:
        raise RequestError(
            "This model gives embeddings and no scores; use /v1/embeddings, or serve a model for sequence "
            "classification (a cross-encoder).",
            field="model",
        )
    return model


async def run(context: Context, request: Request, requests: Sequence[VectorRequest]) -> Generation:
    """All vectors; the client's leaving ends the work."""
    generation = await context.live.embed(requests)
    await while_connected(request.receive, generation.wait(), generation.close)
    return generation


def vector_of(choice: Choice, model: VectorModel, dimensions: int | None = None) -> F32:
    """A finished request's vector."""
    assert choice.embedding is not None  # `wait` has raised what ended it otherwise
    return model.cut(choice.embedding, dimensions)


def split_rids(given: str | Sequence[str] | None, count: int, *, several: bool) -> list[str | None]:
    """An id per prompt: a single one for several prompts is their stem."""
    if given is None:
        return [None] * count
    if isinstance(given, str):
        return [f"{given}_{i}" for i in range(count)] if several else [given]
    if len(given) != count:
        raise RequestError(f"rid: {len(given)} ids for {count} prompts.", field="rid")
    return list(given)


def meta_info(choice: Choice, weight_version: str) -> dict[str, Any]:
    """`meta_info` of native routes."""
    usage = choice.usage()
    meta: dict[str, Any] = {
        "id": choice.rid,
        "finish_reason": finish_object(choice.finish),
        "prompt_tokens": usage.prompt_tokens,
        "weight_version": weight_version,
        "num_retractions": choice.num_retractions,
        "cached_tokens": usage.cached_tokens,
    }
    if choice.finished_s is not None:
        meta["e2e_latency"] = choice.finished_s - choice.arrived_s
    return meta


def softmax(logits: Sequence[float] | F32) -> list[float]:
    """Shares that sum to 1."""
    x = np.asarray(logits, np.float64)
    shares = np.exp(x - x.max())
    found: list[float] = (shares / shares.sum()).tolist()
    return found
