"""The opt-in `explain` object: what the server made of a request and where its time went."""

from __future__ import annotations

from typing import Any

from ramet.text.chat import PreparedChat
from ramet.text.generation import Choice, Generation


def explanation(generation: Generation, chat: PreparedChat | None = None) -> dict[str, Any]:
    """Of a finished call. `prompt` is null for a prompt given as token ids; times are in seconds."""
    return {
        "prompt": chat.text if chat is not None else None,
        "prompt_token_ids": generation.choices[0].prompt_ids,
        "choices": [_choice(choice) for choice in generation.choices],
        "warnings": [*(chat.warnings if chat is not None else ()), *generation.warnings],
    }


def _choice(choice: Choice) -> dict[str, Any]:
    finish = choice.finish
    ended_s, first_s = choice.finished_s, choice.first_token_s
    return {
        "index": choice.index,
        "rid": choice.rid,
        "text": choice.text,
        "output_token_ids": choice.output_ids,
        "cached_tokens": choice.cached_tokens,
        "retractions": choice.num_retractions,
        "seed": choice.request.sampling.sampling_seed,
        "max_new_tokens": choice.request.sampling.max_new_tokens,
        "queue_s": choice.queue_s,
        "prefill_s": choice.prefill_s,
        "decode_s": ended_s - first_s if ended_s is not None and first_s is not None else None,
        "finish": {"type": finish.type, "matched": finish.matched} if finish is not None else None,
    }
