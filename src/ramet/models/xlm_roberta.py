"""XLM-RoBERTa, multilingual E5, BGE-M3 and BGE's rerankers: RoBERTa with a larger vocabulary."""

from __future__ import annotations

from ramet.models.roberta import body, classify

__all__ = ["body", "classify"]
