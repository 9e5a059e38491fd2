"""Anthropic's messages to those of a chat template: blocks become text, thinking, calls and tool results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ramet.errors import RequestError
from ramet.text.messages import refuse_surrogates

Message = dict[str, Any]

#: Between the texts of two blocks, and of two turns of one role.
JOIN = "\n"


def chat_messages(system: Any, messages: Any) -> list[Message]:
    """`system` and `messages` in the form of OpenAI. Turns of one role that follow each other become one.

    Tool results come first in what their user turn becomes, as messages of role `tool` with the name of their function.
    Raises `RequestError` with the path of what is wrong.
    """
    refuse_surrogates(system, "system")
    refuse_surrogates(messages, "messages")
    if not messages:
        raise RequestError("messages: give at least one message.", field="messages")
    chat: list[Message] = []
    if system:
        chat.append({"role": "system", "content": _text_only(system, "system")})
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        role, content = message.get("role"), message.get("content")
        if role == "user":
            turns = _user(content, f"{path}.content", names)
        elif role == "assistant":
            turns = [_assistant(content, f"{path}.content", names)]
        elif role == "system":
            turns = [{"role": "system", "content": _text_only(content, f"{path}.content")}]
        else:
            raise _wrong(f"{path}.role", f"must be user, assistant or system, not {role!r}")
        for turn in turns:
            _append(chat, turn)
    if chat[-1].get("tool_calls"):
        raise _wrong(f"messages[{len(messages) - 1}]", "a turn with tool_use must be followed by its tool_result")
    return chat


def _append(chat: list[Message], turn: Message) -> None:
    last = chat[-1] if chat else None
    if last is None or last["role"] != turn["role"] or turn["role"] == "tool":
        chat.append(turn)
        return
    last["content"] = _joined([last["content"], turn["content"]])
    if "reasoning_content" in turn:
        last["reasoning_content"] = _joined([last.get("reasoning_content", ""), turn["reasoning_content"]])
    if "tool_calls" in turn:
        last["tool_calls"] = [*last.get("tool_calls", ()), *turn["tool_calls"]]


def _user(content: Any, path: str, names: Mapping[str, str]) -> list[Message]:
    results: list[Message] = []
    texts: list[str] = []
    for block, where in _blocks(content, path):
        if block["type"] == "tool_result":
            results.append(_tool_result(block, where, names))
        else:
            texts.append(_text(block, where))
    if results and not texts:
        return results
    return [*results, {"role": "user", "content": _joined(texts)}]


def _tool_result(block: Mapping[str, Any], path: str, names: Mapping[str, str]) -> Message:
    id = block.get("tool_use_id")
    if not isinstance(id, str) or id not in names:
        raise _wrong(f"{path}.tool_use_id", f"no earlier tool_use has the id {id!r}")
    text = _text_only(block.get("content"), f"{path}.content")
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": id, "name": names[id], "content": text}


def _assistant(content: Any, path: str, names: dict[str, str]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    for block, where in _blocks(content, path):
        if block["type"] == "thinking":
            thoughts.append(_string(block, "thinking", where))
        elif block["type"] == "tool_use":
            id, name, given = _string(block, "id", where), _string(block, "name", where), block.get("input")
            if not isinstance(given, Mapping):
                raise _wrong(f"{where}.input", "must be an object")
            names[id] = name
            calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": dict(given)}})
        else:
            texts.append(_text(block, where))
    turn: Message = {"role": "assistant", "content": _joined(texts)}
    if thoughts:
        turn["reasoning_content"] = _joined(thoughts)
    if calls:
        turn["tool_calls"] = calls
    return turn


def _text_only(content: Any, path: str) -> str:
    return _joined([_text(block, where) for block, where in _blocks(content, path)])


def _blocks(content: Any, path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The blocks with their paths; a string is one block of text, null is none."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list | None):
        raise _wrong(path, "must be a string or a list of content blocks")
    for index, block in enumerate(content or ()):
        where = f"{path}[{index}]"
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            raise _wrong(where, "a content block is an object with a type")
        yield block, where


def _text(block: Mapping[str, Any], path: str) -> str:
    kind = block["type"]
    if kind == "text":
        return _string(block, "text", path)
    if kind == "search_result":
        inner = _text_only(block.get("content"), f"{path}.content")
        return _joined([_string(block, "title", path), _string(block, "source", path), inner])
    if kind in ("image", "document"):
        raise _wrong(f"{path}.type", f"blocks of type {kind!r} are not supported: this model reads text only")
    raise _wrong(f"{path}.type", f"blocks of type {kind!r} are not supported here")


def _string(block: Mapping[str, Any], key: str, path: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise _wrong(f"{path}.{key}", "must be a string")
    return value


def _joined(texts: Sequence[str]) -> str:
    return JOIN.join(text for text in texts if text)


def _wrong(path: str, message: str) -> RequestError:
    return RequestError(f"{path}: {message}.", field=path)
