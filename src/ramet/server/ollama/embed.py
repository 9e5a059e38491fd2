"""`POST /api/embed`, and `POST /api/embeddings`, which came before it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ramet.executor.base import F32
from ramet.server.body import Body, read_body
from ramet.server.context import Context, note_unknown, warning_headers
from ramet.server.ollama.options import unloads
from ramet.server.responses import json_response
from ramet.server.vectors import common
from ramet.text.embedding import VectorRequest
from ramet.text.generation import Generation

#: The options are those of generation, and a text is never cut: one that is too long is refused.
HARMLESS = frozenset({"options", "truncate"})


class OllamaEmbedRequest(msgspec.Struct, kw_only=True):
    """Body of `/api/embed`."""

    model: str
    input: str | list[str] | None = None
    dimensions: int | None = None
    keep_alive: float | str | None = None


class OllamaEmbeddingsRequest(msgspec.Struct, kw_only=True):
    """Body of `/api/embeddings`."""

    model: str
    prompt: str | None = None
    keep_alive: float | str | None = None


class OllamaEmbed:
    """The routes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._body = Body(OllamaEmbedRequest)
        self._old_body = Body(OllamaEmbeddingsRequest)

    async def embed(self, request: Request) -> Response:
        """A vector of length 1 per text; no text asks for the model to be loaded."""
        began_s = time.monotonic()
        model = common.embedder(self._context.live)
        body, unknown = self._body.decode(await read_body(request, self._context.body_limit_bytes))
        dimensions = model.check_dimensions(body.dimensions)
        unloads(body.keep_alive)
        texts = [body.input] if isinstance(body.input, str) and body.input else body.input or []
        vectors, counts, headers = [], {}, None
        if texts:
            generation, headers = await self._run(request, texts, unknown, "input")
            vectors = [_unit(common.vector_of(choice, model, dimensions)) for choice in generation.choices]
            counts = {"prompt_eval_count": generation.usage().prompt_tokens}
        answer = {
            "model": body.model,
            "embeddings": vectors,
            "total_duration": round((time.monotonic() - began_s) * 1e9),
            "load_duration": 0,
            **counts,
        }
        return json_response(answer, headers=headers)

    async def embeddings(self, request: Request) -> Response:
        """One text's vector as the model gives it."""
        model = common.embedder(self._context.live)
        body, unknown = self._old_body.decode(await read_body(request, self._context.body_limit_bytes))
        unloads(body.keep_alive)
        if not body.prompt:
            return json_response({"embedding": []})
        generation, headers = await self._run(request, [body.prompt], unknown, "prompt")
        vector = common.vector_of(generation.choices[0], model)
        return json_response({"embedding": vector.tolist()}, headers=headers)

    async def _run(
        self, request: Request, texts: Sequence[str], unknown: dict[str, bytes], field: str
    ) -> tuple[Generation, dict[str, str] | None]:
        warnings: list[str] = []
        note_unknown(unknown, warnings, strict=self._context.api.strict, harmless=HARMLESS)
        requests = [VectorRequest(prompt=text, field=field) for text in texts]
        generation = await common.run(self._context, request, requests)
        return generation, warning_headers([*warnings, *generation.warnings])


def _unit(vector: F32) -> Any:
    wide = vector.astype(np.float64)
    return (wide / max(float(np.linalg.norm(wide)), 1e-12)).astype(np.float32).tolist()
