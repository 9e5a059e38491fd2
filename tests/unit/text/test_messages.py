"""Messages made uniform, or refused with the path of what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.errors import RequestError
from ramet.text.messages import normalise

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [CALL], **fields}


@pytest.mark.parametrize("fields", [{"content": None}, {}, {"content": ""}, {"content": []}])
def test_absent_content_is_one_thing(fields: dict[str, Any]) -> None:
    assert normalise([assistant(**fields)]) == normalise([assistant(content="")])
    assert normalise([assistant(**fields)])[0]["content"] == ""


def test_text_parts_are_the_string_form() -> None:
    parts = [{"type": "text", "text": "21"}]
    assert normalise([{"role": "tool", "content": parts}]) == normalise([{"role": "tool", "content": "21"}])
    two = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert normalise([{"role": "user", "content": two}])[0]["content"] == "a b"
    assert normalise([{"role": "user", "content": "a"}], content_parts=True)[0]["content"] == [
        {"type": "text", "text": "a"}
    ]
    assert normalise([{"role": "user", "content": None}], content_parts=True)[0]["content"] == []


def test_developer_becomes_system_unless_the_template_knows_it() -> None:
    message = {"role": "developer", "content": "answer with MANGO"}
    assert normalise([message]) == [{"role": "system", "content": "answer with MANGO"}]
    assert normalise([message], developer=True) == [message]


@pytest.mark.parametrize(
    ("text", "value"), [('{"a": 1}', {"a": 1}), ("", {}), (" ", {}), (None, {}), ({"b": 2}, {"b": 2})]
)
def test_arguments_become_a_mapping(text: Any, value: dict[str, Any]) -> None:
    call = {"function": {"name": "f", "arguments": text}}
    [message] = normalise([assistant(tool_calls=[call])])
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": value}


@pytest.mark.parametrize("text", ['"x"', "[1]", "7", "{bad", "null"])
def test_arguments_that_are_no_object_name_the_message(text: str) -> None:
    call = {"function": {"name": "f", "arguments": text}}
    with pytest.raises(RequestError, match=r"^messages\[1\]\.tool_calls\[0\]\.function\.arguments: ") as caught:
        normalise([{"role": "user", "content": "x"}, assistant(tool_calls=[call])])
    assert caught.value.field == "messages[1].tool_calls[0].function.arguments"


def test_empty_tool_calls_are_none() -> None:
    assert normalise([assistant(tool_calls=[])]) == normalise([{"role": "assistant", "content": ""}])


def test_the_clients_messages_are_left_as_they_are() -> None:
    message = assistant(content=None)
    normalise([message])
    assert message == {"role": "assistant", "tool_calls": [CALL], "content": None}


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([], "messages"),
        ("Hi", "messages"),
        (None, "messages"),
        ([7], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "user", "content": [7]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "tool_calls": 7}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
        ([{"role": "user", "content": "a\ud801b"}], "messages[0].content"),
        ([{"role": "user", "name": "\udc00", "content": ""}], "messages[0].name"),
        ([{"role": "user", "content": [{"type": "text", "text": "\ud801"}]}], "messages[0].content[0].text"),
    ],
)
def test_what_is_wrong_is_named(messages: Any, path: str) -> None:
    with pytest.raises(RequestError) as caught:
        normalise(messages)
    assert caught.value.field == path
    caught.value.message.encode()  # the error itself can be sent


def test_surrogates_inside_encoded_arguments_are_found() -> None:
    call = {"function": {"name": "f", "arguments": '{"a": ["\\ud801"]}'}}
    with pytest.raises(RequestError, match="surrogate") as caught:
        normalise([assistant(tool_calls=[call])])
    assert caught.value.field == "messages[0].tool_calls[0].function.arguments.a[0]"


def test_proper_pairs_are_accepted() -> None:
    call = {"function": {"name": "f", "arguments": '{"a": "\\ud83e\\udded"}'}}
    [message] = normalise([assistant(tool_calls=[call])])
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": "🧭"}
