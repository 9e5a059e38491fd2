"""Bodies of `/v1/messages`, and what they ask of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ramet import sampling_params
from ramet.errors import RequestError
from ramet.server.anthropic.content import chat_messages
from ramet.server.dialect import encode, thinking_kwargs
from ramet.text.chat import ChatSpec
from ramet.text.messages import refuse_surrogates
from ramet.text.toolset import ToolSet, read_tools
from ramet.types import SamplingParams

#: The engine's name of a sampling field -> Anthropic's, where they differ.
NAMES = {"max_new_tokens": "max_tokens", "stop": "stop_sequences", "json_schema": "output_config.format.schema"}

#: Smallest thinking budget of the original API.
MIN_BUDGET_TOKENS = 1024

#: Fields that say nothing about the answer: accepted.
HARMLESS = frozenset(
    "metadata service_tier inference_geo speed cache_control betas diagnostics user_profile_id workspace_id "
    "anthropic_version anthropic_beta".split()
)

#: Fields that would change the answer and are not honoured: refused by name.
NOT_YET = frozenset("container mcp_servers context_management".split())

_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "max", "max": "max"}
_CHOICES: dict[str, Literal["auto", "none", "required"]] = {"auto": "auto", "any": "required", "none": "none"}


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """Body of `/v1/messages/count_tokens`: all that makes a prompt."""

    model: str
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None  # an older place of output_config.format


class MessagesRequest(CountTokensRequest, kw_only=True):
    """Body of `/v1/messages`."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None


def chat_spec(body: CountTokensRequest, size: int) -> ChatSpec:
    """The chat of a body of `size` bytes. A final assistant turn is continued."""
    messages = chat_messages(body.system, body.messages)
    choice, name, parallel = _tool_choice(body.tool_choice)
    prefilled = messages[-1]["role"] == "assistant"
    return ChatSpec(
        messages=messages,
        tools=_tools(body.tools),
        tool_choice=choice,
        tool_name=name,
        parallel_tool_calls=parallel,
        template_kwargs=thinking_kwargs(_thinking(body), _effort(body)),
        continue_final_message=prefilled,
        add_generation_prompt=not prefilled,
        size=size,
    )


def read_sampling(body: MessagesRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    """Checked parameters; errors use Anthropic's names."""
    if body.max_tokens < 1:
        raise RequestError(f"max_tokens must be at least 1, not {body.max_tokens}.", field="max_tokens")
    for index, stop in enumerate(body.stop_sequences or ()):
        if not stop.strip():
            path = f"stop_sequences[{index}]"
            raise RequestError(f"{path}: each stop sequence must contain non-whitespace.", field=path)
    values = dict(defaults)
    for name in ("temperature", "top_p"):
        if (value := getattr(body, name)) is not None:
            values[name] = value
    if body.top_k is not None:
        values["top_k"] = body.top_k or -1  # 0: all tokens
    if body.stop_sequences:
        values["stop"] = body.stop_sequences
    values["max_new_tokens"] = body.max_tokens
    values["json_schema"] = _schema(body)
    return sampling_params.parse(values, names=NAMES)


def hides_thinking(body: CountTokensRequest) -> bool:
    """Whether thinking blocks shall come without their text."""
    return body.thinking is not None and body.thinking.get("display") == "omitted"


def _thinking(body: CountTokensRequest) -> bool | None:
    thinking = body.thinking
    if thinking is None:
        return None
    kind = thinking.get("type")
    if kind not in ("enabled", "disabled", "adaptive"):
        raise RequestError(f"thinking.type must be enabled, disabled or adaptive, not {kind!r}.", field="thinking.type")
    if thinking.get("display") not in (None, "summarized", "omitted"):
        raise RequestError("thinking.display must be summarized or omitted.", field="thinking.display")
    if kind == "enabled":
        budget, path = thinking.get("budget_tokens"), "thinking.budget_tokens"
        if not isinstance(budget, int) or isinstance(budget, bool) or budget < MIN_BUDGET_TOKENS:
            raise RequestError(f"{path} must be an integer of at least {MIN_BUDGET_TOKENS}.", field=path)
        if isinstance(body, MessagesRequest) and budget >= body.max_tokens:
            raise RequestError(f"max_tokens must be greater than {path}.", field="max_tokens")
    return bool(kind != "disabled")


def _effort(body: CountTokensRequest) -> str | None:
    config = body.output_config or {}
    others = sorted(key for key, value in config.items() if key not in ("effort", "format") and value is not None)
    if others:
        path = f"output_config.{others[0]}"
        raise RequestError(f"{path} is not supported by this version of ramet.", field=path)
    effort = config.get("effort")
    if effort is not None and (not isinstance(effort, str) or effort not in _EFFORTS):
        raise RequestError(f"output_config.effort must be one of {', '.join(_EFFORTS)}.", field="output_config.effort")
    return None if effort is None else _EFFORTS[effort]


def _schema(body: CountTokensRequest) -> str | None:
    format = (body.output_config or {}).get("format") or body.output_format
    if format is None:
        return None
    schema = format.get("schema") if isinstance(format, Mapping) else None
    if not isinstance(schema, Mapping) or format.get("type") != "json_schema":
        path = "output_config.format"
        raise RequestError(f"{path} must have the type json_schema and an object under schema.", field=path)
    return encode(schema).decode()


def _tools(tools: list[dict[str, Any]] | None) -> ToolSet:
    refuse_surrogates(tools, "tools")
    functions = []
    for index, tool in enumerate(tools or ()):
        path, kind = f"tools[{index}]", tool.get("type") or "custom"
        if kind != "custom":
            raise RequestError(
                f"{path}.type: {kind!r} is a tool of Anthropic's own; only custom tools are supported.",
                field=f"{path}.type",
            )
        if not isinstance(tool.get("name"), str) or not tool["name"]:
            raise RequestError(f"{path}.name: must be a name.", field=f"{path}.name")
        if not isinstance(tool.get("input_schema"), Mapping):
            raise RequestError(f"{path}.input_schema: must be a JSON Schema.", field=f"{path}.input_schema")
        function = {"name": tool["name"], "parameters": tool["input_schema"]}
        function.update({key: tool[key] for key in ("description", "strict") if tool.get(key) is not None})
        functions.append({"type": "function", "function": function})
    return read_tools(functions)


def _tool_choice(choice: dict[str, Any] | None) -> tuple[Literal["auto", "none", "required"], str | None, bool]:
    """The choice, the one function that must be called, and whether there may be several calls."""
    if choice is None:
        return "auto", None, True
    kind = choice.get("type")
    single = choice.get("disable_parallel_tool_use")
    if not isinstance(single, bool | None):
        path = "tool_choice.disable_parallel_tool_use"
        raise RequestError(f"{path} must be true or false.", field=path)
    if kind == "tool":
        if not isinstance(choice.get("name"), str):
            raise RequestError("tool_choice.name must be the name of a tool.", field="tool_choice.name")
        return "required", choice["name"], not single
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise RequestError(f"tool_choice.type must be auto, any, tool or none, not {kind!r}.", field="tool_choice.type")
    return _CHOICES[kind], None, not single
