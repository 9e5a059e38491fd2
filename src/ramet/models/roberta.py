"""RoBERTa: BERT, with positions that begin behind the padding token's id and a head of another shape."""

from __future__ import annotations

from ramet.models.bert import body
from ramet.models.encoder import EncoderConfig
from ramet.plan.builder import PlanBuilder, Value

__all__ = ["body", "classify"]


def classify(b: PlanBuilder, cfg: EncoderConfig, first: Value, labels: int) -> Value:
    """Logits of the classes from the first token's hidden state. [logits, labels]"""
    with b.scope("classifier"):
        h = b.activation(b.linear(first, "dense", out=cfg.hidden_size, bias=True), "tanh")
        return b.linear(h, "out_proj", out=labels, bias=True)
