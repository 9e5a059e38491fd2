"""The opt-in `explain` object: what the server made of a request and where its time went."""

from __future__ import annotations

from typing import Any

from ramet.text.chat import PreparedChat
from ramet.text.frontend import Frontend
from ramet.text.generation import Choice, Generation


def explanation(generation: Generation, frontend: Frontend, chat: PreparedChat | None = None) -> dict[str, Any]:
    """Of a finished call. `prompt` is there for chats, and null for one given as token ids; times are in seconds."""
    return {
        "prompt": chat.text if chat is not None else None,
        "choices": [_choice(choice, frontend) for choice in generation.choices],
        "warnings": [*(chat.warnings if chat is not None else ()), *generation.warnings],
    }


def _choice(choice: Choice, frontend: Frontend) -> dict[str, Any]:
    finish, sampling = choice.finish, choice.request.sampling
    ended_s, first_s = choice.finished_s, choice.first_token_s
    return {
        "index": choice.index,
        "rid": choice.rid,
        "prompt_token_ids": choice.prompt_ids,
        "cached_tokens": choice.cached_tokens,
        "first_computed_token": _token(choice, frontend),
        "seed": sampling.sampling_seed,
        "max_new_tokens": sampling.max_new_tokens,
        "text": choice.text,
        "output_token_ids": choice.output_ids,
        "finish": {"type": finish.type, "matched": finish.matched} if finish is not None else None,
        "retractions": choice.num_retractions,
        "queue_s": choice.queue_s,
        "prefill_s": choice.prefill_s,
        "decode_s": ended_s - first_s if ended_s is not None and first_s is not None else None,
    }


def _token(choice: Choice, frontend: Frontend) -> dict[str, Any] | None:
    """The first token of the prompt that the cache did not hold: where this prompt parts from what came before."""
    if choice.cached_tokens >= len(choice.prompt_ids):
        return None
    id = choice.prompt_ids[choice.cached_tokens]
    return {"index": choice.cached_tokens, "id": id, "text": frontend.text_of([id], skip_special_tokens=False)}
