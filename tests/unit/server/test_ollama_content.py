"""Ollama's messages in the form of OpenAI."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.errors import RequestError
from ramet.server.ollama.content import chat_messages
from ramet.text.messages import normalise


def call(name: str, **extra: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {"city": "Paris"}}, **extra}


def result(content: str, **extra: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **extra}


def test_calls_get_ids_and_results_the_calls_that_they_answer() -> None:
    chat = chat_messages(
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": "", "thinking": "Hm", "tool_calls": [call("a"), call("b"), call("a")]},
            result("1", tool_name="b"),
            result("2", tool_name="a"),
            result("3"),
        ]
    )
    assert chat[1]["reasoning_content"] == "Hm"
    assert "thinking" not in chat[1]
    assert [one["id"] for one in chat[1]["tool_calls"]] == ["call_1", "call_2", "call_3"]
    assert [(one["tool_call_id"], one["name"], one["content"]) for one in chat[2:]] == [
        ("call_2", "b", "1"),
        ("call_1", "a", "2"),
        ("call_3", "a", "3"),
    ]
    normalise(chat)


def test_ids_of_the_client_stay() -> None:
    chat = chat_messages(
        [
            {"role": "assistant", "content": "", "tool_calls": [call("a", id="x"), call("a", id="y")]},
            result("1", tool_call_id="y"),
            result("2", tool_name="a"),
            result("3", tool_name="other"),
        ]
    )
    assert [(one.get("tool_call_id"), one["name"]) for one in chat[1:]] == [("y", "a"), ("x", "a"), (None, "other")]


def test_images_are_refused_by_their_path() -> None:
    with pytest.raises(RequestError) as caught:
        chat_messages([{"role": "user", "content": "x"}, {"role": "user", "content": "x", "images": ["aGk="]}])
    assert caught.value.field == "messages[1].images"
    assert chat_messages([{"role": "user", "content": "x", "images": []}]) == [{"role": "user", "content": "x"}]


def test_malformed_calls_are_left_for_the_normaliser_to_name() -> None:
    for wrong in ("x", {}, {"function": "x"}):
        chat = chat_messages([{"role": "assistant", "content": "", "tool_calls": [wrong]}])
        with pytest.raises(RequestError) as caught:
            normalise(chat)
        assert caught.value.field == "messages[0].tool_calls[0]"
