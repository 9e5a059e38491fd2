"""The pieces that decoder-only models share. Shapes: x is [tokens, hidden_size]."""

from __future__ import annotations

from ramet.models.config import ModelConfig
from ramet.models.rope import inverse_frequencies
from ramet.plan.builder import PlanBuilder, Value


def embed(b: PlanBuilder, cfg: ModelConfig) -> Value:
    """Token embeddings, scaled where the model says so. [tokens, hidden_size]"""
    x = b.embed(b.tokens, "embed_tokens", rows=cfg.vocab_size, width=cfg.hidden_size)
    return x if cfg.embed_scale == 1.0 else b.scale(x, cfg.embed_scale)


def norm(b: PlanBuilder, cfg: ModelConfig, x: Value, weight: str) -> Value:
    return b.rms_norm(x, weight, eps=cfg.norm_eps, offset=cfg.norm_offset)


def rope(b: PlanBuilder, cfg: ModelConfig, x: Value, *, heads: int, window: int) -> Value:
    """Rotates each head; layers with a window may have a base of their own."""
    local = window > 0 and cfg.local_rope is not None
    rotary = cfg.local_rope if local and cfg.local_rope is not None else cfg.rope
    table = b.table("rope_local" if local else "rope", inverse_frequencies(rotary, cfg.rotary_dim))
    return b.rope(x, heads=heads, rotary_dim=cfg.rotary_dim, table=table, factor=rotary.magnitude)


def attention(b: PlanBuilder, cfg: ModelConfig, x: Value, *, window: int, qk_norm: bool = False) -> Value:
    """Grouped-query self-attention. `qk_norm`: every head of q and k is normed before it rotates."""
    q = b.linear(x, "self_attn.q_proj", out=cfg.num_heads * cfg.head_dim, bias=cfg.qkv_bias)
    k = b.linear(x, "self_attn.k_proj", out=cfg.num_kv_heads * cfg.head_dim, bias=cfg.qkv_bias)
    v = b.linear(x, "self_attn.v_proj", out=cfg.num_kv_heads * cfg.head_dim, bias=cfg.qkv_bias)
    if qk_norm:
        q = b.rms_norm(q, "self_attn.q_norm", eps=cfg.norm_eps, offset=cfg.norm_offset, group=cfg.head_dim)
        k = b.rms_norm(k, "self_attn.k_norm", eps=cfg.norm_eps, offset=cfg.norm_offset, group=cfg.head_dim)
    mixed = b.attention(
        rope(b, cfg, q, heads=cfg.num_heads, window=window),
        rope(b, cfg, k, heads=cfg.num_kv_heads, window=window),
        v,
        heads=cfg.num_heads,
        kv_heads=cfg.num_kv_heads,
        scale=cfg.query_scale,
        window=window,
        soft_cap=cfg.attention_soft_cap,
    )
    return b.linear(mixed, "self_attn.o_proj", out=cfg.hidden_size, bias=cfg.output_bias)


def gated_mlp(b: PlanBuilder, cfg: ModelConfig, x: Value) -> Value:
    """down(f(gate(x)) · up(x))."""
    gate = b.linear(x, "mlp.gate_proj", out=cfg.intermediate_size, bias=cfg.mlp_bias)
    up = b.linear(x, "mlp.up_proj", out=cfg.intermediate_size, bias=cfg.mlp_bias)
    gated = b.gated_activation(gate, up, cfg.activation)
    return b.linear(gated, "mlp.down_proj", out=cfg.hidden_size, bias=cfg.mlp_bias)


def head(b: PlanBuilder, cfg: ModelConfig, x: Value) -> None:
    """The output `logits` [logits, vocab_size]: of the wanted rows, normed, by the head or the tied embeddings."""
    x = norm(b, cfg, b.gather_rows(x), "norm")
    logits = b.linear(x, "embed_tokens" if cfg.tie_word_embeddings else "lm_head", out=cfg.vocab_size)
    b.output("logits", logits if cfg.final_soft_cap == 0 else b.soft_cap(logits, cfg.final_soft_cap))
