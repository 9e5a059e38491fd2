"""Structural tags in both dialects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ramet.errors import RequestError
from ramet.grammar import CompiledGrammar

Accepts = Callable[..., bool]
Compile = Callable[..., CompiledGrammar]

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
F = {"begin": "<f=a>", "schema": NUMBER, "end": "</f>"}
G = {"begin": "<f=b>", "schema": {"type": "null"}, "end": "</f>"}
H = {"begin": "<h>", "schema": True, "end": ""}


def legacy(*structures: Any, triggers: list[str] | None = None, **options: Any) -> str:
    tag = {"type": "structural_tag", "structures": structures, "triggers": triggers or ["<f="], **options}
    return json.dumps(tag)


def new(format: Any) -> str:
    return json.dumps({"type": "structural_tag", "format": format})


@pytest.mark.parametrize(
    ("tag", "good", "bad"),
    [
        (legacy(F, G), 'say <f=a>{"n":1}</f> and <f=b>null</f>.', "say <f=c>"),
        (legacy(F, G), "only text, 1 < 2", '<f=a>{"n":"x"}</f>'),
        (legacy(F, H, triggers=["<f=", "<h"]), '<h>[1]<f=a>{"n":1}</f>', "<hx"),
        (legacy(F, at_least_one=True), '<f=a>{"n":1}</f> done', "no call"),
        (legacy(F, at_least_one=True, stop_after_first=True), '<f=a>{"n":1}</f>', '<f=a>{"n":1}</f> more'),
        (legacy(F, stop_after_first=True), 'hm <f=a>{"n":1}</f>', 'hm <f=a>{"n":1}</f> more'),
        (new({"type": "const_string", "value": "a/b\n"}), "a/b\n", "a"),
        (new({"type": "regex", "pattern": r"\d+"}), "12", "a"),
        (new({"type": "grammar", "grammar": 'root ::= "x" root?'}), "xx", "y"),
        (new({"type": "ebnf", "ebnf": 'start: "x"'}), "x", "xx"),
        (new({"type": "json_schema", "json_schema": json.dumps(NUMBER)}), '{"n":1}', "{}"),
        (new({"type": "any_text"}), "any\nthing", b"\xff"),
        (new({"type": "any_text", "excludes": ["bad"]}), "ba good d", "so bad"),
        (
            new({"type": "tag", "begin": "<", "content": {"type": "any_text"}, "end": ["!>", "?>"]}),
            "<a>b?>",
            "<a!>b",
        ),
        (
            new({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "const_string", "value": "END"}]}),
            "the EN END",
            "END more",
        ),
        (
            new(
                {
                    "type": "sequence",
                    "elements": [
                        {"type": "any_text"},
                        {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "x+"}, "end": "</a>"},
                    ],
                }
            ),
            "hi <a>xx</a>",
            "hi <a>y",
        ),
        (
            new({"type": "or", "elements": [{"type": "const_string", "value": v} for v in ("yes", "no")]}),
            "no",
            "maybe",
        ),
        (new({"type": "plus", "content": {"type": "const_string", "value": "ab"}}), "abab", ""),
        (new({"type": "star", "content": {"type": "const_string", "value": "ab"}}), "", "a"),
        (new({"type": "optional", "content": {"type": "const_string", "value": "ab"}}), "ab", "abab"),
        (
            new(
                {
                    "type": "tags_with_separator",
                    "separator": ", ",
                    "at_least_one": True,
                    "tags": [{"begin": "(", "content": {"type": "regex", "pattern": "[a-z]"}, "end": ")"}],
                }
            ),
            "(a), (b)",
            "",
        ),
        (new({"type": "sequence", "elements": []}), "", "a"),
    ],
)
def test_texts_of_structural_tags(accepts: Accepts, tag: str, good: str, bad: str | bytes) -> None:
    assert accepts("structural_tag", tag, good)
    assert not accepts("structural_tag", tag, bad)


def test_special_tokens_are_taken_as_tokens(compiled: Compile) -> None:
    call = {"begin": '<call>{"name":"f","arguments":', "schema": NUMBER, "end": "}</call>"}
    matcher = compiled("structural_tag", legacy(call, triggers=["<call>"])).matcher()
    assert all(matcher.accept(byte) for byte in b"text <call")  # spelled out it is only text
    assert matcher.accept(258)
    assert all(matcher.accept(byte) for byte in b'{"name":"f","arguments":{"n":1}}')
    row = np.zeros(10, np.uint32)
    matcher.fill_mask(row)
    assert np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() == [259]
    assert matcher.accept(259)
    assert matcher.accepting


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "#: must be an object"),
        ('{"type":"structural_tag"}', "needs a format"),
        (legacy({"begin": "<x>", "schema": True, "end": ""}), "#/tags/0/begin: must start with one of the triggers"),
        (legacy({"begin": "<f=", "schema": {"uniqueItems": True}, "end": ""}), "#/uniqueItems"),
        (legacy({"schema": True}), "#/tags/0: must be an object with a non-empty begin"),
        (legacy(F, triggers=[""]), "#/triggers: must be a non-empty list"),
        (legacy(F, at_least_one=1), "#/at_least_one: must be true or false"),
        (new({"type": "what"}), "#/format: its type must be one of"),
        (new({"type": "regex", "pattern": 5}), "#/format/pattern: must be a string"),
        (new({"type": "regex", "pattern": "("}), "unclosed group"),
        (new({"type": "or", "elements": []}), "#/format/elements: must not be empty"),
        (new({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "any_text"}]}), "#/format/elements/1"),
        (new({"type": "json_schema", "json_schema": {}, "style": "xml"}), "#/format/style"),
    ],
)
def test_wrong_tags_are_refused_with_a_pointer(compiled: Compile, tag: str, words: str) -> None:
    with pytest.raises(RequestError, match=r"^Failed to compile structural_tag grammar: ") as caught:
        compiled("structural_tag", tag)
    assert words in caught.value.message
    assert caught.value.field == "structural_tag"


def test_formats_may_not_nest_for_ever(compiled: Compile) -> None:
    format: Any = {"type": "any_text"}
    for _ in range(60):
        format = {"type": "optional", "content": format}
    with pytest.raises(RequestError, match="nested deeper"):
        compiled("structural_tag", new(format))
