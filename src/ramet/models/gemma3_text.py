"""Gemma 3 text: norms before and after each block, on q and k; layers with a window rotate by a base of their own."""

from __future__ import annotations

from ramet.models import blocks
from ramet.models.config import ModelConfig
from ramet.plan.builder import PlanBuilder, Value


def body(b: PlanBuilder, cfg: ModelConfig) -> Value:
    """The last hidden states, before the final norm. [tokens, hidden_size]"""
    x = blocks.embed(b, cfg)
    for i, window in enumerate(cfg.windows):
        with b.scope(f"layers.{i}"):
            h = blocks.norm(b, cfg, x, "input_layernorm")
            h = blocks.attention(b, cfg, h, window=window, qk_norm=True)
            x = b.add(x, blocks.norm(b, cfg, h, "post_attention_layernorm"))
            h = blocks.norm(b, cfg, x, "pre_feedforward_layernorm")
            h = blocks.gated_mlp(b, cfg, h)
            x = b.add(x, blocks.norm(b, cfg, h, "post_feedforward_layernorm"))
    return x


def text(b: PlanBuilder, cfg: ModelConfig) -> None:
    blocks.head(b, cfg, body(b, cfg))
