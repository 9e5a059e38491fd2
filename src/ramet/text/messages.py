"""Chat messages as clients send them, made uniform before a template sees them.

Whatever a client may leave out or spell in two ways comes out in one form, so templates need no defence against it;
what cannot be honoured is refused with its path, such as `messages[2].content[0].type`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ramet.errors import RequestError
from ramet.text.surrogates import refuse_unpaired

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PARTS = ("text", "input_text", "output_text")

Message = dict[str, Any]


def normalise(messages: Any, *, developer: bool = False, content_parts: bool = False) -> list[Message]:
    """Checked copies of `messages`.

    - `content` is a string: null, missing and `[]` become "", text parts are joined with a space.
      With `content_parts`, for templates that walk over parts, it is a list of one text part instead (empty for "").
    - `tool_calls[].function.arguments` is a mapping: a string must hold a JSON object, and "" means `{}`.
    - role `developer` becomes `system` unless the template knows it (`developer`).

    Raises `RequestError` naming the path of what is wrong.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise RequestError("messages: give a list with at least one message", field="messages")
    result = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise _wrong(path, f"a message is an object, not a {type(message).__name__}")
        refuse_surrogates(message, path)
        result.append(_message(message, path, developer, content_parts))
    return result


def refuse_surrogates(value: Any, path: str) -> None:
    """Raise `RequestError` with the path of the first string inside `value` that has an unpaired surrogate."""
    if isinstance(value, str):
        refuse_unpaired(value, path)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(key, str):
                refuse_unpaired(key, f"{path}, a key")
            refuse_surrogates(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            refuse_surrogates(inner, f"{path}[{index}]")


def text_content(content: Any, path: str) -> str:
    """The text of a message's `content`: a string, null, or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise _wrong(path, f"content is a string or a list of parts, not a {type(content).__name__}")
    texts = []
    for index, part in enumerate(content):
        where = f"{path}[{index}]"
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, Mapping):
            raise _wrong(where, f"a part is an object with a type, not a {type(part).__name__}")
        kind = part.get("type", "text")
        if kind not in _TEXT_PARTS:
            raise _wrong(f"{where}.type", f"parts of type {kind!r} are not supported: this model reads text only")
        if not isinstance(part.get("text"), str):
            raise _wrong(f"{where}.text", "a text part needs a string under text")
        texts.append(part["text"])
    return " ".join(texts)


def _message(message: Mapping[str, Any], path: str, developer: bool, content_parts: bool) -> Message:
    role = message.get("role")
    if role not in ROLES:
        raise _wrong(f"{path}.role", f"the role is {role!r}; it must be one of {', '.join(ROLES)}")
    result: Message = dict(message)
    if role == "developer" and not developer:
        result["role"] = "system"
    text = text_content(message.get("content"), f"{path}.content")
    result["content"] = text if not content_parts else [{"type": "text", "text": text}] if text else []
    calls = result.pop("tool_calls", None)
    if calls:
        if not isinstance(calls, list | tuple):
            raise _wrong(f"{path}.tool_calls", "tool_calls is a list")
        result["tool_calls"] = [_tool_call(call, f"{path}.tool_calls[{rank}]") for rank, call in enumerate(calls)]
    return result


def _tool_call(call: Any, path: str) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _wrong(path, "a tool call needs an object under function, with a name")
    arguments = function.get("arguments")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}
    elif isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise _wrong(f"{path}.function.arguments", f"not valid JSON: {error}") from None
        refuse_surrogates(arguments, f"{path}.function.arguments")
    if not isinstance(arguments, Mapping):
        raise _wrong(f"{path}.function.arguments", f"must be a JSON object, not a {type(arguments).__name__}")
    return {**call, "function": {**function, "arguments": dict(arguments)}}


def _wrong(path: str, message: str) -> RequestError:
    return RequestError(f"{path}: {message}", field=path)
