"""Routes for embeddings, reranking and scores, on a scripted engine whose vectors are hashes of the prompt."""

from __future__ import annotations

import base64
import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import toy
from support.asgi import Exchange
from support.server import Server, running

CHECKPOINTS = Path(__file__).parents[2] / "reference" / "embeddings"
SIZE = 48
CONTEXT = 96


def serving(name: str, **options: Any) -> AbstractAsyncContextManager[Server]:
    return running(CHECKPOINTS / name, **{"chunked_prefill_size": -1, **options})


@pytest.fixture
async def bert() -> AsyncIterator[Server]:
    async with serving("bert") as server:
        yield server


@pytest.fixture
async def reranker() -> AsyncIterator[Server]:
    async with serving("bert-rerank") as server:
        yield server


def refused(answer: Exchange, *words: str) -> None:
    assert answer.status == 400, answer.body
    text = answer.body.decode()
    assert all(word in text for word in words), text


async def vector(server: Server, **body: Any) -> list[float]:
    answer = await server.client.post("/v1/embeddings", {"model": "m", "input": "the stem", **body})
    assert answer.status == 200, answer.body
    found: list[float] = answer.json["data"][0]["embedding"]
    return found


async def test_one_text(bert: Server) -> None:
    answer = await bert.client.post("/v1/embeddings", {"model": "any", "input": "the stem"})
    body = answer.json
    assert answer.status == 200
    assert (body["object"], body["model"]) == ("list", "any")
    (entry,) = body["data"]
    assert (entry["object"], entry["index"], len(entry["embedding"])) == ("embedding", 0, SIZE)
    assert math.isclose(sum(x * x for x in entry["embedding"]), 1, rel_tol=1e-5)
    assert (body["usage"]["prompt_tokens"], body["usage"]["total_tokens"]) == (4, 4)
    assert body["usage"]["completion_tokens"] == 0


async def test_all_forms_of_input_are_one(bert: Server) -> None:
    ids = bert.frontend.tokenizer.encode("the stem")
    wanted = await vector(bert)
    for given in (["the stem"], ids, [ids]):
        assert await vector(bert, input=given) == wanted
    answer = await bert.client.post("/v1/embeddings", {"input": ["a", "the stem", "moon"], "rid": "r"})
    assert [entry["index"] for entry in answer.json["data"]] == [0, 1, 2]
    assert answer.json["data"][1]["embedding"] == wanted
    assert answer.json["usage"]["prompt_tokens"] == 3 + 4 + 3


async def test_base64_holds_the_same_floats(bert: Server) -> None:
    plain = await vector(bert, encoding_format="float")
    packed: Any = await vector(bert, encoding_format="base64")
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == plain


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"input": ""}, ["input", "empty"]),
        ({"input": " \n\t"}, ["input", "empty"]),
        ({"input": []}, ["input", "empty"]),
        ({"input": [""]}, ["input", "empty"]),
        ({"input": [[]]}, ["input", "no tokens"]),
        ({"input": ["a", [1]]}, ["input", "mixed"]),
        ({"input": [1, [1]]}, ["input", "mixed"]),
        ({"input": [1, 100_000]}, ["input", "100000", "outside the vocabulary"]),
        ({"input": [-1]}, ["input", "-1", "outside the vocabulary"]),
        ({"input": 5}, ["input"]),
        ({"input": None}, ["input"]),
        ({}, ["input"]),
        ({"input": "a " * CONTEXT}, ["input", str(CONTEXT)]),
        ({"input": [5] * (CONTEXT + 1)}, ["input", str(CONTEXT)]),
        ({"input": "a", "dimensions": 0}, ["dimensions", f"1 to {SIZE}"]),
        ({"input": "a", "dimensions": -3}, ["dimensions"]),
        ({"input": "a", "dimensions": 1 << 40}, ["dimensions"]),
        ({"input": "a", "dimensions": 8}, ["dimensions", "Matryoshka", "--matryoshka"]),
        ({"input": "a", "dimensions": "8"}, ["dimensions"]),
        ({"input": "a", "encoding_format": "int8"}, ["encoding_format"]),
        ({"input": ["a", "b"], "rid": ["x"]}, ["rid"]),
        ({"input": "a", "lora_path": "x"}, ["lora_path"]),
        ({"input": "\ud800"}, []),
        ({"input": ["a"] * 16_385}, ["input", "16385", "16384"]),
    ],
)
async def test_bad_bodies(bert: Server, body: dict[str, Any], words: list[str]) -> None:
    refused(await bert.client.post("/v1/embeddings", body), *words)
    assert len(await vector(bert)) == SIZE
    await bert.idle()


async def test_what_fills_the_context_is_taken(bert: Server) -> None:
    assert len(await vector(bert, input=[5] * CONTEXT)) == SIZE


async def test_long_prompts_are_cut_at_the_end_where_that_is_allowed() -> None:
    async with serving("bert", allow_auto_truncate=True) as server:
        ids = server.frontend.tokenizer.encode("a " * 200)
        answer = await server.client.post("/v1/embeddings", {"input": "a " * 200})
        assert answer.status == 200
        assert "were cut" in answer.headers["x-ramet-warning"]
        assert answer.json["usage"]["prompt_tokens"] == CONTEXT
        assert answer.json["data"][0]["embedding"] == await vector(server, input=[*ids[: CONTEXT - 1], ids[-1]])


async def test_dimensions_cut_and_renormalise() -> None:
    async with serving("qwen3") as server:
        whole = np.asarray(await vector(server))
        head = np.asarray(await vector(server, dimensions=7))
        np.testing.assert_allclose(head, whole[:7] / np.linalg.norm(whole[:7]), atol=1e-6)
        assert await vector(server, dimensions=SIZE) == whole.tolist()
        refused(await server.client.post("/v1/embeddings", {"input": "a", "dimensions": SIZE + 1}), "dimensions")
    async with serving("bert", matryoshka=True) as server:
        assert len(await vector(server, dimensions=1)) == 1


async def test_unknown_fields_are_named() -> None:
    async with serving("bert", strict=True) as server:
        refused(await server.client.post("/v1/embeddings", {"input": "a", "colour": 1}), "colour")
    async with serving("bert") as server:
        answer = await server.client.post("/v1/embeddings", {"input": "a", "colour": 1, "user": "u"})
        assert answer.headers["x-ramet-warning"] == "unknown fields were ignored: colour"


async def test_text_is_refused_with_what_to_do(bert: Server, reranker: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    for path, body in (
        ("/generate", {"text": "hi"}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", chat),
    ):
        refused(await bert.client.post(path, body), "gives embeddings", "/v1/embeddings")
        refused(await reranker.client.post(path, body), "scores texts", "/v1/rerank")


async def test_vectors_are_refused_by_a_model_that_generates(model: Path) -> None:
    async with running(model) as server:
        for path, body in (
            ("/v1/embeddings", {"input": "hi"}),
            ("/encode", {"text": "hi"}),
            ("/classify", {"text": "hi"}),
            ("/v1/classify", {"input": "hi"}),
            ("/v1/rerank", {"query": "hi", "documents": ["a"]}),
        ):
            refused(await server.client.post(path, body), "does not appear to be an embedding model", "--is-embedding")
        assert (await server.client.get("/model_info")).json["is_generation"] is True


async def test_each_kind_refuses_the_other(bert: Server, reranker: Server) -> None:
    refused(await bert.client.post("/v1/rerank", {"query": "a", "documents": ["b"]}), "cross-encoder")
    refused(await bert.client.post("/v1/score", {"query": "a", "items": ["b"]}), "cross-encoder")
    refused(await bert.client.post("/v1/classify", {"input": "a"}), "cross-encoder")
    refused(await reranker.client.post("/v1/embeddings", {"input": "a"}), "/v1/rerank")


async def test_a_decoder_is_an_embedder_when_told(model: Path) -> None:
    async with running(model, is_embedding=True) as server:
        assert len(await vector(server, input="hi")) == toy.CONFIG["hidden_size"]
        info = (await server.client.get("/model_info")).json
        assert info["is_generation"] is False
        assert (await server.client.get("/health_generate")).status == 200


async def test_encode(bert: Server) -> None:
    answer = await bert.client.post("/encode", {"text": "the stem", "rid": "mine", "return_prompt_token_ids": True})
    body = answer.json
    assert body["embedding"] == await vector(bert)
    assert body["prompt_token_ids"] == bert.frontend.tokenizer.encode("the stem")
    assert body["meta_info"]["id"] == "mine"
    assert body["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert body["meta_info"]["prompt_tokens"] == 4
    several = await bert.client.post("/encode", {"text": ["the stem"], "sampling_params": {"max_new_tokens": 3}})
    assert [entry["embedding"] for entry in several.json] == [body["embedding"]]
    ids = await bert.client.open("PUT", "/encode", {"input_ids": [body["prompt_token_ids"]] * 2}).finish()
    assert [entry["embedding"] for entry in ids.json] == [body["embedding"]] * 2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, ["exactly one of text and input_ids"]),
        ({"text": "a", "input_ids": [1]}, ["exactly one of text and input_ids"]),
        ({"text": []}, ["text", "empty"]),
        ({"input_ids": []}, ["input_ids"]),
        ({"text": [["a", "b"]]}, ["is_cross_encoder_request"]),
        ({"text": [["a", "b", "c"]], "is_cross_encoder_request": True}, ["a pair has two texts"]),
        ({"text": "a", "image_data": "x"}, ["image_data"]),
    ],
)
async def test_bad_encode_bodies(bert: Server, body: dict[str, Any], words: list[str]) -> None:
    refused(await bert.client.post("/encode", body), *words)


async def test_pairs_through_encode_are_those_of_rerank(reranker: Server) -> None:
    ask = {"query": "why", "documents": ["the sun", "a stone", "the moon"]}
    ranked = (await reranker.client.post("/v1/rerank", ask)).json
    scores = {entry["index"]: entry["score"] for entry in ranked}
    pairs = [["why", document] for document in ask["documents"]]
    encoded = (await reranker.client.post("/classify", {"text": pairs, "is_cross_encoder_request": True})).json
    assert [entry["embedding"] for entry in encoded] == [[scores[i]] for i in range(3)]
    one = await reranker.client.post("/classify", {"text": pairs[1], "is_cross_encoder_request": True})
    assert one.json["embedding"] == [scores[1]]


async def test_rerank_orders_and_cuts(reranker: Server) -> None:
    documents: list[Any] = ["the sun", {"text": "a stone"}, [{"type": "text", "text": "a"}, {"text": "moon"}]]
    ask = {"model": "m", "query": "why", "documents": documents}
    answer = await reranker.client.post("/v1/rerank", ask)
    assert answer.status == 200
    entries = answer.json
    assert sorted(entry["index"] for entry in entries) == [0, 1, 2]
    assert [entry["score"] for entry in entries] == sorted((entry["score"] for entry in entries), reverse=True)
    texts = ["the sun", "a stone", "a moon"]
    assert all(entry["document"] == texts[entry["index"]] for entry in entries)
    assert all(entry["meta_info"]["prompt_tokens"] > 0 for entry in entries)
    short = await reranker.client.post("/rerank", {**ask, "top_n": 1, "return_documents": False})
    (best,) = short.json
    assert "document" not in best
    assert (best["index"], best["score"]) == (entries[0]["index"], entries[0]["score"])
    assert len((await reranker.client.post("/v1/rerank", {**ask, "top_n": 99})).json) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": " "}, ["query"]),
        ({"documents": []}, ["documents"]),
        ({"documents": ["a", ""]}, ["documents", "1"]),
        ({"documents": "a"}, ["documents"]),
        ({"documents": [{"type": "image_url", "text": "x"}]}, ["image_url"]),
        ({"top_n": 0}, ["top_n"]),
        ({"instruct": "please"}, ["instruct"]),
        ({"documents": ["a " * CONTEXT]}, ["documents", str(CONTEXT)]),
    ],
)
async def test_bad_rerank_bodies(reranker: Server, change: dict[str, Any], words: list[str]) -> None:
    refused(await reranker.client.post("/v1/rerank", {"query": "why", "documents": ["a"], **change}), *words)


async def test_classes() -> None:
    async with serving("bert-classify") as server:
        answer = (await server.client.post("/v1/classify", {"input": ["a", "the sun"]})).json
        assert [entry["index"] for entry in answer["data"]] == [0, 1]
        for entry in answer["data"]:
            assert entry["num_classes"] == len(entry["probs"]) == 3
            assert math.isclose(sum(entry["probs"]), 1)
            assert entry["label"] == f"LABEL_{entry['probs'].index(max(entry['probs']))}"
        logits = (await server.client.post("/classify", {"text": "a"})).json["embedding"]
        assert len(logits) == 3
        refused(await server.client.post("/v1/rerank", {"query": "a", "documents": ["b"]}), "3 classes")
        scores = await server.client.post("/v1/score", {"query": "a", "items": ["the sun"], "apply_softmax": True})
        assert math.isclose(sum(scores.json["scores"][0]), 1)


async def test_score_by_a_cross_encoder(reranker: Server) -> None:
    documents = ["the sun", "a stone"]
    ranked = (await reranker.client.post("/v1/rerank", {"query": "why", "documents": documents})).json
    answer = (await reranker.client.post("/v1/score", {"query": "why", "items": documents})).json
    assert answer["object"] == "scoring"
    assert answer["scores"] == [[score] for _, score in sorted((entry["index"], entry["score"]) for entry in ranked)]
    turned = (await reranker.client.post("/v1/score", {"query": "why", "items": documents, "item_first": True})).json
    assert turned["scores"] != answer["scores"]
    bad = {"query": "why", "items": ["a"], "label_token_ids": [1]}
    refused(await reranker.client.post("/v1/score", bad), "label_token_ids")
    refused(await reranker.client.post("/v1/score", {"query": [1], "items": [[2]]}), "query")


async def test_score_by_next_tokens(model: Path) -> None:
    async with running(model) as server:
        labels = toy.ids("a", "b", "c")
        ask = {"query": "sun", "items": ["moon", "star"], "label_token_ids": labels}
        answer = (await server.client.post("/v1/score", {**ask, "return_token_logprobs": True})).json
        assert [len(row) for row in answer["scores"]] == [3, 3]
        np.testing.assert_allclose(np.log(answer["scores"]), answer["token_logprobs"], rtol=1e-6)
        assert all(0 < score < 1 for row in answer["scores"] for score in row)
        shares = (await server.client.post("/v1/score", {**ask, "apply_softmax": True, "temperature": 2.0})).json[
            "scores"
        ]
        wanted = np.exp(np.asarray(answer["token_logprobs"]) / 2)
        np.testing.assert_allclose(shares, wanted / wanted.sum(axis=1, keepdims=True), rtol=1e-6)
        bos = [toy.BOS] if server.frontend.tokenizer.add_bos else []
        ids = {"query": [*bos, *toy.ids("sun")], "items": [toy.ids("moon"), toy.ids("star")]}
        assert (await server.client.post("/v1/score", {**ask, **ids})).json["scores"] == answer["scores"]
        first = {**ask, "query": "moon", "items": ["sun"], "item_first": True}
        assert (await server.client.post("/v1/score", first)).json["scores"] == answer["scores"][:1]
        per_item = {**ask, "label_token_ids": [labels[:1], labels[1:]]}
        found = (await server.client.post("/v1/score", per_item)).json["scores"]
        assert found == [answer["scores"][0][:1], answer["scores"][1][1:]]
        assert (await server.client.post("/v1/score", {**ask, "items": []})).json["scores"] == []
        for change, word in (
            ({"label_token_ids": None}, "label_token_ids"),
            ({"label_token_ids": [1, 1]}, "different"),
            ({"label_token_ids": [toy.VOCAB_SIZE]}, "vocabulary"),
            ({"label_token_ids": [[1]] * 3}, "3 lists for 2 items"),
            ({"temperature": 2.0}, "apply_softmax"),
            ({"temperature": 0, "apply_softmax": True}, "temperature"),
            ({"items": [[1]]}, "items"),
            ({"query": [1]}, "items"),
            ({"query": [1], "items": [[toy.VOCAB_SIZE]]}, "items"),
            ({"query": "", "items": [""]}, "prompt"),
        ):
            refused(await server.client.post("/v1/score", {**ask, **change}), word)
        await server.idle()


async def test_a_client_that_leaves_ends_its_work() -> None:
    async with serving("bert") as server:
        server.executor.script.step_s = 0.05
        exchange = server.client.open("POST", "/v1/embeddings", {"input": ["a"] * 64})
        while not server.frontend.num_live:
            assert not exchange.task.done()
            await server.info()
        await exchange.leave()
        assert server.frontend.num_live == 0
        await server.idle()
