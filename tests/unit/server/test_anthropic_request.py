"""What a body of `/v1/messages` becomes: messages, tools, parameters; and what is refused, by its path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramet.errors import RequestError
from ramet.server.anthropic.content import chat_messages
from ramet.server.anthropic.request import chat_spec, hides_thinking, read_sampling
from support.dialects import messages_request

USE = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
TOOL = {"name": "get_weather", "description": "Weather.", "input_schema": {"type": "object"}}


def result(content: Any = "sunny", **extra: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **extra}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}


def test_strings_and_blocks_are_the_same() -> None:
    plain = chat_messages("Be brief.", [{"role": "user", "content": "Hi"}])
    assert plain == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert chat_messages([text("Be brief.")], [user(text("Hi"))]) == plain
    assert chat_messages([text("Be"), text("brief.")], [user(text("Hi"), text(""), text("there"))]) == [
        {"role": "system", "content": "Be\nbrief."},
        {"role": "user", "content": "Hi\nthere"},
    ]


def test_a_turn_with_thinking_and_a_call_and_its_result() -> None:
    thinking = {"type": "thinking", "thinking": "Hm", "signature": "abc"}
    chat = chat_messages(
        None, [user(text("go")), assistant(thinking, text("Looking."), USE), user(text("and?"), result())]
    )
    call = {"id": "toolu_1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    assert chat[1:] == [
        {"role": "assistant", "content": "Looking.", "reasoning_content": "Hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "toolu_1", "name": "get_weather", "content": "sunny"},
        {"role": "user", "content": "and?"},
    ]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (result(), "sunny"),
        (result([text("a"), text("b")]), "a\nb"),
        (result(None), ""),
        (result("no such city", is_error=True), "Error: no such city"),
        (result([{"type": "search_result", "title": "T", "source": "S", "content": [text("x")]}]), "T\nS\nx"),
    ],
)
def test_tool_results(block: dict[str, Any], expected: str) -> None:
    chat = chat_messages(None, [user(text("go")), assistant(USE), user(block)])
    assert chat[-1] == {"role": "tool", "tool_call_id": "toolu_1", "name": "get_weather", "content": expected}


def test_turns_of_one_role_are_joined_and_tool_results_are_not() -> None:
    second = {**USE, "id": "toolu_2", "name": "now"}
    chat = chat_messages(
        [text("one")],
        [
            {"role": "system", "content": "two"},
            user(text("a")),
            user(text("b")),
            assistant(USE),
            assistant(second),
            user(result(), {**result("noon"), "tool_use_id": "toolu_2"}),
        ],
    )
    assert [message["role"] for message in chat] == ["system", "user", "assistant", "tool", "tool"]
    assert (chat[0]["content"], chat[1]["content"]) == ("one\ntwo", "a\nb")
    assert [call["id"] for call in chat[2]["tool_calls"]] == ["toolu_1", "toolu_2"]
    assert [message["name"] for message in chat[3:]] == ["get_weather", "now"]


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([], "messages"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([user("x")], "messages[0].content[0]"),
        ([user({"text": "x"})], "messages[0].content[0]"),
        ([user({"type": "text"})], "messages[0].content[0].text"),
        ([user(text("x"), {"type": "image", "source": {}})], "messages[0].content[1].type"),
        ([user({"type": "document", "source": {}})], "messages[0].content[0].type"),
        ([user(text("x")), assistant({"type": "redacted_thinking", "data": ""})], "messages[1].content[0].type"),
        ([assistant({**USE, "input": "{}"})], "messages[0].content[0].input"),
        ([assistant({**USE, "id": None})], "messages[0].content[0].id"),
        ([user(result())], "messages[0].content[0].tool_use_id"),
        ([assistant(USE), user(result([{"type": "image"}]))], "messages[1].content[0].content[0].type"),
        ([user(text("x")), assistant(USE)], "messages[1]"),
        ([user(text("a\ud801b"))], "messages[0].content[0].text"),
    ],
)
def test_what_is_wrong_is_named(messages: list[Any], path: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat_messages(None, messages)
    assert caught.value.field == path


def test_tools_and_choices() -> None:
    spec = chat_spec(messages_request(tools=[TOOL, {"name": "now", "input_schema": {}, "type": "custom"}]), 1)
    assert [tool["function"]["name"] for tool in spec.tools.tools] == ["get_weather", "now"]
    assert spec.tools.tools[0]["function"]["description"] == "Weather."
    assert (spec.tool_choice, spec.tool_name, spec.parallel_tool_calls) == ("auto", None, True)

    def choose(**choice: Any) -> tuple[str, str | None, bool]:
        spec = chat_spec(messages_request(tools=[TOOL], tool_choice=choice), 1)
        return spec.tool_choice, spec.tool_name, spec.parallel_tool_calls

    assert choose(type="any") == ("required", None, True)
    assert choose(type="none") == ("none", None, True)
    assert choose(type="tool", name="get_weather", disable_parallel_tool_use=True) == ("required", "get_weather", False)
    assert choose(type="auto", disable_parallel_tool_use=True) == ("auto", None, False)


def test_thinking_and_effort_reach_the_template() -> None:
    def kwargs(**fields: Any) -> dict[str, Any]:
        return dict(chat_spec(messages_request(**fields), 1).template_kwargs)

    assert kwargs() == {}
    on = {"thinking": True, "enable_thinking": True}
    assert kwargs(thinking={"type": "enabled", "budget_tokens": 1024}) == on
    assert kwargs(thinking={"type": "adaptive"}) == on
    assert kwargs(thinking={"type": "disabled"}) == {"thinking": False, "enable_thinking": False}
    assert kwargs(output_config={"effort": "xhigh"}) == {"reasoning_effort": "max"}
    assert hides_thinking(messages_request(thinking={"type": "adaptive", "display": "omitted"}))


def test_a_final_assistant_turn_is_continued() -> None:
    spec = chat_spec(messages_request(messages=[user(text("go")), assistant(text("The answer is ("))]), 1)
    assert (spec.continue_final_message, spec.add_generation_prompt) == (True, False)


def test_parameters() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    body = messages_request(
        temperature=0.5,
        top_p=0.9,
        top_k=0,
        stop_sequences=["END"],
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    params = read_sampling(body, {"top_k": 20, "min_p": 0.1})
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, -1, 0.1)
    assert (params.max_new_tokens, params.stop) == (2000, ("END",))
    assert json.loads(params.json_schema or "") == schema


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": -5}, "top_k"),
        ({"stop_sequences": ["x", " \n"]}, "stop_sequences[1]"),
        ({"stop_sequences": ["x"] * 99}, "stop_sequences"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"output_config": {"format": {"type": "regex", "schema": {}}}}, "output_config.format"),
        ({"output_config": {"task_budget": {"total": 3}}}, "output_config.task_budget"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"thinking": {"type": "adaptive", "display": "loud"}}, "thinking.display"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "max_tokens"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{**TOOL, "description": "a\ud801b"}]}, "tools[0].description"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use"),
    ],
)
def test_fields_are_checked(fields: dict[str, Any], path: str) -> None:
    def read() -> None:
        body = messages_request(**fields)
        read_sampling(body, {})
        chat_spec(body, 1)

    with pytest.raises(RequestError) as caught:
        read()
    assert caught.value.field == path
