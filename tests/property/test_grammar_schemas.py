"""500 random schemas: whatever is generated under one is valid by an independent validator, and generation ends."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from ramet.executor.base import U32
from ramet.grammar import GrammarCompiler, GrammarSpec

EOS = 256
PIECES = [
    '{"',
    '":',
    '": ',
    '",',
    '", "',
    "true",
    "false",
    "null",
    "12",
    "-1",
    "0.5",
    "]}",
    "}}",
    "é",
    "鱼",
    "ab",
    "\n  ",
]
TOKENS = [bytes([value]) for value in range(256)] + [b"<eos>"] + [piece.encode() for piece in PIECES]
QUOTE = ord('"')
#: What brings a text nearer to its end, outside strings.
CLOSERS = np.array([ord("}"), ord("]"), EOS, TOKENS.index(b"]}"), TOKENS.index(b"}}")])
WORDS = ["name", "größe", "a/b", "~", "id", "价格", "x y", 'q"t']
SCHEMAS_PER_SEED, MAX_STEPS = 50, 4000


def scalar(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(-50, 50)
    return rng.choice(
        [
            {"type": "null"},
            {"type": "boolean"},
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)},
            {"type": "number", "exclusiveMinimum": low, "maximum": low + 1.5 + rng.random()},
            {"type": "integer", "multipleOf": rng.randint(1, 30), "minimum": 0, "maximum": 1000},
            {"type": "number", "multipleOf": rng.choice([0.5, 0.25, 2.5]), "minimum": 0, "maximum": 99},
            {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 9)},
            {"type": "string", "pattern": rng.choice(["^[A-Z]{2}-[0-9]{3}$", "^(ab|cd)+$", "x", "^\\w{1,5}$"])},
            {"type": "string", "format": rng.choice(["date", "uuid", "ipv4", "time"])},
            {"enum": rng.sample([None, True, 1, 2.5, "a", "ü", [1, "x"], {"k": None}], rng.randint(1, 4))},
            {"const": rng.choice([None, 0, "c", [], {"a": [1]}])},
            {"type": ["integer", "null"]},
        ]
    )


def schema(rng: random.Random, depth: int) -> dict[str, Any]:
    if depth == 0 or rng.random() < 0.3:
        return scalar(rng)
    kind = rng.choice(["object", "object", "array", "tuple", "anyOf", "map", "allOf", "oneOf", "ref"])
    if kind == "object":
        names = rng.sample(WORDS, rng.randint(0, 4))
        node: dict[str, Any] = {"type": "object", "properties": {name: schema(rng, depth - 1) for name in names}}
        node["required"] = rng.sample(names, rng.randint(0, len(names)))
        if rng.random() < 0.7:
            node["additionalProperties"] = False
        return node
    if kind == "array":
        least = rng.randint(0, 3)
        return {
            "type": "array",
            "items": schema(rng, depth - 1),
            "minItems": least,
            "maxItems": least + rng.randint(0, 3),
        }
    if kind == "tuple":
        return {
            "type": "array",
            "prefixItems": [schema(rng, depth - 1) for _ in range(2)],
            "items": False,
            "minItems": 2,
        }
    if kind == "anyOf":
        return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if kind == "oneOf":
        return {"oneOf": [{"const": 1}, {"enum": [2, 3]}, {"type": "string", "maxLength": 3}][: rng.choice([2, 2])]}
    if kind == "map":
        return {
            "type": "object",
            "patternProperties": {"^[a-c]{1,3}$": schema(rng, depth - 1)},
            "additionalProperties": False,
        }
    if kind == "allOf":
        return {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": rng.randint(3, 40)}]}
    return {"$ref": rng.choice(["#/$defs/leaf", "#/$defs/tree"])}


def root(rng: random.Random) -> dict[str, Any]:
    tree = {
        "type": "object",
        "properties": {"leaf": {"$ref": "#/$defs/leaf"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "required": ["leaf"],
        "additionalProperties": False,
    }
    return {**schema(rng, 3), "$defs": {"leaf": scalar(rng), "tree": tree}}


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENS, [EOS], [EOS], 290)


@pytest.mark.parametrize("seed", range(10))
def test_what_is_generated_under_a_schema_is_valid(compiler: GrammarCompiler, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(SCHEMAS_PER_SEED):
        wanted = root(rng)
        text = generate(compiler, wanted, seed * 1000 + number)
        try:
            jsonschema.validate(json.loads(text), wanted)
        except (ValueError, jsonschema.ValidationError) as error:
            raise AssertionError(f"seed {seed}, schema {number}: {json.dumps(wanted)} gave {text!r}") from error


def generate(compiler: GrammarCompiler, wanted: dict[str, Any], seed: int) -> str:
    """Random tokens from the masks; after a while closing ones first, so that it ends."""
    matcher = compiler.compile(GrammarSpec("json_schema", json.dumps(wanted)), timeout_s=30).matcher()
    rng = np.random.default_rng(seed)
    row: U32 = np.zeros(-(-290 // 32), np.uint32)
    ids: list[int] = []
    while not matcher.stopped:
        assert len(ids) < MAX_STEPS, f"{json.dumps(wanted)} does not end: {b''.join(TOKENS[i] for i in ids[:200])!r}"
        assert matcher.fill_mask(row), matcher.error
        bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        if rng.random() < min(len(ids) / 40, 0.9):
            in_string = {QUOTE, ord("z")} <= set(bits.tolist())
            closing = np.intersect1d(bits, [QUOTE] if in_string else CLOSERS)
            bits = closing if len(closing) else np.intersect1d(bits, [QUOTE]) if QUOTE in bits else bits
        ids.append(int(rng.choice(bits)))
        assert matcher.accept(ids[-1])
    assert matcher.accepting
    return b"".join(TOKENS[i] for i in ids if i != EOS).decode()
