"""Custom logit processors, by name. SGLang's requests carry pickled code for them; here they name one of these.

A processor becomes plain data of the engine's request, so it costs a mask and no Python in the step loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ramet.errors import RequestError
from ramet.text import reasoning
from ramet.text.chat import OutputFormats
from ramet.text.tokenizer import Tokenizer
from ramet.types import ThinkingBudget

#: How much of a prompt is decoded to see whether it opens the thinking.
_TAIL_TOKENS = 64


def read_processor(name: str | None, params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of a `GenerateRequest` that a processor and its `custom_params` amount to; raises `RequestError`."""
    if not name:
        if not params:
            return {}
        if set(params) != {"thinking_budget"}:
            raise RequestError("custom_params: there is no custom_logit_processor to read it.", field="custom_params")
        name = "thinking_budget"
    if name.lstrip().startswith("{"):
        raise RequestError(
            f"custom_logit_processor: code is not accepted from requests; name one of {', '.join(PROCESSORS)}.",
            field="custom_logit_processor",
        )
    processor = PROCESSORS.get(_ALIASES.get(name, name))
    if processor is None:
        raise RequestError(
            f"custom_logit_processor {name[:80]!a}: no such processor; there are {', '.join(PROCESSORS)}.",
            field="custom_logit_processor",
        )
    return processor(params or {})


def _only(params: Mapping[str, Any], key: str) -> Any:
    if set(params) != {key}:
        raise RequestError(f"custom_params must be an object with {key} and nothing else.", field="custom_params")
    return params[key]


def _ids(params: Mapping[str, Any]) -> tuple[int, ...]:
    ids = _only(params, "token_ids")
    if not isinstance(ids, list) or not ids or not all(type(id) is int for id in ids):
        raise RequestError("custom_params.token_ids must be a list of token ids.", field="custom_params")
    return tuple(ids)


def _disallowed(params: Mapping[str, Any]) -> dict[str, Any]:
    return {"banned_ids": _ids(params)}


def _allowed(params: Mapping[str, Any]) -> dict[str, Any]:
    return {"allowed_ids": _ids(params)}


def _budget(params: Mapping[str, Any]) -> dict[str, Any]:
    return {"thinking_tokens": check_budget(_only(params, "thinking_budget"), "custom_params")}


#: Name → what its parameters mean.
PROCESSORS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "allowed_tokens": _allowed,
    "disallowed_tokens": _disallowed,
    "thinking_budget": _budget,
}

#: SGLang's classes of the same meaning.
_ALIASES = {
    "DisallowedTokensLogitsProcessor": "disallowed_tokens",
    **dict.fromkeys(
        (
            "ThinkingBudgetLogitProcessor",
            "Qwen3ThinkingBudgetLogitProcessor",
            "DeepSeekR1ThinkingBudgetLogitProcessor",
            "Glm4MoeThinkingBudgetLogitProcessor",
        ),
        "thinking_budget",
    ),
}


def check_budget(value: Any, field: str) -> int:
    """A number of thinking tokens."""
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise RequestError(f"{field}: the thinking budget must be a number of tokens, at least 0.", field=field)
    return value


def thinking_budget(tokens: int, prompt: list[int], formats: OutputFormats, tokenizer: Tokenizer) -> ThinkingBudget:
    """What the engine needs to keep a model's thinking within `tokens`; it then writes a line break and the closing
    marker. Raises `RequestError` where it is not known how the model thinks."""
    if formats.reasoning is None:
        raise RequestError(
            "A thinking budget needs a server with --reasoning-parser, which says how the model thinks.",
            field="max_thinking_tokens",
        )
    form = reasoning.FORMATS[formats.reasoning]
    seen = tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special_tokens=False)
    closed = reasoning.closes_thinking(formats.reasoning, seen, "", {})
    closing = tokenizer.encode(form.closing, add_special_tokens=False)
    return ThinkingBudget(
        tokens=tokens,
        opening=form.opening,
        closing=form.closing,
        close_ids=(*tokenizer.encode("\n", add_special_tokens=False), *closing),
        opened=reasoning.starts_thinking(formats.reasoning, seen) and not closed,
    )
