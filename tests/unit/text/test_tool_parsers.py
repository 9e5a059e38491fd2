"""Tool-call formats: one good text of each, and the inputs that broke such parsers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from ramet.errors import ConfigError
from ramet.text.chat_template import shipped_template
from ramet.text.events import Content, Message, ToolArguments, ToolCall, ToolEnd, ToolStart
from ramet.text.tools import FORMATS, detect_tool_format, make_tool_parser

SCHEMAS: dict[str, Mapping[str, Any]] = {
    "f": {"properties": {"a": {"type": "integer"}, "s": {"type": "string"}, "o": {"type": "object"}}},
    "g": {"properties": {}},
    "say": {"properties": {"t": {"type": "string"}}},
}


def whole(name: str, text: str, **options: Any) -> Message:
    """The message of a text in one piece, checked to be the same character by character."""
    message, joined = Message(), Message()
    parser = make_tool_parser(name, SCHEMAS, **options)
    message.add([*parser.push(text), *parser.finish()])
    parser = make_tool_parser(name, SCHEMAS, **options)
    for character in text:
        joined.add(parser.push(character))
    joined.add(parser.finish())
    assert joined == message
    return message


F1 = ToolCall("f", None, '{"a": 1}', True)
G = ToolCall("g", None, "{}", True)

GOOD: list[tuple[str, str, str, list[ToolCall]]] = [
    ("hermes", 'Sure. <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "Sure.", [F1]),
    (
        "qwen25",
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        "",
        [F1, G],
    ),
    ("hermes", '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]', "", [F1, G]),
    (
        "hermes",
        '<tool_call>{"arguments": "{\\"a\\": 1}", "id": "x", "name": "f"}</tool_call>',
        "",
        [ToolCall("f", "x", '{"a": 1}', True)],
    ),
    ("llama3", '<|python_tag|>{"name":"f","parameters":{"a": 1}}', "", [F1]),
    (
        "llama3",
        '{"name": "f", "parameters": {"a": 1}} ; {"type": "function", "name": "g", "arguments": {}}',
        "",
        [F1, G],
    ),
    ("llama3", '{"answer": {"name": "f"}}', '{"answer": {"name": "f"}}', []),
    (
        "pythonic",
        '[f(a=1, s="x]", o={"k": [true, None]}), g()]',
        "",
        [ToolCall("f", None, '{"a": 1, "s": "x]", "o": {"k": [true, null]}}', True), G],
    ),
    ("pythonic", "<|python_start|>[g()]<|python_end|>", "", [G]),
    ("pythonic", "[1] says the footnote", "[1] says the footnote", []),
    ("mistral", 'Ok [TOOL_CALLS] [{"name":"f","arguments":{"a": 1}}, {"name":"g","arguments":{}}]', "Ok", [F1, G]),
    (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}',
        "",
        [F1, ToolCall("g", "abc123def", "{}", True)],
    ),
    (
        "deepseekv3",
        "Hm.<｜tool▁calls▁begin｜>"
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Hm.",
        [F1, G],
    ),
    (
        "deepseekv31",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        [F1, G],
    ),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|>"
        '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>'
        "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "",
        [ToolCall("f", "functions.f:0", '{"a": 1}', True), ToolCall("g", "functions.g:1", "{}", True)],
    ),
    (
        "glm45",
        "Look:\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>s</arg_key>\n<arg_value>1</arg_value>\n"
        "</tool_call>\n<tool_call>g\n</tool_call>",
        "Look:",
        [ToolCall("f", None, '{"a": 1, "s": "1"}', True), G],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\n\ntwo\nlines\n\n</parameter>\n</function>\n"
        "</tool_call><tool_call><function=g></function></tool_call>",
        "",
        [ToolCall("f", None, '{"a": 1, "s": "\\ntwo\\nlines\\n"}', True), G],
    ),
    (
        "minimax-m2",
        'So:\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n'
        '<parameter name="s">\n1\n</parameter>\n'
        '</invoke>\n<invoke name="g">\n</invoke>\n</minimax:tool_call>',
        "So:",
        [ToolCall("f", None, '{"a": 1, "s": "1"}', True), G],
    ),
    (
        "deepseekv32",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="s" string="true">null and "more"'
        "</｜DSML｜parameter>\n"
        '<｜DSML｜parameter name="o" string="false">{"k": [1]}</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="f">{"a": 1}</｜DSML｜invoke></｜DSML｜function_calls>',
        "",
        [ToolCall("f", None, '{"s": "null and \\"more\\"", "o": {"k": [1]}}', True), F1],
    ),
    ("deepseekv4", '<｜DSML｜tool_calls><｜DSML｜invoke name="g"/></｜DSML｜tool_calls>', "", [G]),
    (
        "gpt-oss",
        "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"a": 1}<|call|>'
        "<|start|>assistant to=functions.g<|channel|>commentary<|message|>{}<|call|>",
        "Let me see.",
        [F1, G],
    ),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), GOOD)
def test_good_texts(name: str, text: str, content: str, calls: list[ToolCall]) -> None:
    assert whole(name, text) == Message(content=content, tool_calls=calls)


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("text", ["", "Hello.", " a < b, [x] {y} \n", "<tool", "[TOOL", "<|python", '"'])
def test_plain_answers_pass_unchanged(name: str, text: str) -> None:
    assert whole(name, text) == Message(content=text)


def test_arguments_flow_before_the_call_is_over() -> None:
    parser = make_tool_parser("hermes", SCHEMAS)
    assert parser.push('Hi <tool_call>{"name": "f", ') == [Content("Hi"), ToolStart(0, "f")]
    assert parser.push('"arguments": {"s": "lo') == [ToolArguments(0, '{"s": "lo')]
    assert parser.push('ng"}') == [ToolArguments(0, 'ng"}')]
    assert parser.push("}") == [ToolEnd(0, complete=True)]
    assert parser.finish() == []


def test_string_parameters_flow_before_they_are_over() -> None:
    parser = make_tool_parser("qwen3_coder", SCHEMAS)
    assert parser.push("<function=f><parameter=s>\nfirst ") == [ToolStart(0, "f"), ToolArguments(0, '{"s": "first ')]
    assert parser.push('"second"\n') == [ToolArguments(0, '\\"second\\"')]


def test_text_behind_a_call_never_raises() -> None:
    message = whole("llama3", '{"name":"f","arguments":{"a":1}} tail')
    assert message == Message(content="tail", tool_calls=[ToolCall("f", None, '{"a":1}', True)])


def test_nested_values_between_tags_lose_nothing() -> None:
    value: dict[str, Any] = {"list": [{"k": f'"{n}" \\ 你{n}', "n": [n, None, {"x": {}}]} for n in range(6)]}
    written = json.dumps(value, ensure_ascii=False)
    text = f"<tool_call><function=f><parameter=o>{written}</parameter></function></tool_call>"
    [call] = whole("qwen3_coder", text).tool_calls
    assert call.arguments == json.dumps({"o": value}, ensure_ascii=False)


def test_a_second_call_opening_in_the_chunk_that_closes_the_first() -> None:
    first = "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"
    text = first + "<tool_call><function=g>\n</function></tool_call>"
    assert whole("qwen3_coder", text).tool_calls == [F1, G]


def test_a_call_cut_by_the_limit_is_not_complete_and_hides_nothing() -> None:
    text = '<tool_call>{"name":"g","arguments":{}}</tool_call><tool_call>{"name":"f","arguments":{"s":"/t'
    calls = whole("hermes", text).tool_calls
    assert calls == [G, ToolCall("f", None, '{"s":"/t', False)]


@pytest.mark.parametrize(
    "name", ["hermes", "qwen3_coder", "glm45", "kimi_k2", "deepseekv3", "mistral", "gpt-oss", "minimax-m2"]
)
def test_every_prefix_of_a_good_text_is_never_a_different_complete_call(name: str) -> None:
    text, calls = next((text, calls) for each, text, _, calls in GOOD if each == name)
    for cut in range(len(text)):
        shown = whole(name, text[:cut]).tool_calls
        assert [call for call in shown if call.complete] == calls[: sum(call.complete for call in shown)]


def test_a_value_that_does_not_fit_its_type_is_kept_as_text() -> None:
    [call] = whole("qwen3_coder", "<function=f><parameter=a>next Tue</parameter></function>").tool_calls
    assert call == ToolCall("f", None, '{"a": "next Tue"}', True)


@pytest.mark.parametrize(
    "tag", ["<parameter=\ncmd>ls</parameter>", "<parameter=ids: [1]</parameter>", "<parameter=>x</parameter>"]
)
def test_slightly_wrong_tags_are_dropped_and_the_json_is_closed(tag: str) -> None:
    text = f"<tool_call><function=f>{tag}<parameter=a>1</parameter></function></tool_call>"
    assert whole("qwen3_coder", text).tool_calls == [F1]
    assert whole("qwen3_coder", f"<function=g>{tag}</function>").tool_calls == [G]


def test_literal_characters_stay_literal() -> None:
    arguments = '{"t": "Grüße 你"}'
    assert whole("hermes", f'<tool_call>{{"name":"say","arguments":{arguments}}}').tool_calls[0].arguments == arguments
    tagged = "<function=say><parameter=t>Grüße 你</parameter></function>"
    assert whole("qwen3_coder", tagged).tool_calls[0].arguments == arguments


def test_unknown_functions_are_dropped_and_text_survives() -> None:
    text = 'a <tool_call>{"name":"rm","arguments":{}}</tool_call> b <tool_call>{"name":"g","arguments":{}}</tool_call>'
    assert whole("hermes", text) == Message(content="a b", tool_calls=[G])
    parser = make_tool_parser("hermes", None)
    assert ToolStart(0, "rm") in parser.push(text)


def test_only_the_first_call_without_parallel_calls() -> None:
    text = '<tool_call>[{"name":"f","arguments":{"a": 1}},{"name":"g"}]</tool_call><tool_call>{"name":"g"}</tool_call>'
    assert whole("hermes", text, parallel=False) == Message(tool_calls=[F1])


@pytest.mark.parametrize("body", ["oops", '{"nom": 1}', '{"name": 7}', "[]", "{", '{"name": "f"'])
def test_what_is_no_call_is_content(body: str) -> None:
    text = f"x <tool_call>{body}"
    message = whole("hermes", text)
    if message.tool_calls:
        assert not message.tool_calls[0].complete
    else:
        assert message.content == text


def test_null_is_null_for_every_type_and_a_longer_word_is_not() -> None:
    text = "<function=f><parameter=s>NULL</parameter><parameter=a>null</parameter></function>"
    assert whole("qwen3_coder", text).tool_calls[0].arguments == '{"s": null, "a": null}'
    text = "<function=f><parameter=s>nullable</parameter></function>"
    assert whole("qwen3_coder", text).tool_calls[0].arguments == '{"s": "nullable"}'


def test_a_string_that_says_so_is_never_null() -> None:
    value = '<｜DSML｜parameter name="s" string="true">null</｜DSML｜parameter>'
    text = f'<｜DSML｜function_calls><｜DSML｜invoke name="f">{value}</｜DSML｜invoke>'
    assert whole("deepseekv32", text).tool_calls[0].arguments == '{"s": "null"}'


def test_arguments_that_are_no_object_are_not_complete() -> None:
    assert not whole("hermes", '<tool_call>{"name":"f","arguments":[1]}</tool_call>').tool_calls[0].complete
    assert not whole("hermes", '<tool_call>{"name":"f","arguments":{a}}</tool_call>').tool_calls[0].complete


def test_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"hermes.*qwen3_coder"):
        make_tool_parser("klingon")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (shipped_template("qwen"), "qwen25"),
        (shipped_template("chatml"), None),
        ("{{ '<tool_call>\\n<function=' + call.name }}", "qwen3_coder"),
        ("{{ '<tool_call>' + call.name + '<arg_key>' }}", "glm45"),
        (
            "{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + kind + '<｜tool▁sep｜>' + name + '\\n```json\\n' }}",
            "deepseekv3",
        ),
        ("{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' }}", "deepseekv31"),
        ("{{ '[TOOL_CALLS] ' }}", "mistral"),
        ("{{ '<|python_tag|>' }}", "llama3"),
    ],
)
def test_formats_are_told_by_the_template(template: str, name: str | None) -> None:
    assert detect_tool_format(template) == name
