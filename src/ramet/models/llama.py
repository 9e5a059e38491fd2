"""Llama 2 and 3.x, SmolLM2, and whatever else calls itself llama."""

from __future__ import annotations

from ramet.models import blocks
from ramet.models.config import ModelConfig
from ramet.plan.builder import PlanBuilder, Value


def body(b: PlanBuilder, cfg: ModelConfig, *, qk_norm: bool = False) -> Value:
    """The last hidden states, before the final norm. [tokens, hidden_size]"""
    x = blocks.embed(b, cfg)
    for i, window in enumerate(cfg.windows):
        with b.scope(f"layers.{i}"):
            h = blocks.norm(b, cfg, x, "input_layernorm")
            x = b.add(x, blocks.attention(b, cfg, h, window=window, qk_norm=qk_norm))
            x = b.add(x, blocks.gated_mlp(b, cfg, blocks.norm(b, cfg, x, "post_attention_layernorm")))
    return x


def text(b: PlanBuilder, cfg: ModelConfig) -> None:
    blocks.head(b, cfg, body(b, cfg))
