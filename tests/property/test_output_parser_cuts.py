"""Every reasoning and tool-call format: however a text is cut, the events join to the same message."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.text import reasoning, tools
from ramet.text.events import Message
from ramet.text.output import OutputParser
from ramet.text.scanner import Parser

SCHEMAS = {
    "f": {"type": "object", "properties": {"a": {"type": "integer"}, "s": {"type": "string"}, "o": {"type": "object"}}},
    "g": {"type": "object", "properties": {}},
}

#: The words of each format, from which texts are put together, sensible and not.
TOOL_WORDS: dict[str, list[str]] = {
    "hermes": [
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {"a": 1}}',
        '{"name":"g"}',
        "[",
        "]",
        ",",
        "<tool",
    ],
    "llama3": ["<|python_tag|>", '{"name": "f", "parameters": {"s": "x;}"}}', ";", '{"x": 1}', "{", "<|python"],
    "mistral": [
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "f",
        '{"a": 1}',
        '[{"name": "f", "arguments": {}}, {"name": "g"}]',
    ],
    "deepseekv3": [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "function<｜tool▁sep｜>f",
        "\n```json\n",
        '{"a": 1}',
        "\n```",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ],
    "deepseekv31": [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "f<｜tool▁sep｜>",
        '{"a": 1}',
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ],
    "kimi_k2": [
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "functions.f:0",
        "<|tool_call_argument_begin|>",
        '{"a": 1}',
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ],
    "qwen3_coder": [
        "<tool_call>",
        "\n",
        "<function=f>",
        "<parameter=s>",
        "<parameter=a>",
        "\nnul",
        "l",
        "text\n",
        "</parameter>",
        "</function>",
        "</tool_call>",
        "<parameter=\nx>",
        "<function=",
    ],
    "glm45": [
        "<tool_call>",
        "f",
        "\n",
        "<arg_key>",
        "a",
        "</arg_key>",
        "<arg_value>",
        "1",
        "</arg_value>",
        "</tool_call>",
        "f\n<arg_key>s</arg_key>\n<arg_value>x y</arg_value>",
    ],
    "pythonic": ["[f(a=1", ", s='x]')", ", g()", "]", "[", "<|python_start|>", "<|python_end|>", "\\", '"'],
    "gpt-oss": [
        "<|start|>assistant",
        "<|channel|>",
        "analysis",
        "final",
        "commentary to=functions.f ",
        "<|constrain|>json",
        "<|message|>",
        '{"a": 1}',
        "<|call|>",
        "<|end|>",
        "<|return|>",
    ],
}
for _name, _outer, _mark in (
    ("minimax-m2", "minimax:tool_call", ""),
    ("deepseekv32", "function_calls", "｜DSML｜"),
    ("deepseekv4", "tool_calls", "｜DSML｜"),
):
    TOOL_WORDS[_name] = [
        f"<{_mark}{_outer}>",
        f'<{_mark}invoke name="f">',
        f'<{_mark}invoke name="g"/>',
        f'<{_mark}parameter name="a" string="false">',
        f'<{_mark}parameter name="s">',
        "1",
        "\nte",
        '{"a": 1}',
        f"</{_mark}parameter>",
        f"</{_mark}invoke>",
        f"</{_mark}{_outer}>",
    ]
COMMON = [" ", "\n", "x", "Grüße 你", "<", "{", "}", '"', "null"]


def cuts_agree(data: st.DataObject, make: Callable[[], Parser | OutputParser], text: str) -> Message:
    whole = Message()
    parser = make()
    whole.add(parser.push(text))
    whole.add(parser.finish())
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    joined = Message()
    parser = make()
    for start, end in zip([0, *places], [*places, len(text)], strict=True):
        joined.add(parser.push(text[start:end]))
    joined.add(parser.finish())
    assert joined == whole
    single = Message()
    parser = make()
    for character in text:
        single.add(parser.push(character))
    single.add(parser.finish())
    assert single == whole
    return whole


def test_every_format_has_words() -> None:
    named = {tools.FORMATS[name] for name in TOOL_WORDS}
    assert named == set(tools.FORMATS.values())


@pytest.mark.parametrize("name", sorted(TOOL_WORDS))
@given(data=st.data())
@settings(max_examples=60)
def test_tool_calls_under_every_cut(name: str, data: st.DataObject) -> None:
    words = st.sampled_from([*TOOL_WORDS[name], *TOOL_WORDS[name], *COMMON])
    text = "".join(data.draw(st.lists(words, max_size=14)))
    message = cuts_agree(data, lambda: tools.make_tool_parser(name, SCHEMAS), text)
    assert all(call.name in SCHEMAS for call in message.tool_calls)


@pytest.mark.parametrize("name", sorted(reasoning.FORMATS))
@given(data=st.data(), inside=st.booleans())
@settings(max_examples=30)
def test_reasoning_under_every_cut(name: str, data: st.DataObject, inside: bool) -> None:
    form = reasoning.FORMATS[name]
    words = [form.opening, form.closing, *form.also_ends, *COMMON]
    if name == "gpt-oss":
        words += TOOL_WORDS["gpt-oss"]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=10)))
    cuts_agree(data, lambda: reasoning.make_reasoning_parser(name, prompt_is_open=inside), text)


@given(data=st.data())
def test_both_parsers_together_under_every_cut(data: st.DataObject) -> None:
    words = ["<think>", "</think>", *TOOL_WORDS["hermes"], *COMMON]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=14)))
    cuts_agree(
        data,
        lambda: OutputParser(
            reasoning.make_reasoning_parser("qwen3", prompt_is_open=True), tools.make_tool_parser("hermes", SCHEMAS)
        ),
        text,
    )
