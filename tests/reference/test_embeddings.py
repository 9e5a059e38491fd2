"""Vectors and reranking logits of tiny checkpoints against transformers, stored by `scripts/golden embeddings`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramet.executor.base import F32, Executor, Layout, RowParams, StepBatch
from ramet.executor.native import NativeExecutor
from ramet.executor.reference import ReferenceExecutor
from ramet.models import ModelConfig, build_plan
from ramet.models.encoder import ENCODERS, EncoderConfig, model_type_of, read_encoder_config
from ramet.models.pooling import read_pooling
from ramet.plan.plan import Plan
from ramet.plan.text import to_text
from ramet.text.tokenizer import load_tokenizer
from ramet.weights.modules import with_modules
from ramet.weights.recipe import bind_weights
from ramet.weights.sources import open_checkpoint
from ramet.weights.tensor import Weight

CHECKPOINTS = sorted((Path(__file__).parent / "embeddings").iterdir())
PLANS = Path(__file__).parents[1] / "golden" / "plans"
PAGES_PER_ROW = 20
PAGE_SIZE = 8
MAX_ROWS = 4

MakeExecutor = Callable[[Plan, Mapping[str, Weight], Layout], Executor]
EXECUTORS: dict[str, MakeExecutor] = {"reference": ReferenceExecutor, "native": NativeExecutor}


@cache
def cases(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((path / "golden.json").read_text(encoding="utf-8"))["cases"]
    return found


@cache
def load(path: Path) -> tuple[Plan, Mapping[str, Weight], Layout]:
    checkpoint = open_checkpoint(str(path))
    pooling = read_pooling(checkpoint, is_embedding=False)
    assert pooling is not None
    checkpoint = with_modules(checkpoint, [dense.name for dense in pooling.dense])
    cfg: EncoderConfig | ModelConfig
    if model_type_of(checkpoint.config) in ENCODERS:
        cfg = read_encoder_config(checkpoint.config, pooling.max_tokens)
    else:
        cfg = ModelConfig.from_hf(checkpoint.config)
    plan = build_plan(cfg, pooling)
    layout = Layout(
        num_pages=MAX_ROWS * PAGES_PER_ROW,
        page_size=PAGE_SIZE,
        max_rows=MAX_ROWS,
        max_row_tokens=min(cfg.context_length, PAGES_PER_ROW * PAGE_SIZE),
        max_step_tokens=512,
        kv_dtype="f32",
    )
    return plan, bind_weights(plan, checkpoint, cfg), layout


def step(prompts: list[dict[str, Any]], layout: Layout, rows: list[int]) -> StepBatch:
    """All prompts in one step; row r has pages r, r + MAX_ROWS, …"""
    pages = -(-layout.max_row_tokens // PAGE_SIZE)
    types = [case.get("types", [0] * len(case["ids"])) for case in prompts]
    return StepBatch(
        rows=np.asarray(rows, np.int32),
        query_lens=np.asarray([len(case["ids"]) for case in prompts], np.int32),
        starts=np.zeros(len(prompts), np.int32),
        token_ids=np.concatenate([np.asarray(case["ids"], np.int32) for case in prompts]),
        token_types=np.concatenate([np.asarray(t, np.int32) for t in types]),
        samples=np.ones(len(prompts), np.bool_),
        page_updates=np.asarray([(row, i, i * MAX_ROWS + row) for row in rows for i in range(pages)], np.int32),
        new_rows=tuple((row, RowParams()) for row in rows),
    )


def vectors(executor: Executor, prompts: list[dict[str, Any]], rows: list[int]) -> F32:
    return executor.submit(step(prompts, executor.layout, rows)).result().embeddings


@pytest.mark.parametrize("path", CHECKPOINTS, ids=[path.name for path in CHECKPOINTS])
@pytest.mark.parametrize("name", EXECUTORS)
def test_same_vectors_as_transformers(name: str, path: Path) -> None:
    plan, weights, layout = load(path)
    executor = EXECUTORS[name](plan, weights, layout)
    try:
        found = vectors(executor, cases(path), list(range(len(cases(path)))))
    finally:
        executor.close()
    wanted = np.asarray([case["vector"] for case in cases(path)])
    assert found.shape == wanted.shape == (len(cases(path)), executor.embedding_size)
    # 1e-5: vectors have unit norm or are logits of a few units; float32 sums in another order are off by 2e-6 at most.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("path", CHECKPOINTS, ids=[path.name for path in CHECKPOINTS])
def test_the_same_bits_alone_and_together(path: Path) -> None:
    """In any company, on any row, on one thread or three."""
    plan, weights, layout = load(path)
    prompts = cases(path)
    one, three = (NativeExecutor(plan, weights, layout, threads=threads) for threads in (1, 3))
    try:
        together = vectors(three, prompts, list(range(len(prompts))))
        backwards = vectors(one, prompts[::-1], list(range(len(prompts))))[::-1]
        alone = np.concatenate([vectors(one, [prompt], [MAX_ROWS - 1]) for prompt in prompts])
    finally:
        one.close()
        three.close()
    assert together.tobytes() == backwards.tobytes() == alone.tobytes()


@pytest.mark.parametrize("path", CHECKPOINTS, ids=[path.name for path in CHECKPOINTS])
def test_plan_text(path: Path) -> None:
    """`scripts/golden plans` rewrites, the diff is reviewed."""
    plan, _, _ = load(path)
    assert to_text(plan) == (PLANS / f"embed-{path.name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", CHECKPOINTS, ids=[path.name for path in CHECKPOINTS])
def test_same_ids_as_the_tokenizer_library(path: Path) -> None:
    tokenizer = load_tokenizer(open_checkpoint(str(path)))
    for case in cases(path):
        if "text" in case:
            assert tokenizer.encode(case["text"]) == case["ids"]
        else:
            assert tokenizer.encode_pair(*case["pair"]) == (case["ids"], case["types"])
