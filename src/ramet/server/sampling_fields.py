"""The sampling fields that the native and OpenAI routes spell alike."""

from __future__ import annotations

from typing import Any

import msgspec


class SamplingFields(msgspec.Struct, kw_only=True):
    """JSON types only; ranges are checked by `ramet.sampling_params`. Null means the default."""

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    custom_params: dict[str, Any] | None = None
