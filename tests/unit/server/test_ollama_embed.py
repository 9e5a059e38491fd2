"""`/api/embed` and `/api/embeddings`, over a scripted model whose vectors are hashes of the text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.server import Server, running


@pytest.fixture
async def server(model: Path) -> AsyncIterator[Server]:
    async with running(model, is_embedding=True) as server:
        yield server


async def embed(server: Server, given: Any, **fields: Any) -> Any:
    answer = await server.client.post("/api/embed", {"model": "toy", "input": given, **fields})
    assert answer.status == 200, answer.body
    return answer.json


async def test_a_vector_of_length_one_per_text(server: Server) -> None:
    answer = await embed(server, ["Hi", "there", "Hi"], truncate=True, options={"num_ctx": 9}, keep_alive="5m")
    assert (answer["model"], answer["prompt_eval_count"], answer["load_duration"]) == ("toy", 7, 0)
    assert isinstance(answer["total_duration"], int)
    vectors = np.array(answer["embeddings"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    assert answer["embeddings"][0] == answer["embeddings"][2] != answer["embeddings"][1]
    assert (await embed(server, "Hi"))["embeddings"] == answer["embeddings"][:1]


async def test_the_old_route_gives_one_vector(server: Server) -> None:
    old = await server.client.post("/api/embeddings", {"model": "toy", "prompt": "Hi"})
    np.testing.assert_allclose(old.json["embedding"], (await embed(server, "Hi"))["embeddings"][0], rtol=1e-6)
    assert (await server.client.post("/api/embeddings", {"model": "toy"})).json == {"embedding": []}


@pytest.mark.parametrize("nothing", ["", [], None])
async def test_nothing_to_embed_loads_the_model(server: Server, nothing: Any) -> None:
    assert (await embed(server, nothing))["embeddings"] == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": 3}, "input"),
        ({"input": ["a", " "]}, "input"),
        ({"input": "x" * 1000}, "context length"),
        ({"dimensions": 0}, "dimensions"),
        ({"keep_alive": "soon"}, "keep_alive"),
    ],
)
async def test_refusals_name_the_field(server: Server, fields: dict[str, Any], words: str) -> None:
    answer = await server.client.post("/api/embed", {"model": "toy", "input": "Hi", **fields})
    assert answer.status == 400
    assert words in answer.json["error"]


async def test_a_model_that_embeds_generates_nothing_and_the_other_way_round(server: Server, model: Path) -> None:
    shown = (await server.client.post("/api/show", {"model": "toy"})).json
    assert shown["capabilities"] == ["embedding"]
    assert shown["model_info"]["llama.embedding_length"] == 32
    refused = await server.client.post("/api/generate", {"model": "toy", "prompt": "Hi"})
    assert (refused.status, list(refused.json)) == (400, ["error"])
    messages = [{"role": "user", "content": "Hi"}]
    claude = await server.client.post("/v1/messages", {"model": "toy", "max_tokens": 1, "messages": messages})
    assert (claude.status, claude.json["error"]["type"]) == (400, "invalid_request_error")
    async with running(model) as other:
        refused = await other.client.post("/api/embed", {"model": "toy", "input": "Hi"})
        assert (refused.status, list(refused.json)) == (400, ["error"])
        assert "--is-embedding" in refused.json["error"]
