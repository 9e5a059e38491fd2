"""What the Anthropic and Ollama routes share on the way from a prepared chat to what is shown of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ramet.text.chat import PreparedChat
from ramet.text.events import ToolCall
from ramet.text.generation import GenerateRequest
from ramet.types import SamplingParams

encode = msgspec.json.Encoder().encode


def chat_request(
    chat: PreparedChat, sampling: SamplingParams, names: Mapping[str, str], **fields: Any
) -> GenerateRequest:
    """The one generation of a chat. `names`: the dialect's spelling of sampling fields."""
    return GenerateRequest(
        prompt=chat.token_ids,
        sampling=chat.sampling(sampling),
        clamp=True,
        names=names,
        grammar_after=chat.grammar_after,
        make_parser=chat.make_parser,
        **fields,
    )


def thinking_kwargs(enabled: bool | None, effort: str | None = None) -> dict[str, Any]:
    """Variables for the chat template. None: the template decides."""
    kwargs: dict[str, Any] = {}
    if enabled is not None:
        kwargs.update(thinking=enabled, enable_thinking=enabled)
    if effort is not None:
        kwargs["reasoning_effort"] = effort
    return kwargs


def unfinished_call(call: ToolCall) -> str:
    """A call whose arguments stopped short, as text: nobody can run it by mistake, and nothing is hidden."""
    return f'{{"name": {encode(call.name).decode()}, "arguments": {call.arguments}'
