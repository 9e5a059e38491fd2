"""Reasoning formats: one rule for every path."""

from __future__ import annotations

import pytest

from ramet.errors import ConfigError
from ramet.text.events import Content, Message, Reasoning, ToolCall
from ramet.text.output import OutputParser
from ramet.text.reasoning import detect_reasoning_format, make_reasoning_parser, opens_thinking
from ramet.text.reasoning.tags import TagReasoning
from ramet.text.scanner import Parser
from ramet.text.tools import make_tool_parser


def split(parser: Parser, pieces: list[str]) -> tuple[str, str]:
    message = Message()
    for piece in pieces:
        message.add(parser.push(piece))
    message.add(parser.finish())
    return message.reasoning, message.content


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n <think>a</think>b", ("a", "b")),
        ("Ok.<think>a</think>b", ("a", "Ok.b")),
        ("<think>\na\nb\n</think>\n\nanswer\n", ("a\nb", "answer\n")),
        ("no thinking", ("", "no thinking")),
        ("", ("", "")),
        ("  ", ("", "  ")),
        ("<think>never closed ", ("never closed", "")),
        ("<think></think>b <think>c</think>", ("", "b <think>c</think>")),
    ],
)
def test_text_that_starts_outside(text: str, expected: tuple[str, str]) -> None:
    for pieces in ([text], list(text)):
        assert split(make_reasoning_parser("qwen3", prompt_is_open=False), pieces) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a</think>b", ("a", "b")),
        ("<think>a</think>b", ("a", "b")),
        ("a", ("a", "")),
        ("</think>b", ("", "b")),
    ],
)
def test_text_that_starts_inside(text: str, expected: tuple[str, str]) -> None:
    for pieces in ([text], list(text)):
        assert split(make_reasoning_parser("deepseek-r1", prompt_is_open=False), pieces) == expected


def test_an_answer_that_begins_like_a_tag_is_released_at_once() -> None:
    parser = make_reasoning_parser("qwen3", prompt_is_open=False)
    assert parser.push("<") == []
    assert parser.push("table") == [Content("<table")]
    assert parser.push(">") == [Content(">")]


def test_thinking_flows() -> None:
    parser = make_reasoning_parser("qwen3", prompt_is_open=True)
    assert parser.push("one ") == [Reasoning("one")]
    assert parser.push("two<") == [Reasoning(" two")]
    assert parser.push("3") == [Reasoning("<3")]


@pytest.mark.parametrize("pieces", [["<mm:t>", "x", "</mm:t>", "y"], list("<mm:t>x</mm:t>y")])
def test_custom_tags_as_one_token_or_many(pieces: list[str]) -> None:
    assert split(TagReasoning("<mm:t>", "</mm:t>", starts_inside=False), pieces) == ("x", "y")


def test_a_tool_call_ends_thinking_and_reaches_the_tool_parser() -> None:
    parser = OutputParser(make_reasoning_parser("qwen3", prompt_is_open=True), make_tool_parser("qwen25"))
    message = Message()
    message.add(parser.push('hm\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'))
    message.add(parser.finish())
    assert message == Message(reasoning="hm", tool_calls=[ToolCall("f", None, '{"a": 1}', True)])


def test_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"a": 1}<|call|><|start|>assistant<|channel|>final<|message|>Done.<|return|>'
    )
    for pieces in ([text], list(text)):
        parser = OutputParser(make_reasoning_parser("gpt-oss", prompt_is_open=False), make_tool_parser("gpt-oss"))
        message = Message()
        for piece in pieces:
            message.add(parser.push(piece))
        message.add(parser.finish())
        assert message == Message(
            content="Done.", reasoning="Think.", tool_calls=[ToolCall("f", None, '{"a": 1}', True)]
        )


def test_without_parsers_everything_is_content() -> None:
    parser = OutputParser()
    assert parser.push("<think>x") == [Content("<think>x")]
    assert parser.finish() == []


def test_whether_a_prompt_leaves_the_thinking_open() -> None:
    assert opens_thinking("qwen3", "<|im_start|>assistant\n<think>\n")
    assert not opens_thinking("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not opens_thinking("qwen3", "what does <think> mean?<|im_end|>\n<|im_start|>assistant\n")
    assert opens_thinking("qwen3", "…assistant\n<think>so far", continued="<think>so far")
    assert not opens_thinking("qwen3", "…assistant\n<think>a</think>so", continued="<think>a</think>so")


def test_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"deepseek-r1.*qwen3"):
        make_reasoning_parser("klingon", prompt_is_open=False)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<think>\\n' if enable_thinking }}", "qwen3"),
        ("{{ message.content.split('</think>')[-1] }}<|tool_calls_section_begin|>", "kimi_k2"),
        ("<|start|>assistant<|channel|>analysis", "gpt-oss"),
        ("[THINK]", "mistral"),
        ("plain", None),
    ],
)
def test_formats_are_told_by_the_template(template: str, name: str | None) -> None:
    assert detect_reasoning_format(template) == name
