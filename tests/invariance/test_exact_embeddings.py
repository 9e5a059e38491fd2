"""The promise of exactness for vectors: the same bits alone and in company, under all settings, from the cache too."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import ramet

CHECKPOINTS = Path(__file__).parents[1] / "reference" / "embeddings"

#: Of encoders and decoders; the latter may be cut into chunks.
SETTINGS: dict[str, dict[str, Any]] = {
    "page 1": {"page_size": 1},
    "page 64": {"page_size": 64},
    "one thread": {"threads": 1},
    "three threads": {"threads": 3},
    "few rows": {"max_running_requests": 3},
    "tight pool": {"max_total_tokens": 512},
    "no cache": {"disable_radix_cache": True},
}
CHUNKS: dict[str, dict[str, Any]] = {
    "chunk 5": {"chunked_prefill_size": 5},
    "chunk 64, lpm": {"chunked_prefill_size": 64, "schedule_policy": "lpm"},
}


def prompts(vocab: int, longest: int) -> list[list[int]]:
    """Prompts that share stems of odd lengths, the shortest and the longest there can be, one repeated."""
    rng = random.Random(5)
    stem = [rng.randrange(4, vocab) for _ in range(60)]
    mixed = [
        stem[: rng.randrange(60)] + [rng.randrange(4, vocab) for _ in range(rng.randrange(1, 30))] for _ in range(20)
    ]
    return [*mixed, [7], stem, stem, [rng.randrange(4, vocab) for _ in range(longest)]]


def alone(path: Path, given: list[list[int]], **options: Any) -> list[list[float]]:
    with ramet.Engine(model_path=str(path), **options) as engine:
        found = []
        for ids in given:
            found.append(engine.embed(input_ids=ids)["embedding"])
            engine.flush_cache()
        return found


def together(path: Path, given: list[list[int]], **options: Any) -> list[list[float]]:
    with ramet.Engine(model_path=str(path), **options) as engine:
        return [answer["embedding"] for answer in engine.embed(input_ids=given)]


@pytest.mark.parametrize("name", ["bert", "bert-dense", "xlm_roberta"])
def test_encoders(name: str) -> None:
    path = CHECKPOINTS / name
    given = prompts(90, 96)
    wanted = alone(path, given)
    for setting, options in SETTINGS.items():
        assert together(path, given, **options) == wanted, setting


@pytest.mark.parametrize("method", ["last", "mean"])
def test_decoders(method: str) -> None:
    path = CHECKPOINTS / "qwen3"
    given = prompts(256, 200)
    wanted = alone(path, given, pooling=method)
    for setting, options in {**SETTINGS, **(CHUNKS if method == "last" else {})}.items():
        assert together(path, given, pooling=method, **options) == wanted, setting


def test_a_decoder_embeds_from_the_cache_and_an_encoder_never() -> None:
    for name, cached in (("qwen3", True), ("bert", False)):
        given = prompts(90, 90)
        with ramet.Engine(model_path=str(CHECKPOINTS / name)) as engine:
            first = engine.embed(input_ids=given)
            again = engine.embed(input_ids=given)
        assert [answer["embedding"] for answer in first] == [answer["embedding"] for answer in again]
        for ids, answer in zip(given, again, strict=True):
            reused = answer["meta_info"]["cached_tokens"]
            assert len(ids) - 16 <= reused < len(ids) if cached else reused == 0  # whole pages of 16


def test_rerank_scores_do_not_depend_on_the_other_documents() -> None:
    documents = ["the sun", "a stone in the river", "why the moon grows", "b"]
    for name in ("bert-rerank", "xlm_roberta-rerank"):
        with ramet.Engine(model_path=str(CHECKPOINTS / name)) as engine:
            scores = {entry["index"]: entry["score"] for entry in engine.rerank("why the sun", documents)}
            for index, document in enumerate(documents):
                (one,) = engine.rerank("why the sun", [document])
                assert one["score"] == scores[index]
