"""BERT and what keeps its shape: MiniLM, BGE, E5, GTE."""

from __future__ import annotations

from ramet.models import encoder
from ramet.models.encoder import EncoderConfig
from ramet.plan.builder import PlanBuilder, Value


def body(b: PlanBuilder, cfg: EncoderConfig) -> Value:
    """The last hidden states. [tokens, hidden_size]"""
    x = encoder.embeddings(b, cfg)
    for i in range(cfg.num_layers):
        with b.scope(f"encoder.layer.{i}"):
            x = encoder.layer(b, cfg, x)
    return x


def classify(b: PlanBuilder, cfg: EncoderConfig, first: Value, labels: int) -> Value:
    """Logits of the classes from the first token's hidden state. [logits, labels]"""
    pooled = b.activation(b.linear(first, "pooler.dense", out=cfg.hidden_size, bias=True), "tanh")
    return b.linear(pooled, "classifier", out=labels, bias=True)
