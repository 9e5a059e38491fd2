"""Ollama's messages to those of a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ramet.errors import RequestError

Message = dict[str, Any]


def chat_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """`messages` in the form of OpenAI: thinking under its key, and an id on every call and tool result.

    Ollama's calls need no ids: a result answers the first open call of its function, or the first open call.
    """
    chat: list[Message] = []
    open_calls: list[tuple[str, str]] = []  # id, function
    made = 0
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        refuse_images(message.get("images"), f"{path}.images")
        turn = {key: value for key, value in message.items() if key not in ("images", "thinking", "tool_name")}
        if message.get("thinking"):
            turn["reasoning_content"] = message["thinking"]
        if message.get("role") == "tool":
            name = message.get("tool_name") or message.get("name")
            id = message.get("tool_call_id")
            answered = next((call for call in open_calls if call[0] == id or (id is None and call[1] == name)), None)
            if answered is None and id is None and name is None and open_calls:
                answered = open_calls[0]
            if answered is not None:
                open_calls.remove(answered)
                id, name = id or answered[0], name or answered[1]
            turn.update({key: value for key, value in (("tool_call_id", id), ("name", name)) if value is not None})
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            turn["tool_calls"] = []
            for call in calls:
                if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping):
                    made += 1
                    call = {"id": f"call_{made}", "type": "function", **call}
                    open_calls.append((str(call["id"]), str(call["function"].get("name"))))
                turn["tool_calls"].append(call)  # what is malformed, the template's normaliser refuses by its path
        chat.append(turn)
    return chat


def refuse_images(images: Any, path: str) -> None:
    """No model that this version serves sees anything."""
    if images:
        raise RequestError(f"{path}: images are not supported: this model reads text only.", field=path)
