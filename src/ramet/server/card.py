"""What clients may know of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What clients may know of the model."""

    served_name: str
    model_path: str
    tokenizer_path: str
    weight_version: str = "default"
    load_format: str = "auto"
    model_type: str = ""
    architectures: tuple[str, ...] = ()
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)  # of generation_config.json
