"""Reasoning parsers by the names that `--reasoning-parser` takes: which part of a model's text is its thinking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramet.errors import ConfigError
from ramet.text.reasoning.harmony import HarmonyReasoning
from ramet.text.reasoning.tags import TagReasoning
from ramet.text.scanner import Parser

_QWEN_CALL = "<tool_call>"
_KIMI_CALLS = "<|tool_calls_section_begin|>"


@dataclass(frozen=True, slots=True)
class Format:
    """Markers of a format and when its text starts inside the thinking.

    `starts_inside`: True or False whatever the request says; None where the prompt decides. `switch`: the chat
    template's variable that turns thinking on or off, and `switch_default` what it is when a request does not set it.
    """

    opening: str = "<think>"
    closing: str = "</think>"
    also_ends: tuple[str, ...] = ()
    starts_inside: bool | None = None
    switch: str | None = None
    switch_default: bool = True


_QWEN3 = Format(also_ends=(_QWEN_CALL,), switch="enable_thinking")

#: `gpt-oss` has a parser of its own.
FORMATS: dict[str, Format] = {
    "deepseek-r1": Format(starts_inside=True),
    "deepseek-v3": Format(switch="thinking", switch_default=False),
    "glm45": _QWEN3,
    "gpt-oss": Format("<|channel|>analysis<|message|>", "<|end|>", starts_inside=True),
    "kimi": Format("◁think▷", "◁/think▷", starts_inside=False),
    "kimi_k2": Format(also_ends=(_KIMI_CALLS,), switch="thinking"),
    "mimo": Format(switch="enable_thinking", switch_default=False),
    "minimax": Format(also_ends=(_QWEN_CALL,), starts_inside=True),
    "mistral": Format("[THINK]", "[/THINK]", starts_inside=False),
    "nemotron_3": _QWEN3,
    "qwen3": _QWEN3,
    "qwen3-thinking": Format(also_ends=(_QWEN_CALL,), starts_inside=True),
    "step3": Format(starts_inside=True),
}


def make_reasoning_parser(name: str, *, prompt_is_open: bool) -> Parser:
    """A parser for one generation. `prompt_is_open`: what `opens_thinking` says of its prompt."""
    if name not in FORMATS:
        raise ConfigError(
            f"--reasoning-parser {name}: no such format; known: auto, {', '.join(sorted(FORMATS))}",
            field="reasoning_parser",
        )
    if name == "gpt-oss":
        return HarmonyReasoning()
    form = FORMATS[name]
    inside = prompt_is_open if form.starts_inside is None else form.starts_inside
    return TagReasoning(form.opening, form.closing, starts_inside=inside, also_ends=form.also_ends)


def starts_thinking(name: str, prompt: str, continued: str = "") -> bool:
    """Whether the output begins inside the thinking; arguments as for `opens_thinking`."""
    return FORMATS[name].starts_inside is True or opens_thinking(name, prompt, continued)


def detect_reasoning_format(template: str) -> str | None:
    """What `--reasoning-parser auto` means for a chat template; None when it shows no thinking.

    All `<think>` formats but those with other end markers come down to `qwen3`, where the prompt itself shows whether
    the thinking is open.
    """
    if "<|channel|>" in template and "analysis" in template:
        return "gpt-oss"
    for name in ("mistral", "kimi"):
        if FORMATS[name].opening in template:
            return name
    if "<think>" not in template and "</think>" not in template:
        return None
    return "kimi_k2" if _KIMI_CALLS in template else "qwen3"


def opens_thinking(name: str, prompt: str, continued: str = "") -> bool:
    """Whether the model goes on inside its thinking: `prompt` ends with the opening marker, or `continued`, the
    assistant's message that is being continued, has opened the thinking and not closed it."""
    form = FORMATS[name]
    return prompt.rstrip().endswith(form.opening) or continued.rfind(form.opening) > continued.rfind(form.closing)


def expects_thinking(name: str, template: str, template_kwargs: Mapping[str, Any]) -> bool:
    """Whether the model will open the thinking itself: the template has a switch for it, and the switch is on."""
    form = FORMATS[name]
    return (
        form.switch is not None
        and form.switch in template
        and bool(template_kwargs.get(form.switch, form.switch_default))
    )


def closes_thinking(name: str, prompt: str, continued: str, template_kwargs: Mapping[str, Any]) -> bool:
    """Whether no thinking is to come: the request has switched it off, or prompt or `continued` end behind its end."""
    form = FORMATS[name]
    if form.switch is not None and template_kwargs.get(form.switch) is False:
        return True
    return prompt.rstrip().endswith(form.closing) or form.closing in continued
