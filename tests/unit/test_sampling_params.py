"""`parse` and `check` against section 5 of the surface: types, ranges, and bad inputs that servers like this met."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from ramet.errors import RequestError
from ramet.sampling_params import check, parse
from ramet.types import SamplingParams

V = 100


def refused(mapping: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(mapping)
    json.dumps(caught.value.message, allow_nan=False).encode()  # the answer can be rendered whatever was sent
    return caught.value


def test_nothing_gives_the_defaults() -> None:
    assert parse({}) == SamplingParams()
    assert SamplingParams().max_new_tokens == 128
    check(SamplingParams(), vocab_size=V)


def test_null_is_the_default_but_lifts_the_limit_of_new_tokens() -> None:
    every = dict.fromkeys(SamplingParams.__struct_fields__)
    assert parse(every) == SamplingParams(max_new_tokens=None)


def test_defaults_of_a_dialect_or_checkpoint() -> None:
    defaults = SamplingParams(max_new_tokens=16, temperature=0.6, top_k=20)
    params = parse({"top_k": 5, "temperature": None}, defaults=defaults)
    assert (params.max_new_tokens, params.temperature, params.top_k) == (16, 0.6, 5)


def test_every_field_arrives() -> None:
    mapping: dict[str, Any] = {
        "max_new_tokens": 7, "min_new_tokens": 2, "temperature": 1, "top_p": 0.5, "top_k": 3, "min_p": 0,
        "frequency_penalty": -2, "presence_penalty": 2, "repetition_penalty": 1.5, "logit_bias": {"3": -100, "4": 0.5},
        "sampling_seed": -(2**63), "stop": ["a", "b"], "stop_token_ids": [0, 99], "stop_regex": r"\d+",
        "ignore_eos": True, "no_stop_trim": True, "skip_special_tokens": False, "spaces_between_special_tokens": False,
        "n": 4, "json_schema": "{}", "regex": "", "ebnf": "", "structural_tag": "",
    }  # fmt: skip
    assert mapping.keys() == set(SamplingParams.__struct_fields__)
    params = parse(mapping)
    check(params, vocab_size=V)
    assert params == SamplingParams(
        max_new_tokens=7, min_new_tokens=2, temperature=1.0, top_p=0.5, top_k=3, frequency_penalty=-2.0,
        presence_penalty=2.0, repetition_penalty=1.5, logit_bias={3: -100.0, 4: 0.5}, sampling_seed=-(2**63),
        stop=("a", "b"), stop_token_ids=(0, 99), stop_regex=(r"\d+",), ignore_eos=True, no_stop_trim=True,
        skip_special_tokens=False, spaces_between_special_tokens=False, n=4, json_schema="{}",
    )  # fmt: skip
    assert type(params.temperature) is float


FLOATS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
INTS = ("max_new_tokens", "min_new_tokens", "top_k", "sampling_seed", "n")
FLAGS = ("ignore_eos", "no_stop_trim", "skip_special_tokens", "spaces_between_special_tokens")


@pytest.mark.parametrize("field", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", "inf", "1", True, [], {}, 10**400, 1j])
def test_a01_a02_not_a_finite_number(field: str, value: Any) -> None:
    error = refused({field: value})
    assert error.field == field
    assert field in error.message


@pytest.mark.parametrize("field", INTS)
@pytest.mark.parametrize("value", [1.0, 1.5, math.nan, "1", True, [1], 2**63, 10**400])
def test_not_an_integer_of_64_bits(field: str, value: Any) -> None:
    assert refused({field: value}).field == field


@pytest.mark.parametrize("field", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "true", 1.0, []])
def test_not_a_flag(field: str, value: Any) -> None:
    assert refused({field: value}).field == field


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("max_new_tokens", [0, 2**40], [-1]),
        ("min_new_tokens", [0, 128], [-1]),
        ("temperature", [0, 1e-7, 4e6], [-1e-9]),
        ("top_p", [1, 1e-9], [0, -0.25, 1.0001]),
        ("top_k", [-1, 1, 2**40], [0, -2, -7]),
        ("min_p", [0, 1], [-0.1, 1.1]),
        ("frequency_penalty", [-2, 2], [-2.01, 2.01]),
        ("presence_penalty", [-2, 2], [-2.01, 2.01]),
        ("repetition_penalty", [0.01, 2], [0, -1, 2.01]),
        ("sampling_seed", [-(2**63), 2**63 - 1, 0], [-(2**63) - 1]),
        ("n", [1, 100], [0, -1]),
        ("stop", ["x", [], ["x"] * 32, ("a", "b")], ["", [""], ["x", 3], ["x"] * 33, 3, {"a": 1}, "a\ud801b"]),
        ("stop_token_ids", [[], [0], (1, 2)], [[-1], [1.0], ["1"], [True], 5, "5", [2**63]]),
        ("stop_regex", ["a+", ["a", "b"]], ["(", "", ["a", "["], ["x"] * 33, "a" * 257, 3]),
        ("json_schema", ["{}", ""], [{}, 1, "\udc00"]),
        ("logit_bias", [{}, {"3": -50, "4": 4}, {5: 1.0}], [{"-1": 1}, {"abc": 1}, {"1.5": 1}, {"3": math.nan}]),
        ("logit_bias", [{"0": 1e300}], [{"3": "4"}, {"3": True}, {"3": None}, [3], {"3": 1, "03": 1}, {True: 1.0}]),
    ],
)  # fmt: skip
def test_ranges(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        parse({field: value})
    for value in bad:
        assert refused({field: value}).field == field, value


def test_a04_every_bad_field_is_listed() -> None:
    error = refused({"temperature": 4e6, "top_p": -0.25, "repetition_penalty": 0, "top_k": -7, "frobnicate": 1})
    assert error.field == "top_p"
    for field in ("top_p", "repetition_penalty", "top_k", "frobnicate"):
        assert field in error.message
    assert "temperature must" not in error.message  # 4e6 is in range


def test_a05_a07_ids_outside_the_vocabulary() -> None:
    for params in (SamplingParams(logit_bias={V: 1.0}), SamplingParams(stop_token_ids=(3, V + 1), min_new_tokens=2)):
        with pytest.raises(RequestError, match=f"vocabulary of {V}"):
            check(params, vocab_size=V)
    check(SamplingParams(logit_bias={V - 1: -50.0, 4: 4.0}, stop_token_ids=(V - 1,)), vocab_size=V)


def test_a19_empty_lists_and_objects_mean_none_and_change_nothing_else() -> None:
    empty: dict[str, Any] = {"stop": [], "stop_token_ids": [], "stop_regex": [], "logit_bias": {}}
    assert parse(empty) == SamplingParams()


def test_unknown_key_is_named_with_what_exists() -> None:
    error = refused({"max_tokens": 5})
    assert error.field == "max_tokens"
    assert "max_new_tokens" in error.message
    assert refused({"a\ud801": 1}).message  # rendering checked by `refused`


@pytest.mark.parametrize("field", ["beam_width", "watermark", "choice"])
def test_unsupported_is_refused_unless_null(field: str) -> None:
    assert "not supported" in refused({field: 2}).message
    assert parse({field: None}) == SamplingParams()


def test_grammars_exclude_each_other_and_empty_ones_do_not_count() -> None:
    assert (
        "Only one of json_schema, regex, ebnf, or structural_tag can be set."
        in refused({"regex": "a", "ebnf": "root ::= x"}).message
    )
    assert parse({"regex": "a", "ebnf": ""}).ebnf is None


def test_minimum_beyond_maximum() -> None:
    assert refused({"min_new_tokens": 5, "max_new_tokens": 4}).field == "min_new_tokens"
    assert parse({"min_new_tokens": 500, "max_new_tokens": None}).min_new_tokens == 500


def test_messages_use_the_clients_names() -> None:
    with pytest.raises(RequestError, match=r"^max_tokens must be") as caught:
        parse({"max_new_tokens": -1}, names={"max_new_tokens": "max_tokens"})
    assert caught.value.field == "max_tokens"


def test_numpy_numbers_are_numbers() -> None:
    params = parse({"top_k": np.int64(3), "top_p": np.float32(0.5), "stop_token_ids": [np.int32(1)]})
    assert (params.top_k, params.top_p, params.stop_token_ids) == (3, 0.5, (1,))
    assert refused({"top_k": np.float32(3)}).field == "top_k"


@pytest.mark.parametrize(
    "bad",
    [
        SamplingParams(temperature=math.nan),
        SamplingParams(top_k=0),
        SamplingParams(stop=("",)),
        SamplingParams(n=0),
        SamplingParams(min_new_tokens=129),
        SamplingParams(regex="a", ebnf="b"),
        SamplingParams(stop_token_ids=(-1,)),
    ],
)
def test_check_refuses_bad_instances(bad: SamplingParams) -> None:
    with pytest.raises(RequestError):
        check(bad, vocab_size=V)


def test_long_values_are_cut_in_messages() -> None:
    assert len(refused({"temperature": "9" * 10000}).message) < 200
