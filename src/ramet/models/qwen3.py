"""Qwen3: Llama, with a norm on every head of q and k."""

from __future__ import annotations

from ramet.models import blocks, llama
from ramet.models.config import ModelConfig
from ramet.plan.builder import PlanBuilder, Value


def body(b: PlanBuilder, cfg: ModelConfig) -> Value:
    return llama.body(b, cfg, qk_norm=True)


def text(b: PlanBuilder, cfg: ModelConfig) -> None:
    blocks.head(b, cfg, body(b, cfg))
