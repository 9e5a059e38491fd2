"""Qwen3: Llama, with a norm on every head of q and k."""

from __future__ import annotations

from ramet.models import llama
from ramet.models.config import ModelConfig
from ramet.plan.builder import PlanBuilder


def text(b: PlanBuilder, cfg: ModelConfig) -> None:
    llama.text(b, cfg, qk_norm=True)
