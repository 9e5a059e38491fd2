"""The plan `embed`: a model's hidden states, pooled to one vector per prompt, or to the logits of its classes."""

from __future__ import annotations

from types import ModuleType

from ramet.models import blocks
from ramet.models.config import ModelConfig
from ramet.models.encoder import EncoderConfig
from ramet.models.pooling import Pooling
from ramet.plan.builder import PlanBuilder, Value


def embed(b: PlanBuilder, cfg: ModelConfig | EncoderConfig, pooling: Pooling, architecture: ModuleType) -> None:
    """The output `embedding` [logits, size]. `architecture`: the model's module, with `body` and maybe `classify`."""
    x = _pooled(b, cfg, pooling, architecture.body(b, cfg))
    for dense in pooling.dense:
        x = b.linear(x, f"{dense.name}.linear", out=dense.out, bias=dense.bias)
        x = b.activation(x, dense.activation) if dense.activation else x
    if pooling.labels:
        count = len(pooling.labels)
        x = (
            architecture.classify(b, cfg, x, count)
            if isinstance(cfg, EncoderConfig)
            else b.linear(x, "score", out=count)
        )
        x = b.activation(x, pooling.activation) if pooling.activation else x
    b.output("embedding", b.l2_norm(x) if pooling.normalize else x)


def _pooled(b: PlanBuilder, cfg: ModelConfig | EncoderConfig, pooling: Pooling, x: Value) -> Value:
    """Decoders end with a norm of each token. It comes before a mean, and after the choice of a single token."""
    if isinstance(cfg, EncoderConfig):
        return b.pool(x, pooling.method)
    if pooling.method == "mean":
        return b.pool(blocks.norm(b, cfg, x, "norm"), "mean")
    return blocks.norm(b, cfg, b.pool(x, pooling.method), "norm")
