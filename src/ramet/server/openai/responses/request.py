"""The body of `/v1/responses`, and the chat that it amounts to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ramet.errors import RequestError
from ramet.server.openai import common
from ramet.server.openai.chat import read_tool_choice, template_kwargs
from ramet.text.chat import ChatSpec
from ramet.text.messages import text_content
from ramet.text.toolset import ToolSet, read_tools

NOT_YET = common.NOT_YET | frozenset("prompt conversation context_management moderation".split())

HARMLESS = common.HARMLESS | frozenset({"max_tool_calls", "prompt_cache_options"})

LOGPROBS = "message.output_text.logprobs"

#: What `include` may name. All but the logprobs belong to tools that run inside OpenAI, so there is nothing to include.
_INCLUDES = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)

Message = dict[str, Any]


class ResponsesRequest(common.SharedFields, kw_only=True):
    """Body of `/v1/responses`."""

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    service_tier: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    request_id: str | None = None


def refuse(body: ResponsesRequest) -> None:
    """Raise for what cannot be honoured."""
    for name, value, instead in (
        ("n", body.n not in (None, 1), "a response has one answer"),
        ("max_tokens", body.max_tokens is not None, "use max_output_tokens"),
        ("response_format", body.response_format is not None, "use text.format"),
        ("return_token_ids", bool(body.return_token_ids), "only chat completions have it"),
        ("truncation", body.truncation not in (None, "disabled"), "only 'disabled' is supported"),
        ("background", bool(body.background and body.stream), "it cannot be streamed"),
    ):
        if value:
            raise RequestError(f"{name}: {instead}.", field=name)
    for name in body.include or ():
        if name not in _INCLUDES:
            raise RequestError(f"include: {name!r} is not known.", field="include")
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        raise RequestError(f"top_logprobs needs {LOGPROBS} in include.", field="top_logprobs")
    if body.text is not None and not isinstance(body.text.get("format"), dict | None):
        raise RequestError("text.format must be an object.", field="text.format")


def response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    """`text.format` as chat completions spell it."""
    given = (body.text or {}).get("format")
    if given is None or given.get("type") != "json_schema" or "json_schema" in given:
        return given
    return {"type": "json_schema", "json_schema": {key: value for key, value in given.items() if key != "type"}}


def chat_spec(body: ResponsesRequest, messages: list[Message], size: int = 0) -> ChatSpec:
    """What the body asks for, in no dialect. `messages`: the conversation, without `instructions`."""
    choice, name = read_tool_choice(body.tool_choice)
    reasoning = {key: value for key, value in (body.reasoning or {}).items() if key == "effort"}
    return ChatSpec(
        messages=instructed(body.instructions, messages),
        tools=tool_set(body.tools),
        tool_choice=choice,
        tool_name=name,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        template_kwargs=template_kwargs(body.chat_template_kwargs, reasoning=reasoning),
        size=size,
    )


def tool_set(given: list[dict[str, Any]] | None) -> ToolSet:
    """Tools, whose functions stand here without an envelope."""
    tools = []
    for index, tool in enumerate(given or ()):
        if tool.get("type", "function") != "function":
            raise RequestError(
                f"tools[{index}].type: tools of type {tool['type']!r} are not supported; only functions are.",
                field=f"tools[{index}].type",
            )
        function = tool.get("function", {key: value for key, value in tool.items() if key != "type"})
        tools.append({"type": "function", "function": function})
    return read_tools(tools)


def instructed(instructions: str | None, messages: list[Message]) -> list[Message]:
    """The conversation with its instructions in front, in one system message."""
    if not instructions:
        return messages
    if messages and messages[0]["role"] in ("system", "developer"):
        before = messages[0]["content"]
        return [{**messages[0], "content": f"{instructions}\n\n{before}"}, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


def read_input(given: str | list[dict[str, Any]] | None, resolve: Callable[[str, str], Any]) -> list[Message]:
    """Input items as chat messages. `resolve` turns the id of an item reference (and its path) into the item."""
    if given is None or given == [] or given == "":
        raise RequestError("input: give a text or at least one item.", field="input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return to_messages(given, resolve)


def to_messages(items: list[dict[str, Any]], resolve: Callable[[str, str], Any]) -> list[Message]:
    """Items as chat messages: what an assistant thinks, says and calls in a row is one message."""
    messages: list[Message] = []
    for index, given in enumerate(items):
        path = f"input[{index}]"
        item: Mapping[str, Any] = given
        if item.get("type") == "item_reference":
            item = resolve(str(item.get("id")), path)
        kind = item.get("type", "message")
        if kind == "message":
            role = item.get("role")
            if not isinstance(role, str):
                raise RequestError(f"{path}.role: a message needs a role.", field=f"{path}.role")
            text = text_content(_without_refusals(item.get("content")), f"{path}.content")
            if role == "assistant":
                _assistant(messages)["content"] += text
            else:
                messages.append({"role": role, "content": text})
        elif kind == "reasoning":
            _assistant(messages)["reasoning_content"] = _thinking(item, path)
        elif kind == "function_call":
            _assistant(messages).setdefault("tool_calls", []).append(_call(item, path))
        elif kind == "function_call_output":
            text = text_content(item.get("output"), f"{path}.output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
        else:
            raise RequestError(f"{path}.type: items of type {kind!r} are not supported.", field=f"{path}.type")
    return messages


def _assistant(messages: list[Message]) -> Message:
    """The assistant's message at the end, begun if there is none."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _without_refusals(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part.get("refusal")}
        if isinstance(part, Mapping) and part.get("type") == "refusal"
        else part
        for part in content
    ]


def _thinking(item: Mapping[str, Any], path: str) -> str:
    texts = []
    for name in ("content", "summary"):
        parts = item.get(name) or []
        if not isinstance(parts, list):
            raise RequestError(f"{path}.{name}: must be a list of parts.", field=f"{path}.{name}")
        for part in parts:
            text = part.get("text") if isinstance(part, Mapping) else None
            if not isinstance(text, str):
                raise RequestError(f"{path}.{name}: every part needs a text.", field=f"{path}.{name}")
            texts.append(text)
    return "\n".join(texts)


def _call(item: Mapping[str, Any], path: str) -> dict[str, Any]:
    if not isinstance(item.get("name"), str) or not isinstance(item.get("arguments", ""), str):
        raise RequestError(f"{path}: a call needs a name, and its arguments as a string.", field=path)
    return {
        "id": item.get("call_id"),
        "type": "function",
        "function": {"name": item["name"], "arguments": item.get("arguments", "")},
    }
