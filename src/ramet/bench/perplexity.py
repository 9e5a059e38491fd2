"""Perplexity of a text: what quantisation costs, comparable with any engine that gives logprobs of prompts.

The text is cut into windows of equal length. The first half of each is context only, as llama.cpp's tool does it, so
every token counted has at least half a window before it.
"""

from __future__ import annotations

import math
from typing import Any

from ramet.errors import RequestError


def measure(engine: Any, text: str, window_tokens: int, limit_tokens: int) -> dict[str, Any]:
    """Perplexity over the second half of each whole window of the first `limit_tokens` tokens.

    Raises:
        RequestError: the text has not even one window.
    """
    ids = engine.encode(text, add_special_tokens=False)[:limit_tokens]
    windows = [ids[at : at + window_tokens] for at in range(0, len(ids) - window_tokens + 1, window_tokens)]
    if not windows:
        raise RequestError(f"the text has {len(ids)} tokens, fewer than a window of {window_tokens}")
    answers = engine.generate(
        input_ids=windows,
        sampling_params={"max_new_tokens": 1, "temperature": 0},
        return_logprob=True,
        logprob_start_len=0,
    )
    half = window_tokens // 2
    logprobs = [entry[0] for answer in answers for entry in answer["meta_info"]["input_token_logprobs"][half:]]
    nats = -math.fsum(logprobs) / len(logprobs)
    return {"tokens": len(logprobs), "window_tokens": window_tokens, "perplexity": round(math.exp(nats), 4)}
