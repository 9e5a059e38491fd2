"""Constrained generation on real executors: the same valid text natively and by the reference, alone and in company."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import ramet

CHECKPOINT = Path(__file__).parent.parent / "reference" / "checkpoints" / "llama"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 6}, "b": {"type": "integer", "minimum": 1, "maximum": 12}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def params(index: int) -> dict[str, Any]:
    """Different grammars, greedy and drawn, one without."""
    kinds: list[dict[str, Any]] = [
        {"json_schema": json.dumps(SCHEMA)},
        {"regex": "[a-f]{3,9}!"},
        {"ebnf": 'root ::= "(" root ")" | [0-9]{1,3}'},
        {"ignore_eos": True, "max_new_tokens": 12},
    ]
    return {"max_new_tokens": 60, "temperature": 0.9 * (index % 3), "sampling_seed": index, **kinds[index % 4]}


def answers(**options: Any) -> list[tuple[str, str]]:
    """(text, why it ended) of twelve requests at once."""
    with ramet.Engine(model_path=str(CHECKPOINT), **options) as engine:
        found = engine.generate(
            input_ids=[[1, 2, index + 3] for index in range(12)], sampling_params=[params(index) for index in range(12)]
        )
    return [(answer["text"], answer["meta_info"]["finish_reason"]["type"]) for answer in found]


@pytest.fixture(scope="module")
def native() -> list[tuple[str, str]]:
    return answers()


def test_what_ends_is_a_text_of_its_grammar(native: list[tuple[str, str]]) -> None:
    ended = [(index, text) for index, (text, why) in enumerate(native) if why == "stop"]
    assert len(ended) >= 6
    for index, text in ended:
        if index % 4 == 0:
            jsonschema.validate(json.loads(text), SCHEMA)
        elif index % 4 == 1:
            assert 3 <= len(text.removesuffix("!")) <= 9
            assert set(text.removesuffix("!")) <= set("abcdef")
        else:
            assert text.strip("()").isdigit()
            assert text.count("(") == text.count(")")


@pytest.mark.parametrize(
    "options", [{"retract_every": 3}, {"page_size": 1, "chunked_prefill_size": 16}, {"threads": 1}]
)
def test_the_same_text_whatever_happens_around_it(native: list[tuple[str, str]], options: dict[str, Any]) -> None:
    assert answers(**options) == native


def test_the_reference_masks_alike() -> None:
    for index, (text, why) in enumerate(answers(executor="reference")):
        if why == "stop" and index % 4 == 0:
            jsonschema.validate(json.loads(text), SCHEMA)
