"""Model architectures, one file each, named as the checkpoint's `model_type`. Adding one is adding a file."""

from __future__ import annotations

import importlib
import pkgutil

from ramet.errors import CheckpointError
from ramet.models.config import ModelConfig
from ramet.models.embed import embed
from ramet.models.encoder import EncoderConfig
from ramet.models.pooling import Pooling
from ramet.plan.builder import PlanBuilder
from ramet.plan.plan import Plan

__all__ = ["ModelConfig", "architectures", "build_plan", "require_architecture"]

#: Files here that are not architectures.
_HELPERS = frozenset({"blocks", "config", "embed", "encoder", "from_gguf", "from_hf", "keys", "pooling", "rope"})


def architectures() -> tuple[str, ...]:
    """Every `model_type` that can be run."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _HELPERS))


def require_architecture(model_type: str) -> None:
    """Raises `CheckpointError` that lists those that exist, if there is no such architecture."""
    if model_type not in architectures():
        names = ", ".join(architectures())
        raise CheckpointError(f"unknown architecture {model_type!r}; there are {names}", field="model_type")


def build_plan(cfg: ModelConfig | EncoderConfig, pooling: Pooling | None = None) -> Plan:
    """The verified plan of this model: `text`, or `embed` where `pooling` says how a prompt becomes a vector.

    Raises:
        CheckpointError: no such architecture; lists those that exist.
    """
    require_architecture(cfg.model_type)
    architecture = importlib.import_module(f"{__name__}.{cfg.model_type}")
    builder = PlanBuilder("text" if pooling is None else "embed")
    if pooling is not None:
        embed(builder, cfg, pooling, architecture)
    elif isinstance(cfg, EncoderConfig):
        raise CheckpointError(f"{cfg.model_type} models give embeddings and generate no text", field="model_type")
    else:
        architecture.text(builder, cfg)
    return builder.build()
