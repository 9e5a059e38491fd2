"""cases.md, section D, as clients of chat completions meet it; surface.md 2.5, 2.6 and 14, items 25 and 26."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from support import toy
from support.chats import (
    ASK,
    CHAT,
    NOW,
    TEMPLATE,
    TOOLS,
    ask,
    call,
    calls_of,
    chatting,
    function,
    joined,
    saying,
    without_ids,
    write_model,
)
from support.server import Server, paced

PARIS = '{"city": "Paris"}'


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture
async def server(chat_model: Path) -> AsyncIterator[Server]:
    async with chatting(chat_model) as server:
        yield server


async def refused(server: Server, field: str, **body: Any) -> str:
    """The message of the 400, the same when a stream was asked for."""
    for stream in (False, True):
        answer = await server.client.post(CHAT, {**ASK, **body, "stream": stream})
        assert (answer.status, answer.json["param"]) == (400, field), answer.body
    message: str = answer.json["message"]
    return message


async def test_a_call(server: Server) -> None:
    choice = await ask(server, call("get_weather", PARIS), tools=TOOLS)
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"] is None
    assert calls_of(choice) == [("get_weather", PARIS)]
    assert choice["message"]["tool_calls"][0]["index"] == 0
    assert (choice["finish_reason"], choice["matched_stop"]) == ("tool_calls", None)


async def test_text_around_a_call(server: Server) -> None:
    choice = await ask(server, "I look.\n" + call("now", "{}") + " Wait.", tools=TOOLS)
    assert choice["message"]["content"] == "I look.\nWait."
    assert calls_of(choice) == [("now", "{}")]


async def test_no_call_is_an_ordinary_answer(server: Server) -> None:
    choice = await ask(server, "It is <b>noon</b>.", tools=TOOLS)
    assert choice["message"] == {"role": "assistant", "content": "It is <b>noon</b>.", "reasoning_content": None}
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", toy.EOS)


async def test_d05_d07_two_calls(server: Server) -> None:
    choice = await ask(server, call("now", "{}") + "\n" + call("get_weather", PARIS), tools=TOOLS)
    assert choice["message"]["content"] == ""
    assert calls_of(choice) == [("now", "{}"), ("get_weather", PARIS)]
    assert [one["index"] for one in choice["message"]["tool_calls"]] == [0, 1]


async def test_d08_a_call_that_the_limit_cuts(server: Server) -> None:
    text = call("get_weather", PARIS) + '<tool_call>{"name":"rm","arguments":{"p":"/t'
    choice = await ask(server, saying(text + "mp/x"), tools=TOOLS, max_tokens=len(text))
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""
    first, second = calls_of(choice)
    assert first == ("get_weather", PARIS)
    assert second == ("rm", '{"p":"/t')
    with pytest.raises(json.JSONDecodeError):
        json.loads(second[1])


@pytest.mark.parametrize("text", ['<tool_call>{"name":"rm"', '<tool_call>{"name":"rm","arguments":'])
async def test_d08_a_call_cut_before_its_arguments_is_not_runnable(server: Server, text: str) -> None:
    choice = await ask(server, saying(text), tools=TOOLS, max_tokens=len(text))
    assert calls_of(choice) == [("rm", "")]
    assert choice["finish_reason"] == "length"


async def test_d08_a_call_that_the_model_itself_breaks_off(server: Server) -> None:
    choice = await ask(server, '<tool_call>{"name":"rm","arguments":{"p":"/t', tools=TOOLS)
    assert choice["finish_reason"] == "stop"
    assert calls_of(choice) == [("rm", '{"p":"/t')]


async def test_d14_forced_without_a_parser_is_a_call(chat_model: Path) -> None:
    async with chatting(chat_model, tool_call_parser="none") as server:
        for chosen in ("required", {"type": "function", "function": {"name": "now"}}):
            server.executor.script = Script(tokens=[*toy.ids("h", "e", "l", "l", "o"), toy.EOS])
            body = {**ASK, "tools": TOOLS, "tool_choice": chosen, "max_tokens": 400, "temperature": 0}
            whole = (await server.client.post(CHAT, body)).json["choices"][0]
            assert (whole["finish_reason"] == "tool_calls") == all(valid(args) for _, args in calls_of(whole))
            streamed = joined(await server.client.stream(CHAT, body).events())
            assert without_ids(streamed) == without_ids(whole)


def valid(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except json.JSONDecodeError:
        return False


async def test_d13_a_forced_call_without_parameters(server: Server) -> None:
    text = '[{"name":"now","parameters":{}}]'
    chosen = {"type": "function", "function": {"name": "now"}}
    choice = await ask(server, saying(text + " " * 30), tools=TOOLS, tool_choice=chosen)
    assert calls_of(choice) == [("now", "{}")]
    assert choice["finish_reason"] == "tool_calls"
    prompt = (await server.client.post("/render", {**ASK, "tools": TOOLS, "tool_choice": chosen})).json["prompt"]
    assert "get_weather" not in prompt


async def test_a_function_without_a_schema_takes_nothing(server: Server) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    server.executor.script = saying('[{"name":"f","parameters":{"invented":1}}]')
    body = {**ASK, "tools": tools, "tool_choice": "required", "max_tokens": 200, "parallel_tool_calls": False}
    [(name, arguments)] = calls_of((await server.client.post(CHAT, body)).json["choices"][0])
    assert name == "f"
    assert json.loads(arguments) == {}


async def test_a_forced_call_is_read_as_an_array(server: Server) -> None:
    """surface.md 13.7."""
    text = '[{"name":"get_weather","parameters":{"city":"Paris"}},{"name":"now","parameters":{}}]'
    choice = await ask(server, text, tools=TOOLS, tool_choice="required")
    assert calls_of(choice) == [("get_weather", '{"city":"Paris"}'), ("now", "{}")]
    assert choice["message"]["content"] == ""
    assert choice["finish_reason"] == "tool_calls"


async def test_d16_one_call_only(server: Server) -> None:
    text = call("get_weather", PARIS) + "\n" + call("now", "{}")
    choice = await ask(server, text, tools=TOOLS, parallel_tool_calls=False)
    assert calls_of(choice) == [("get_weather", PARIS)]
    forced = '[{"name":"get_weather","parameters":{"city":"Paris"}},{"name":"now","parameters":{}}]'
    choice = await ask(server, forced, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=90)
    assert calls_of(choice)[0] == ("get_weather", '{"city":"Paris"}')
    assert len(calls_of(choice)) == 1


async def test_d17_letters_of_all_kinds(server: Server) -> None:
    arguments = '{"city": "Grüße 你 \\" \\\\ \U0001f9c0"}'
    assert calls_of(await ask(server, call("get_weather", arguments), tools=TOOLS)) == [("get_weather", arguments)]


@pytest.mark.parametrize("arguments", ['"x"', "[1]", "7", "{bad"])
async def test_d19_arguments_in_the_history_are_an_object(server: Server, arguments: str) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [past("now", arguments)]}
    message = await refused(
        server, "messages[1].tool_calls[0].function.arguments", messages=[*ASK["messages"], called], tools=TOOLS
    )
    assert "messages[1]" in message


async def test_d19_no_arguments_are_an_empty_object(server: Server) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [past("now", "")]}
    assert "assistant:[now {}]" in await rendered(server, [*ASK["messages"], called])


@pytest.mark.parametrize("extra", [{"content": None}, {}, {"content": ""}, {"content": []}])
async def test_d20_a_calling_message_without_content(server: Server, extra: dict[str, Any]) -> None:
    called = {"role": "assistant", "tool_calls": [past("now", '{"a": 1}')], **extra}
    assert '<turn>assistant:[now {"a": 1}]<eos>' in await rendered(server, [*ASK["messages"], called])


async def test_d22_tools_are_printed_unescaped(server: Server) -> None:
    thai = function("f")
    thai["function"]["description"] = "ขอ"
    assert "ขอ" in await rendered(server, ASK["messages"], tools=[thai])


async def test_d23_a_tool_result_in_parts(server: Server) -> None:
    result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "21"}]}
    called = {"role": "assistant", "content": [], "tool_calls": [past("now", "{}")]}
    assert "<turn>tool:21<eos>" in await rendered(server, [*ASK["messages"], called, result])


def past(name: str, arguments: str) -> dict[str, Any]:
    """A call in the history."""
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


async def rendered(server: Server, messages: list[dict[str, Any]], **body: Any) -> str:
    answer = await server.client.post("/render", {"messages": messages, **body})
    assert answer.status == 200, answer.body
    prompt: str = answer.json["prompt"]
    return prompt


async def test_tool_choice_none_hides_the_tools(server: Server) -> None:
    choice = await ask(server, call("now", "{}"), tools=TOOLS, tool_choice="none")
    assert choice["message"]["content"] == call("now", "{}")
    assert "get_weather" not in await rendered(server, ASK["messages"], tools=TOOLS, tool_choice="none")


async def test_calls_of_functions_that_are_not_offered_are_dropped(server: Server) -> None:
    choice = await ask(server, "ok " + call("other", "{}"), tools=[NOW])
    assert calls_of(choice) == []
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "ok"


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tool_choice": "required", "tools": []}),
        ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "nope"}}, "tools": TOOLS}),
        ("tool_choice", {"tool_choice": {"type": "other"}, "tools": TOOLS}),
        ("tool_choice", {"tool_choice": "sometimes", "tools": TOOLS}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tools[0].function", {"tools": [{"type": "function"}]}),
        ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": ""}}]}),
        ("tools[1].function.name", {"tools": [NOW, NOW]}),
        ("tools[0].function.parameters", {"tools": [{"function": {"name": "f", "parameters": {"type": "string"}}}]}),
        ("tools[0].function.parameters", {"tools": [{"function": {"name": "f", "parameters": {"properties": 3}}}]}),
        ("tools[0].function.strict", {"tools": [{"function": {"name": "f", "strict": "yes"}}]}),
    ],
)
async def test_malformed_tools_are_named(server: Server, field: str, body: dict[str, Any]) -> None:
    await refused(server, field, **body)


async def test_conflicting_definitions_are_refused(server: Server) -> None:
    tools = [
        {"function": {"name": name, "parameters": {"$defs": {"T": {"type": kind}}, "properties": {}}}}
        for name, kind in (("f", "string"), ("g", "integer"))
    ]
    assert "$defs/T" in await refused(server, "tools", tools=tools, tool_choice="required")


async def test_a_forced_call_admits_no_other_constraint(server: Server) -> None:
    await refused(server, "tool_choice", tools=TOOLS, tool_choice="required", regex="a+")


STRICT = [
    {"type": "function", "function": {**function("add", x={"type": "integer"})["function"], "strict": True}},
    NOW,
]
STRICT[0]["function"]["parameters"]["required"] = ["x"]


async def test_strict_binds_a_call_once_it_begins(server: Server) -> None:
    """The model would write a word for a number, another function's name, and a second call."""
    assert (await ask(server, "Just text.", tools=STRICT))["message"]["content"] == "Just text."
    right = call("add", '{"x": 17}')
    assert calls_of(await ask(server, "So: " + right + right, tools=STRICT)) == [("add", '{"x": 17}')] * 2
    for wrong in (call("add", '{"x": "b"}'), call("sub", '{"x": 1}'), call("add", "{}")):
        server.executor.script = saying(wrong + " " * 20)
        answer = await server.client.post(CHAT, {**ASK, "tools": STRICT, "max_tokens": 300, "temperature": 0})
        made = calls_of(answer.json["choices"][0])
        assert made
        for name, arguments in made:
            assert name in ("add", "now")
            assert name == "now" or re.match(r'{\s*"x"\s*:\s*-?\d', arguments), arguments
    one = await ask(server, right + right, tools=STRICT, parallel_tool_calls=False)
    assert calls_of(one) == [("add", '{"x": 17}')]
    form = {"type": "json_object"}
    assert (await ask(server, '{"a":1}', tools=STRICT, response_format=form))["message"]["content"] == '{"a":1}'


async def test_strict_is_not_promised_silently(chat_model: Path) -> None:
    async with chatting(chat_model, tool_call_parser="pythonic") as server:
        server.executor.script = saying("ok")
        answer = await server.client.post(CHAT, {**ASK, "tools": STRICT})
        assert "strict" in answer.headers["x-ramet-warning"]
        forced = await server.client.post(CHAT, {**ASK, "tools": STRICT, "tool_choice": "required", "max_tokens": 1})
        assert "x-ramet-warning" not in forced.headers


@pytest.mark.parametrize(
    ("text", "extra", "reason"),
    [
        (call("now", "{}"), {}, "tool_calls"),
        ("ok", {}, "stop"),
        ("ok", {"stop": "k"}, "stop"),
        ("ok", {"max_tokens": 1}, "length"),
        (call("now", "{}"), {"max_tokens": 9}, "length"),
        ("123" + "4" * 9, {"regex": r"\d{3}"}, "stop"),
        ("<tool_call>", {}, "stop"),
    ],
)
async def test_c08_one_finish_reason_with_parsers(
    server: Server, text: str, extra: dict[str, Any], reason: str
) -> None:
    assert (await ask(server, text, tools=TOOLS, **extra))["finish_reason"] == reason


async def test_c07_an_aborted_call_is_no_success(server: Server) -> None:
    server.executor.script = paced(call("get_weather", PARIS).encode())
    stream = server.client.stream(CHAT, {**ASK, "tools": TOOLS, "rid": "gone"})
    for _ in range(3):
        await stream.event()
    await server.client.post("/abort_request", {"rid": "gone"})
    events = await stream.events()
    assert "error" in events[-1]
    assert not [e for e in events[:-1] if e["choices"][0]["finish_reason"]]


async def test_logprobs_go_with_the_step_they_belong_to(server: Server) -> None:
    text = "I " + call("now", "{}")
    choice = await ask(server, text, tools=TOOLS, logprobs=True, temperature=0)
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"][:-1]) == text


async def test_every_call_comes_as_it_is_written(server: Server) -> None:
    """surface.md 13.4: the name first, then fragments of the arguments."""
    server.executor.script = paced([*call("get_weather", PARIS).encode(), toy.EOS])
    events = await server.client.stream(
        CHAT, {**ASK, "tools": TOOLS, "stream_options": {"include_usage": True}}
    ).events()
    deltas = [event["choices"][0]["delta"] for event in events[:-2] if "tool_calls" in event["choices"][0]["delta"]]
    first, *fragments = [delta["tool_calls"][0] for delta in deltas]
    assert first["function"] == {"name": "get_weather", "arguments": ""}
    assert len(fragments) > 10
    assert "".join(one["function"]["arguments"] for one in fragments) == PARIS
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == len(call("get_weather", PARIS)) + 1


async def test_samples_have_calls_of_their_own(server: Server) -> None:
    server.executor.script = saying(call("now", "{}"))
    body = {**ASK, "tools": TOOLS, "n": 2}
    choices = (await server.client.post(CHAT, body)).json["choices"]
    assert [calls_of(choice) for choice in choices] == [[("now", "{}")]] * 2
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in choices}) == 2
    events = await server.client.stream(CHAT, body).events()
    assert [calls_of(joined(events, index)) for index in (0, 1)] == [[("now", "{}")]] * 2


async def test_a_stop_string_ends_a_call_too(server: Server) -> None:
    choice = await ask(server, call("get_weather", PARIS), tools=TOOLS, stop="ris")
    assert calls_of(choice) == [("get_weather", '{"city": "Pa')]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", "ris")


async def test_special_tokens_reach_the_parser(chat_model: Path) -> None:
    """Kimi's markers are special tokens in its vocabulary; here the toy's own stand for text that would be hidden."""
    async with chatting(chat_model) as server:
        script = Script(tokens=[toy.TURN, *call("now", "{}").encode(), toy.EOS])
        choice = await ask(server, script, tools=TOOLS)
        assert choice["message"]["content"] == "<turn>"
        plain = await ask(server, Script(tokens=[toy.TURN, *toy.ids("ok"), toy.EOS]))
        assert plain["message"]["content"] == "ok"


async def test_the_formats_own_ids_are_kept(chat_model: Path) -> None:
    async with chatting(chat_model, tool_call_parser="kimi_k2") as server:
        server.executor.script = saying(
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:3<|tool_call_argument_begin|>{}"
            "<|tool_call_end|><|tool_calls_section_end|>"
        )
        body = {**ASK, "tools": TOOLS}
        whole = (await server.client.post(CHAT, body)).json["choices"][0]
        assert whole["message"]["tool_calls"][0]["id"] == "functions.now:3"
        streamed = joined(await server.client.stream(CHAT, body).events())
        assert streamed == whole


async def test_a_template_without_tools_refuses_them_or_is_helped(tmp_path: Path) -> None:
    model = write_model(tmp_path / "plain", template=toy.TEMPLATE)
    async with chatting(model, tool_call_parser="auto") as server:
        assert "does not print tools" in await refused(server, "tools", tools=TOOLS)
        forced = await rendered(server, ASK["messages"], tools=TOOLS, tool_choice="required")
        assert '"name": "get_weather"' in forced
        assert "JSON array" in forced
        plain = await rendered(server, ASK["messages"], tools=TOOLS, tool_choice="none")
        assert "get_weather" not in plain
    async with chatting(model, tool_call_parser="hermes") as server:
        assert "<tool_call>" in await rendered(server, ASK["messages"], tools=TOOLS)
        messages = [{"role": "system", "content": "Be brief."}, *ASK["messages"]]
        prompt = await rendered(server, messages, tools=TOOLS)
        assert "<turn>system:Be brief.\n\nYou can call functions." in prompt
        assert prompt.count("<turn>system:") == 1
        assert calls_of(await ask(server, call("now", "{}"), tools=TOOLS)) == [("now", "{}")]


async def test_without_a_parser_calls_stay_text_and_a_header_says_so(chat_model: Path) -> None:
    async with chatting(chat_model, tool_call_parser="none") as server:
        server.executor.script = saying(call("now", "{}"))
        answer = await server.client.post(CHAT, {**ASK, "tools": TOOLS})
        assert answer.json["choices"][0]["message"]["content"] == call("now", "{}")
        assert "--tool-call-parser" in answer.headers["x-ramet-warning"]


async def test_auto_reads_the_format_from_the_template(tmp_path: Path) -> None:
    model = write_model(tmp_path / "auto", template=TEMPLATE + "{# <tool_call> #}")
    async with chatting(model, tool_call_parser="auto") as server:
        assert server.frontend.formats.tools == "qwen25"
        assert calls_of(await ask(server, call("now", "{}"), tools=TOOLS)) == [("now", "{}")]


#: The same call as each format writes it, with a word before it where the format allows one.
FORMATS = {
    "qwen3_coder": "Hi.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "</function>\n</tool_call>",
    "llama3": '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}',
    "mistral": 'Hi. [TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]',
    "deepseekv31": "Hi.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "glm45": "Hi.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
    "pythonic": '[get_weather(city="Paris")]',
    "minimax-m2": 'Hi.<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    "gpt-oss": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
}


@pytest.mark.parametrize("name", sorted(FORMATS))
async def test_every_kind_of_format_through_the_server(chat_model: Path, name: str) -> None:
    reasoning = "gpt-oss" if name == "gpt-oss" else "qwen3"
    async with chatting(chat_model, tool_call_parser=name, reasoning_parser=reasoning) as server:
        choice = await ask(server, FORMATS[name], tools=TOOLS)
        [(called, arguments)] = calls_of(choice)
        assert called == "get_weather"
        assert json.loads(arguments) == {"city": "Paris"}
        assert choice["message"]["content"] == ("Hi." if "Hi." in FORMATS[name] else "")
        assert choice["message"]["reasoning_content"] == ("Hm." if name == "gpt-oss" else None)
        assert choice["finish_reason"] == "tool_calls"
