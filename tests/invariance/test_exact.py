"""The promise of exactness: a request's tokens and logprobs are the same bits whatever runs beside it and however.

Cache, chunk sizes, page sizes, threads, neighbours, forced retraction: each setting is compared, bit for bit,
with every request running alone on a fresh engine with default settings.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import ramet

CHECKPOINTS = Path(__file__).parent.parent / "reference" / "checkpoints"
ARCHITECTURES = ("llama", "gemma3_text", "llama-q8_0.gguf")
NEIGHBOURS = 31
NEW_TOKENS = 24

SETTINGS: dict[str, dict[str, Any]] = {
    "no cache": {"disable_radix_cache": True},
    "chunk 16": {"chunked_prefill_size": 16},
    "chunk 64": {"chunked_prefill_size": 64},
    "chunk 2048": {"chunked_prefill_size": 2048},
    "page 1": {"page_size": 1},
    "page 16": {"page_size": 16},
    "page 64": {"page_size": 64},
    "one thread": {"threads": 1},
    "two threads": {"threads": 2},
    "three threads": {"threads": 3},
    "retraction": {"retract_every": 5},
    "retraction, small pages, small chunks": {"retract_every": 3, "page_size": 1, "chunked_prefill_size": 16},
    "lpm": {"schedule_policy": "lpm"},
    "tight pool": {"max_total_tokens": 1024, "page_size": 16},
}

Outcome = tuple[list[int], list[float], list[Any]]


def make_prompts(vocab: int) -> list[list[int]]:
    """Prompts that share stems of odd lengths, some ending inside a page, one of a single token, one repeated."""
    rng = random.Random(7)
    stem = [rng.randrange(vocab) for _ in range(75)]
    prompts = [stem[: rng.randrange(1, 75)] + [rng.randrange(vocab) for _ in range(rng.randrange(1, 60))]
               for _ in range(NEIGHBOURS - 2)]  # fmt: skip
    return [*prompts, [3], stem, stem]


def sampling(index: int) -> dict[str, Any]:
    """Every third request is greedy; the others draw with their own seeds and filters."""
    common = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    if index % 3 == 0:
        return {**common, "temperature": 0.0}
    return {**common, "temperature": 0.8, "top_p": 0.9, "top_k": 40, "sampling_seed": index}


def outcomes(answers: list[dict[str, Any]]) -> list[Outcome]:
    found = []
    for answer in answers:
        triples = answer["meta_info"]["output_token_logprobs"]
        found.append(
            (answer["output_ids"], [value for value, *_ in triples], answer["meta_info"]["output_top_logprobs"])
        )
    return found


def run(path: Path, prompts: list[list[int]], *, together: bool, **options: Any) -> list[Outcome]:
    with ramet.Engine(model_path=str(path), **options) as engine:
        params = [sampling(index) for index in range(len(prompts))]
        asked: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 3}
        if together:
            return outcomes(engine.generate(input_ids=prompts, sampling_params=params, **asked))
        answers = []
        for ids, param in zip(prompts, params, strict=True):
            answers.append(engine.generate(input_ids=ids, sampling_params=param, **asked))
            engine.flush_cache()
        return outcomes(answers)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def solo(request: pytest.FixtureRequest) -> tuple[Path, list[list[int]], list[Outcome]]:
    path = CHECKPOINTS / request.param
    with ramet.Engine(model_path=str(path)) as engine:
        vocab = engine.get_model_info()["vocab_size"]
    prompts = make_prompts(vocab)
    return path, prompts, run(path, prompts, together=False)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_bits_among_neighbours(solo: tuple[Path, list[list[int]], list[Outcome]], name: str) -> None:
    path, prompts, alone = solo
    beside = run(path, prompts, together=True, **SETTINGS[name])
    for index, (expected, got) in enumerate(zip(alone, beside, strict=True)):
        assert got == expected, f"prompt {index} of {len(prompts[index])} tokens under {name}"


def test_the_same_bits_from_a_warm_cache(solo: tuple[Path, list[list[int]], list[Outcome]]) -> None:
    path, prompts, alone = solo
    with ramet.Engine(model_path=str(path)) as engine:
        params = [sampling(index) for index in range(len(prompts))]
        asked: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 3}
        engine.generate(input_ids=prompts, sampling_params=params, **asked)
        answers = engine.generate(input_ids=prompts, sampling_params=params, **asked)
    cached = sum(answer["meta_info"]["cached_tokens"] for answer in answers)
    assert cached >= sum(len(ids) for ids in prompts) - 16 * len(prompts)
    assert outcomes(answers) == alone


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_same_bits_in_every_kv_dtype(dtype: str) -> None:
    path = CHECKPOINTS / "llama"
    prompts = make_prompts(256)[:8]
    alone = run(path, prompts, together=False, kv_cache_dtype=dtype)
    assert run(path, prompts, together=True, kv_cache_dtype=dtype, chunked_prefill_size=16, page_size=1) == alone
