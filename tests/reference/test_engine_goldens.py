"""Greedy tokens of transformers through the whole `ramet.Engine`: loading, scheduler, cache, native executor.

`test_goldens.py` shows the same of executors alone. Files whose numbers are the checkpoint's and whose activations are
not rounded must agree with transformers, and so with each other, whatever their format.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ramet

HERE = Path(__file__).parent
CHECKPOINTS = sorted(path for path in (HERE / "checkpoints").iterdir() if not path.stem.endswith("q8_0"))
ARCHITECTURES = {"llama", "mistral", "qwen2", "qwen3", "gemma3_text"}


def architecture(path: Path) -> str:
    return path.stem.split("-")[0]


def golden(path: Path) -> list[dict[str, Any]]:
    document = json.loads((HERE / "goldens" / f"{architecture(path)}.json").read_text(encoding="utf-8"))
    prompts: list[dict[str, Any]] = document["prompts"]
    return prompts


def test_every_architecture_has_a_checkpoint() -> None:
    assert {architecture(path) for path in CHECKPOINTS} == ARCHITECTURES
    assert {architecture(path) for path in CHECKPOINTS if path.suffix == ".gguf"} == {"llama", "qwen3", "gemma3_text"}


@pytest.mark.parametrize("options", [{}, {"page_size": 4, "chunked_prefill_size": 5, "retract_every": 7}])
@pytest.mark.parametrize("path", CHECKPOINTS, ids=[path.name for path in CHECKPOINTS])
def test_the_engine_says_what_transformers_says(path: Path, options: dict[str, Any]) -> None:
    stored = golden(path)
    wanted = [prompt["ids"] for prompt in stored]
    assert len(stored) >= 3
    assert min(map(len, wanted)) >= 64
    params = {"temperature": 0, "max_new_tokens": len(wanted[0]), "ignore_eos": True}
    with ramet.Engine(str(path), max_total_tokens=4096, kv_cache_dtype="f32", **options) as engine:
        answers = engine.generate(input_ids=[prompt["prompt"] for prompt in stored], sampling_params=params)
    assert [answer["output_ids"] for answer in answers] == wanted


@pytest.mark.parametrize("path", [path for path in CHECKPOINTS if path.suffix == ".gguf"], ids=lambda path: path.name)
def test_a_gguf_file_and_its_checkpoint_agree(path: Path) -> None:
    """Text in, logprobs out: the tokenizers, special tokens and weights of both forms are one model."""
    texts = ["The capital of France is", "def f(x):\n    return x", "čau 你好 🧭"]
    params = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
    answers = []
    for source in (path, HERE / "checkpoints" / architecture(path)):
        with ramet.Engine(str(source), max_total_tokens=2048, kv_cache_dtype="f32") as engine:
            answers.append(engine.generate(texts, params, return_logprob=True, return_prompt_token_ids=True))
    for gguf, checkpoint in zip(*answers, strict=True):
        assert gguf["prompt_token_ids"] == checkpoint["prompt_token_ids"]
        assert gguf["output_ids"] == checkpoint["output_ids"]
        assert gguf["text"] == checkpoint["text"]
        found, wanted = ([value for value, *_ in answer["meta_info"]["output_token_logprobs"]]
                         for answer in (gguf, checkpoint))  # fmt: skip
        assert found == pytest.approx(wanted, abs=1e-4)
