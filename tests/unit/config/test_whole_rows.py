"""What is decided for models that compute prompts whole."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.config import Config, layer, resolve
from ramet.config.resolve import WHOLE_STEP, Machine, ModelFacts
from ramet.errors import ConfigError

MACHINE = Machine(cores=2, available_bytes=4 << 30)


def resolved(context: int = 512, **options: Any) -> Config:
    facts = ModelFacts(
        "mini", context_length=context, kv_floats_per_token=4608, weight_bytes=90_000_000, whole_rows=True
    )
    return resolve(*layer(("test", options)), MACHINE, facts).config


def test_a_step_holds_the_longest_prompt_and_the_pool_a_step() -> None:
    config = resolved()
    assert config.scheduler.chunked_prefill_size == WHOLE_STEP
    assert config.cache.kv_cache_dtype == "f32"
    rows, page = config.scheduler.max_running_requests, config.cache.page_size
    assert rows is not None
    assert page is not None
    assert config.cache.max_total_tokens == WHOLE_STEP + rows * page
    assert resolved(8192).scheduler.chunked_prefill_size == 8192
    assert resolved(chunked_prefill_size=-1).scheduler.chunked_prefill_size == WHOLE_STEP
    assert resolved(chunked_prefill_size=600).scheduler.chunked_prefill_size == 600
    assert resolved(kv_cache_dtype="f16").cache.kv_cache_dtype == "f16"


def test_a_step_that_cannot_hold_a_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least that, or a smaller --context-length"):
        resolved(chunked_prefill_size=511)
    assert resolved(chunked_prefill_size=100, context_length=100).scheduler.chunked_prefill_size == 100
