"""JSON Schemas: what is enforced, what is refused and where (cases F01 to F14, F20, D13)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ramet.errors import RequestError
from ramet.grammar import CompiledGrammar, schema

Accepts = Callable[..., bool]
Compile = Callable[..., CompiledGrammar]


def refusal(compiled: Compile, schema: Any) -> str:
    with pytest.raises(RequestError) as caught:
        compiled("json_schema", schema if isinstance(schema, str) else json.dumps(schema))
    assert caught.value.field == "json_schema"
    assert caught.value.message.startswith("Failed to compile json_schema grammar: ")
    assert "coerce_one_of" not in caught.value.message
    return caught.value.message


def two_levels_deep(keyword: str, value: Any) -> dict[str, Any]:
    inner = {keyword: value}
    return {"type": "object", "properties": {"a": {"type": "array", "items": {"properties": {"b/c": inner}}}}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "string", "format": "x-moon"}, "#/format: unknown format"),
        ({"type": "objekt"}, "#/type: 'objekt' is not a JSON type"),
        ("{not json", "not valid JSON"),
        ('{"minimum": NaN}', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ([], "#: a schema is an object"),
        (5, "#: a schema is an object"),
        (False, "matches nothing"),
        ({"type": []}, "#/type: must be"),
        ({"properties": []}, "#/properties: must be an object"),
        ({"anyOf": {}}, "#/anyOf: must be a list"),
        ({"required": "a"}, "#/required: must be a list"),
        ({"items": 5}, "#/items: a schema is"),
        ({"multipleOf": 0}, "#/multipleOf: must be a number above 0"),
        ({"$ref": 5}, "#/$ref: must be a pointer"),
        ({"$ref": "http://elsewhere/x"}, "#/$ref: must be a pointer"),
        ({"$ref": "#/$defs/nope"}, "#/$ref: #/$defs/nope does not exist"),
        ({"type": "integer", "minimum": 5, "maximum": 2}, "Unsatisfiable"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "Unsatisfiable"),
        ({"properties": {"x": {"enum": []}}, "required": ["x"], "type": "object"}, "#/properties/x/enum"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf can be enforced only where"),
        ({"minProperties": 2, "type": "object"}, "#/minProperties"),
        ({"type": "number", "exclusiveMinimum": 29, "maximum": 29.5}, "#/exclusiveMinimum: cannot be enforced beside"),
        ({"type": "number", "exclusiveMaximum": 0.1234567890123456}, "#/exclusiveMaximum: an exclusive bound can"),
        ({"const": "a\x01"}, "#/const: control characters"),
        ({"type": "string", "pattern": "a\\x01"}, "#/pattern: control characters"),
        ({"type": "string", "pattern": "("}, "unclosed group"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"properties": {"a": {"$id": "http://x/y"}}}, "#/properties/a/$id"),
    ],
)
def test_f01_f05_f11_what_is_no_schema_or_matches_nothing_is_refused(
    compiled: Compile, schema: Any, words: str
) -> None:
    assert words in refusal(compiled, schema)


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("uniqueItems", True),
        ("contains", {"const": 1}),
        ("minContains", 2),
        ("propertyNames", {"pattern": "^a"}),
        ("not", {"const": 1}),
        ("if", {"const": 1}),
        ("dependentRequired", {"a": ["b"]}),
        ("dependentSchemas", {"a": {"required": ["b"]}}),
        ("dependencies", {"a": ["b"]}),
        ("unevaluatedProperties", False),
        ("unevaluatedItems", False),
        ("$dynamicRef", "#a"),
        ("extends", {}),
        ("disallow", "string"),
        ("x-guidance", {"lenient": True}),
    ],
)
def test_f02_keywords_without_enforcement_are_refused_where_they_stand(
    compiled: Compile, keyword: str, value: Any
) -> None:
    schema = two_levels_deep(keyword, value)
    assert f"#/properties/a/items/properties/b~1c/{keyword}: " in refusal(compiled, schema)


@pytest.mark.parametrize("data", ["enum", "const", "default", "examples"])
def test_f02_no_false_alarm_for_data(accepts: Accepts, data: str) -> None:
    value: Any = {"uniqueItems": True, "not": [{"type": "objekt"}], "$ref": "#/nowhere"}
    schema = {"type": "object", data: [value] if data in ("enum", "examples") else value}
    assert accepts("json_schema", json.dumps(schema), json.dumps(value))


def test_f02_no_false_alarm_for_property_names_harmless_values_and_unused_definitions(accepts: Accepts) -> None:
    schema = {
        "type": "object",
        "properties": {"not": {"type": "array", "uniqueItems": False, "items": {"type": "integer", "format": "int32"}}},
        "required": ["not"],
        "unevaluatedProperties": True,
        "$defs": {"unused": {"uniqueItems": True}},
    }
    assert accepts("json_schema", json.dumps(schema), '{"not":[1,1]}')


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "multipleOf": 3}, "6", "7"),
        ({"type": "number", "multipleOf": 0.1}, "0.3", "0.35"),
        ({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}, '{"ab":1}', '{"ab":"x"}'),
        ({"type": "object", "minProperties": 1}, '{"a":1}', "{}"),
        ({"type": "object", "maxProperties": 1}, '{"a":1}', '{"a":1,"b":2}'),
        ({"type": "object", "required": ["k"]}, '{"k":0}', "{}"),
        ({"type": "array", "minItems": 1}, "[0]", "[]"),
        ({"items": [{"type": "integer"}], "additionalItems": False, "type": "array"}, "[1]", "[1,2]"),
        ({"type": "number", "minimum": 5, "exclusiveMinimum": True}, "6", "5"),
        ({"type": "number", "exclusiveMinimum": 29, "maximum": 30.5}, "29.1", "29.0"),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, "0.25", "0.00"),
        ({"type": "number", "exclusiveMinimum": 0}, "3", "0"),
        ({"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 7}, "6", "5"),
        ({"type": "string", "maxLength": 2}, '"é鱼"', '"abc"'),
        ({"type": "string", "pattern": "^ok\\!$"}, '"ok!"', '"ok"'),
        ({"type": "string", "pattern": "b"}, '"abc"', '"ac"'),
        ({"type": "string", "pattern": "^\\d$"}, '"1"', '"٣"'),
        ({"oneOf": [{"const": 1}, {"const": 2, "title": "two"}]}, "2", "3"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, '"a"', "null"),
        ({"type": ["integer", "null"]}, "null", '"a"'),
        (True, '[{"a":null}]', "x"),
        ("$$ANY$$", '[{"a":null}]', "x"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a":1,"b":"x"}', '{"a":1,"a":"x"}'),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a":1}', '{"\\u0061":"x"}'),
        ({"type": "string"}, '"é"', '"\\ud800"'),
    ],
)
def test_f02_f04_what_is_taken_is_enforced(accepts: Accepts, schema: Any, good: str, bad: str) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    assert accepts("json_schema", text, good)
    assert not accepts("json_schema", text, bad)


ENDLESS = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
CHAIN = {"a": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "required": ["x"]}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": ENDLESS},
        {"$ref": "#"},
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": ENDLESS},
        {"$ref": "#/$defs/a", "$defs": CHAIN},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"allOf": [{"$ref": "#"}, {"type": "null"}]},
    ],
)
def test_f07_references_without_end_are_refused(compiled: Compile, schema: Any) -> None:
    assert "refers to itself without end" in refusal(compiled, schema)


@pytest.mark.parametrize(
    ("schema", "sample"),
    [
        ({"type": "object", "properties": {"n": {"$ref": "#"}}, "required": []}, '{"n":{"n":{}}}'),
        ({"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "null"}]}, "[null,[[]]]"),
        ({"type": "array", "items": {"$ref": "#"}}, "[[],[[]]]"),
    ],
)
def test_f07_recursion_that_can_end_works(accepts: Accepts, schema: Any, sample: str) -> None:
    assert accepts("json_schema", json.dumps(schema), sample)


@pytest.mark.parametrize("character", ["\t", "\n", "\0"])
def test_f08_raw_control_characters_are_not_allowed_in_strings(accepts: Accepts, character: str) -> None:
    schema = '{"type":"object","properties":{"t":{"type":"string"}}}'
    assert accepts("json_schema", schema, '{"t":"a\\tb"}')
    assert not accepts("json_schema", schema, f'{{"t":"a{character}b"}}')


@pytest.mark.parametrize("length", [1999, 2000, 2001, 100_000])
def test_f10_long_lengths_compile_nested_too(compiled: Compile, length: int) -> None:
    text = {"type": "string", "maxLength": length, "pattern": "^[a-z]*$"}
    schema = {"type": "array", "items": {"type": "object", "properties": {"t": text}, "required": ["t"]}}
    grammar = compiled("json_schema", json.dumps(schema))
    assert grammar.compile_s < 5
    matcher = grammar.matcher()
    for byte in b'[{"t":"' + b"a" * min(length, 2500):
        assert matcher.accept(byte)
    assert matcher.accept(ord("a")) is (length > 2500)


def test_f13_wide_item_ranges_stay_flat(compiled: Compile) -> None:
    schema = {"type": "array", "items": {"type": "number"}, "minItems": 20, "maxItems": 1500}
    matcher = compiled("json_schema", json.dumps(schema)).matcher()
    row = np.zeros(10, np.uint32)
    assert matcher.accept(ord("["))
    for i in range(1500):
        assert matcher.fill_mask(row)
        assert matcher.accept(ord("1"))
        assert matcher.copy().accept(ord("]")) is (i >= 19)
        assert matcher.accept(ord(",")) is (i < 1499)


@pytest.mark.parametrize(("multiple", "fine"), [(65536, True), (65537, False), (0.0001, True), (1e300, False)])
def test_multiples_are_bounded_by_what_they_cost(compiled: Compile, multiple: float, fine: bool) -> None:
    schema = {"type": "number", "multipleOf": multiple}
    if fine:
        compiled("json_schema", json.dumps(schema))
    else:
        assert "#/multipleOf" in refusal(compiled, schema)


def test_multiples_that_meet_are_bounded_together(compiled: Compile) -> None:
    both = {"allOf": [{"type": "integer", "multipleOf": 65521}, {"multipleOf": 65519}]}
    assert "common multiple" in refusal(compiled, both)
    apart = {"type": "object", "properties": {"a": {"multipleOf": 6551}, "b": {"multipleOf": 6553}}}
    compiled("json_schema", json.dumps(apart))


@pytest.mark.parametrize("places", [3000, 50_000])
def test_long_chains_of_references_are_compiled_or_refused_but_never_crash(compiled: Compile, places: int) -> None:
    definitions: dict[str, Any] = {f"d{i}": {"properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(places)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{places}": {"type": "integer"}}}
    text = json.dumps(schema)
    if places > 10_000:
        assert "exceed" in refusal(compiled, text)
    else:
        assert "places" in refusal(compiled, text)


def test_deep_chains_within_the_bound_compile(compiled: Compile) -> None:
    definitions: dict[str, Any] = {f"d{i}": {"properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(1900)}
    compiled("json_schema", json.dumps({"$ref": "#/$defs/d0", "$defs": {**definitions, "d1900": {"type": "integer"}}}))


@pytest.mark.parametrize("step", [1, -1])
def test_chains_are_checked_in_linear_time_whichever_way_they_run(step: int) -> None:
    places = range(1900)
    chained: dict[str, Any] = {f"p{i}": {"anyOf": [{"$ref": f"#/properties/p{i + step}"}]} for i in places}
    chained[f"p{places[-1] if step == 1 else 0}"] = {"type": "integer"}
    began_s = time.thread_time()
    schema.prepare(json.dumps({"properties": chained}), None)
    assert time.thread_time() - began_s < 2  # looking at every place again for each would take a minute


@pytest.mark.parametrize("favourite", [" ", "\n", "\t"])
def test_f14_a_model_that_prefers_blanks_still_comes_to_an_end(compiled: Compile, favourite: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x"]}, "b": {"const": 1}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    matcher = compiled("json_schema", json.dumps(schema)).matcher()
    row = np.zeros(10, np.uint32)
    text = bytearray()
    while not matcher.stopped:
        assert len(text) < 200
        assert matcher.fill_mask(row)
        bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        text.append(ord(favourite) if ord(favourite) in bits else next(int(bit) for bit in bits if bit > 0x20))
        assert matcher.accept(text[-1])
    assert json.loads(text) == {"a": "x", "b": 1}


def test_f14_whitespace_can_be_switched_off(accepts: Accepts) -> None:
    schema = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}'
    assert accepts("json_schema", schema, '{"a":1}', None)
    assert not accepts("json_schema", schema, '{"a": 1}', None)
    assert accepts("json_schema", schema, '{\n  "a": 1\n}')
    assert not accepts("json_schema", schema, '{"a":  1}')


@pytest.mark.parametrize("keyword", ["definitions", "$defs"])
def test_f20_both_words_for_definitions(accepts: Accepts, keyword: str) -> None:
    schema = {"type": "object", "properties": {"x": {"$ref": f"#/{keyword}/p~1q"}}, keyword: {"p/q": {"type": "null"}}}
    assert accepts("json_schema", json.dumps(schema), '{"x":null}')
    assert not accepts("json_schema", json.dumps(schema), '{"x":1}')


def test_d13_an_object_without_properties_takes_few_tokens(compiled: Compile) -> None:
    matcher = compiled("json_schema", '{"type":"object","properties":{},"additionalProperties":false}').matcher()
    steps = 0
    while not matcher.stopped:
        steps += 1
        assert any(matcher.accept(token) for token in (ord(" "), ord("{"), ord("}")))
    assert steps <= 3
