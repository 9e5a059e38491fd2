"""Ollama's `options`, `format`, `think` and `keep_alive`, and what they mean here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ramet import sampling_params
from ramet.errors import RequestError, RequestTooLong
from ramet.server.dialect import encode, thinking_kwargs
from ramet.text.limits import Limits
from ramet.types import SamplingParams

#: Ollama's option -> the engine's sampling field.
_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "stop": "stop",
    "seed": "sampling_seed",
    "num_predict": "max_new_tokens",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}

#: The engine's sampling field -> Ollama's spelling, for errors.
NAMES = {**{ours: f"options.{theirs}" for theirs, ours in _FIELDS.items()}, "json_schema": "format"}

#: Options of Ollama's own runner that say how a model is loaded, or what happens where this server refuses (`num_keep`)
#: or what is off anyway (`mirostat_*`): accepted.
_HARMLESS = frozenset(
    "numa num_batch num_gpu main_gpu low_vram f16_kv logits_all vocab_only use_mmap use_mlock embedding_only "
    "num_thread num_keep mirostat_tau mirostat_eta".split()
)

#: Options that would change the answer, and the value at which they do not.
_NEUTRAL: dict[str, Any] = {"mirostat": 0, "tfs_z": 1, "typical_p": 1, "penalize_newline": True}

_NUM_PREDICT_ENDLESS = (-1, -2)  # "until it stops" and "fill the context": here both end with the context
_EFFORTS = ("low", "medium", "high")
_DURATION = re.compile(r"-?(\d+(\.\d*)?(ns|us|µs|ms|s|m|h))+|-?\d+(\.\d*)?")


@dataclass(frozen=True, slots=True)
class Options:
    """What `options` and `format` ask for. `num_ctx`: longest prompt and answer together, None for the model's."""

    sampling: SamplingParams
    num_ctx: int | None = None

    def fit(self, prompt_tokens: int, limits: Limits) -> SamplingParams:
        """The parameters for a prompt. Raises `RequestTooLong`: a prompt is never cut unless the operator says so."""
        if self.num_ctx is None or self.num_ctx >= limits.context_length:
            return self.sampling
        room = self.num_ctx - prompt_tokens
        if room < 1:
            raise RequestTooLong(
                f"The prompt has {prompt_tokens} tokens, which leaves no room in options.num_ctx ({self.num_ctx}).",
                field="options.num_ctx",
            )
        asked = self.sampling.max_new_tokens
        return msgspec.structs.replace(self.sampling, max_new_tokens=room if asked is None else min(asked, room))


def read_options(
    options: Mapping[str, Any] | None,
    format: str | Mapping[str, Any] | None,
    defaults: Mapping[str, Any],
    warnings: list[str],
    *,
    strict: bool,
) -> Options:
    """Checked options over `defaults`; errors use Ollama's names."""
    given = {key: value for key, value in (options or {}).items() if value is not None}
    values = dict(defaults)
    values["max_new_tokens"] = None
    for name, field in _FIELDS.items():
        if name in given:
            values[field] = given.pop(name)
    if values["max_new_tokens"] in _NUM_PREDICT_ENDLESS:
        values["max_new_tokens"] = None
    if values.get("top_k") == 0:
        values["top_k"] = -1
    if values.get("sampling_seed") == -1:  # Ollama's "none"
        values["sampling_seed"] = None
    values["json_schema"] = _schema(format)
    num_ctx = given.pop("num_ctx", None)
    if num_ctx is not None and (not isinstance(num_ctx, int) or isinstance(num_ctx, bool) or num_ctx < 1):
        raise RequestError(
            f"options.num_ctx must be an integer of at least 1, not {num_ctx!r}.", field="options.num_ctx"
        )
    _repeat_last_n(given.pop("repeat_last_n", None), values)
    for name, neutral in _NEUTRAL.items():
        if given.pop(name, neutral) != neutral:
            raise RequestError(f"options.{name} is not supported by this version of ramet.", field=f"options.{name}")
    unknown = sorted(given.keys() - _HARMLESS)
    if unknown:
        if strict:
            raise RequestError(f"Unknown options: {', '.join(unknown)}.", field=f"options.{unknown[0]}")
        warnings.append(f"unknown options were ignored: {', '.join(unknown)}")
    return Options(sampling_params.parse(values, names=NAMES), num_ctx)


def _repeat_last_n(given: Any, values: dict[str, Any]) -> None:
    """The penalty looks at all generated tokens (−1) or is off (0); there is no window in between."""
    if given == 0:
        values.pop("repetition_penalty", None)
    elif given not in (None, -1) and values.get("repetition_penalty", 1) != 1:
        raise RequestError(
            "options.repeat_last_n must be -1 (all tokens) or 0 (off): a window is not supported by this version of "
            "ramet.",
            field="options.repeat_last_n",
        )


def _schema(format: str | Mapping[str, Any] | None) -> str | None:
    if format is None or format == "":
        return None
    if format == "json":
        return '{"type":"object"}'
    if isinstance(format, str):
        raise RequestError(f"format must be 'json' or a JSON Schema, not {format!r}.", field="format")
    return encode(format).decode()


def think_kwargs(think: bool | str | None) -> dict[str, Any]:
    """Variables for the chat template."""
    if isinstance(think, str):
        if think not in _EFFORTS:
            raise RequestError(f"think must be true, false or one of {', '.join(_EFFORTS)}.", field="think")
        return thinking_kwargs(True, think)
    return thinking_kwargs(think)


def unloads(keep_alive: float | str | None) -> bool:
    """Whether `keep_alive` is zero, in seconds or as a duration such as "5m". Nothing else follows from it."""
    if keep_alive is None or isinstance(keep_alive, int | float):
        return keep_alive == 0
    if not _DURATION.fullmatch(keep_alive):
        raise RequestError(f"keep_alive is no duration: {keep_alive!r}; write 300, '300' or '5m'.", field="keep_alive")
    return not any(digit in keep_alive for digit in "123456789")
