"""Mistral: Llama, with a sliding window in every layer where the config has one (`ModelConfig.windows`)."""

from __future__ import annotations

from ramet.models.llama import body, text

__all__ = ["body", "text"]
