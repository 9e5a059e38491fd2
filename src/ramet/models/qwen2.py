"""Qwen2 and Qwen2.5: Llama, with biases on q, k and v (`ModelConfig.qkv_bias`)."""

from __future__ import annotations

from ramet.models.llama import body, text

__all__ = ["body", "text"]
