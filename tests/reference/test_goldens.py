"""Greedy tokens and logits of tiny checkpoints against those of transformers, stored by `scripts/golden models`.

The files of one architecture (safetensors in bf16, GGUF in f32 or f16 and Q8_0) hold the same numbers exactly, so one
golden serves them all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramet.executor.base import LAST_SAMPLED, Executor, Layout, RowParams, StepBatch, StepOutput
from ramet.executor.native import NativeExecutor
from ramet.executor.reference import ReferenceExecutor
from ramet.executor.reference_ops import MEANINGS, Array, Attrs, Context
from ramet.models import ModelConfig, build_plan
from ramet.plan.plan import Plan
from ramet.plan.text import to_text
from ramet.weights.recipe import bind_weights, read_vector
from ramet.weights.sources import open_checkpoint
from ramet.weights.tensor import Weight

HERE = Path(__file__).parent
CHECKPOINTS = sorted(path for path in (HERE / "checkpoints").iterdir())
PLANS = HERE.parent / "golden" / "plans"
LAYOUT = Layout(num_pages=80, page_size=8, max_rows=4, max_row_tokens=256, max_step_tokens=512, kv_dtype="f32")

exact_linear = MEANINGS["linear"]
MakeExecutor = Callable[[Plan, Mapping[str, Weight], Layout], Executor]


EXECUTORS: dict[str, MakeExecutor] = {"reference": ReferenceExecutor, "native": NativeExecutor}


def model_type(checkpoint: Path) -> str:
    return checkpoint.stem.split("-")[0]


@cache
def golden(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((HERE / "goldens" / f"{name}.json").read_text(encoding="utf-8"))
    return document


@cache
def load(path: Path) -> tuple[Plan, Mapping[str, Weight]]:
    checkpoint = open_checkpoint(str(path))
    if checkpoint.kind == "hf":
        cfg = ModelConfig.from_hf(checkpoint.config)
    else:
        cfg = ModelConfig.from_gguf(
            checkpoint.config, list(checkpoint.tensors), lambda name: read_vector(checkpoint, name)
        )
    plan = build_plan(cfg)
    return plan, bind_weights(plan, checkpoint, cfg)


def prefill(prompts: list[list[int]], **more: Any) -> StepBatch:
    """All prompts in one step, pages dealt out to the rows in turn, so that no row's are neighbours."""
    rows = len(prompts)
    pages = LAYOUT.num_pages // rows
    return StepBatch(
        rows=np.arange(rows, dtype=np.int32),
        query_lens=np.asarray([len(p) for p in prompts], np.int32),
        starts=np.zeros(rows, np.int32),
        token_ids=np.concatenate([np.asarray(p, np.int32) for p in prompts]),
        samples=np.ones(rows, np.bool_),
        page_updates=np.asarray([(r, i, i * rows + r) for r in range(rows) for i in range(pages)], np.int32),
        new_rows=tuple((r, RowParams()) for r in range(rows)),
        **more,
    )


def decode(lengths: list[int]) -> StepBatch:
    rows = len(lengths)
    return StepBatch(
        rows=np.arange(rows, dtype=np.int32),
        query_lens=np.ones(rows, np.int32),
        starts=np.asarray(lengths, np.int32),
        token_ids=np.full(rows, LAST_SAMPLED, np.int32),
        samples=np.ones(rows, np.bool_),
    )


def generate(executor: Executor, prompts: list[list[int]], steps: int) -> tuple[StepOutput, list[list[int]]]:
    """The output of the prefill, with every logprob of the last prompt tokens, and the ids of each row."""
    last = np.cumsum([len(p) for p in prompts]).astype(np.int32) - 1
    vocab = executor.vocab_size
    first = executor.submit(
        prefill(prompts, score_tokens=last, score_targets=np.zeros(len(last), np.int32), score_top=vocab)
    ).result()
    later = [decode([len(p) + step for p in prompts]) for step in range(steps - 1)]
    outputs = [first, *(executor.submit(batch).result() for batch in later)]
    ids = [output.token_ids.tolist() for output in outputs]
    return first, [list(row) for row in zip(*ids, strict=True)]


CASES = [(name, path) for name in EXECUTORS for path in CHECKPOINTS]


@pytest.mark.parametrize(("name", "path"), CASES, ids=[f"{name}-{path.name}" for name, path in CASES])
def test_same_tokens_as_transformers(name: str, path: Path) -> None:
    plan, weights = load(path)
    stored = golden(model_type(path))["prompts"]
    prompts = [p["prompt"] for p in stored]
    executor = EXECUTORS[name](plan, weights, LAYOUT)
    try:
        if name == "native" and path.stem.endswith("q8_0"):
            check_rounded_activations(executor, plan, weights, stored)
        else:
            first, ids = generate(executor, prompts, len(stored[0]["ids"]))
            check_logprobs(first, stored)
            assert ids == [p["ids"] for p in stored]
    finally:
        executor.close()


def check_logprobs(first: StepOutput, stored: list[dict[str, Any]]) -> None:
    """All logprobs after each prompt, within 1e-4 of the largest logit: float32 sums in another order."""
    for i, prompt in enumerate(stored):
        logits = np.asarray(prompt["prompt_logits"], np.float64)
        wanted = logits - logits.max()
        wanted -= np.log(np.exp(wanted).sum())
        found = np.empty_like(wanted)
        found[first.score_top_ids[i]] = first.score_top_logprobs[i]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(logits).max())


def check_rounded_activations(executor: Executor, plan: Plan, weights: Mapping[str, Weight], stored: Any) -> None:
    """Native rounds activations to 8 bits for quantised weights, so a close second may win and the text goes its own
    way. So the stored texts are fed as prompts, and each token's logprob must be that of the reference that rounds too.

    Where the two differ in the last bit of a sum, a number may round to its other neighbour, by 1/127 of its block's
    largest; gemma's six layers of sharp attention grow that to 0.1. So: nearly all agree, and none is far off.
    """
    texts = [p["prompt"] + p["ids"] for p in stored]
    ends = np.cumsum([len(t) for t in texts])
    scored = [end - len(p["ids"]) - 1 + i for end, p in zip(ends, stored, strict=True) for i in range(len(p["ids"]))]
    batch = prefill(
        texts,
        score_tokens=np.asarray(scored, np.int32),
        score_targets=np.asarray([token for p in stored for token in p["ids"]], np.int32),
    )
    found = executor.submit(batch).result().score_logprobs
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MEANINGS, "linear", rounding_linear)
        wanted = ReferenceExecutor(plan, weights, LAYOUT).submit(batch).result().score_logprobs
    difference = np.abs(found - wanted)
    assert np.median(difference) < 1e-4
    assert difference.max() < 0.5


def rounding_linear(context: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    """`linear` on x rounded to 8 bits in blocks of 32."""
    blocks = inputs[0].reshape(len(inputs[0]), -1, 32)
    scales = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)
    rounded = np.rint(blocks / np.where(scales == 0, np.float32(1), scales)) * scales
    return exact_linear(context, [rounded.reshape(inputs[0].shape)], weights, attrs)


@pytest.mark.parametrize("path", CHECKPOINTS, ids=[path.name for path in CHECKPOINTS])
def test_plan_text(path: Path) -> None:
    """The plan of an architecture, from whatever file; `scripts/golden plans` rewrites, the diff is reviewed."""
    plan, _ = load(path)
    wanted = (PLANS / f"{model_type(path)}.txt").read_text(encoding="utf-8")
    if path.suffix == ".gguf":
        wanted = wanted.replace("offset=1", "offset=0")  # gemma's norms: the conversion has added 1 to the weights
    assert to_text(plan) == wanted


def test_texts_vary_and_lead_by_a_margin() -> None:
    """What makes equality of tokens a test: no loops, no ties."""
    for path in CHECKPOINTS:
        for prompt in golden(model_type(path))["prompts"]:
            assert len(set(prompt["ids"])) >= 20
            assert prompt["min_margin"] >= 0.01
