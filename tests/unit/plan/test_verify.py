"""Every rule of the table and of whole plans, broken one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ramet.errors import PlanError
from ramet.plan.builder import PlanBuilder
from ramet.plan.ops import OPS
from ramet.plan.plan import KvStream, Op, Plan, ValueSpec, WeightSpec
from ramet.plan.verify import MAX_DIM, infer, verify

X = ValueSpec(2, "x", "tokens", 8)
LOGITS = ValueSpec(3, "l", "logits", 8)
IDS = ValueSpec(0, "tokens", "tokens", 1, "i32")
POSITIONS = ValueSpec(1, "positions", "tokens", 1, "i32")
STREAMS = (KvStream(0, "s", 2, 4, 4), KvStream(1, "local", 2, 4, 4, 3))
TABLES = {"rope": (1.0, 0.5)}
ROPE: dict[str, Any] = {
    "heads": 2,
    "head_dim": 4,
    "rotary_dim": 4,
    "style": "half",
    "table": "rope",
    "factor": 1.0,
}
ATTENTION: dict[str, Any] = {"stream": 0, "heads": 2, "scale": 1.0, "soft_cap": 0.0, "causal": True}
NORM: dict[str, Any] = {"eps": 1e-5, "offset": 0.0}


def w(*shape: int) -> WeightSpec:
    return WeightSpec(0, "w", shape)


def of(width: int) -> ValueSpec:
    return ValueSpec(9, f"x{width}", "tokens", width)


BROKEN: list[tuple[str, list[ValueSpec], list[WeightSpec], dict[str, Any], str]] = [
    ("sort", [X], [], {}, "no such operation; there are embed, linear"),
    ("add", [X], [], {}, "takes 2 inputs, not 1"),
    ("add", [X, X, X], [], {}, "takes 2 inputs, not 3"),
    ("concat", [X], [], {}, "takes 2 or more inputs, not 1"),
    ("add", [], [], {}, "operands: none"),
    ("add", [X, IDS], [], {}, "b must be f32"),
    ("embed", [X], [w(4, 8)], {}, "ids must be i32"),
    ("add", [X, LOGITS], [], {}, "inputs must have the same rows"),
    ("add", [X, of(4)], [], {}, "inputs must be equally wide"),
    ("linear", [X], [], {}, "takes 1 to 2 weights, not 0"),
    ("linear", [X], [w(4, 8), w(4), w(4)], {}, "takes 1 to 2 weights, not 3"),
    ("linear", [X], [w(8)], {}, "w must have 2 dimension"),
    ("linear", [X], [w(4, 8), w(4, 1)], {}, "bias must have 1 dimension"),
    ("linear", [X], [w(8, 4)], {}, "second dimension must be the width of x"),
    ("linear", [X], [w(4, 8), w(8)], {}, "bias must have one float per row"),
    ("rms_norm", [X], [w(3)], NORM, "multiple of the weight's length"),
    ("rms_norm", [X], [w(8)], {"eps": 1e-5}, r"attributes must be \['eps', 'offset'\], not \['eps'\]"),
    ("rms_norm", [X], [w(8)], {**NORM, "eps": -1.0}, "eps must be finite and at least 0, not -1.0"),
    ("rms_norm", [X], [w(8)], {**NORM, "eps": float("nan")}, "eps must be finite"),
    ("rms_norm", [X], [w(8)], {**NORM, "offset": 10**400}, "offset must be finite, not 1000"),
    ("rms_norm", [X], [w(8)], {**NORM, "eps": "small"}, "eps must be a number, not 'small'"),
    ("rms_norm", [X], [w(8)], {**NORM, "eps": True}, "eps must be a number, not True"),
    ("layer_norm", [X], [w(8), w(4)], {"eps": 1e-5}, "weight and bias must be as long"),
    ("activation", [X], [], {"function": "mish"}, "function must be one of silu, gelu"),
    ("activation", [X], [], {"function": 3}, "function must be one of"),
    ("rope", [X, POSITIONS], [], {**ROPE, "heads": 3}, "x must be heads · head_dim wide"),
    ("rope", [X, POSITIONS], [], {**ROPE, "heads": 2.0}, "heads must be a whole number"),
    ("rope", [X, POSITIONS], [], {**ROPE, "heads": 1 << 31}, "heads must be finite and at least 1"),
    ("rope", [X, POSITIONS], [], {**ROPE, "heads": 0}, "heads must be finite and at least 1"),
    ("rope", [X, POSITIONS], [], {**ROPE, "rotary_dim": 3}, "rotary_dim must be even"),
    ("rope", [X, POSITIONS], [], {**ROPE, "rotary_dim": 6}, "rotary_dim must be even and at most head_dim"),
    ("rope", [X, POSITIONS], [], {**ROPE, "rotary_dim": 2}, "must have rotary_dim / 2 floats"),
    ("rope", [X, POSITIONS], [], {**ROPE, "table": "other"}, "there is no table 'other'"),
    ("rope", [X, POSITIONS], [], {**ROPE, "table": 1}, "table must be a text"),
    ("rope", [X, IDS], [], ROPE, "positions must be the plan's input of that name"),
    ("split", [X], [], {"sizes": (4, 3)}, "sizes must add up to the width of x"),
    ("split", [X], [], {"sizes": ()}, "sizes must add up"),
    ("split", [X], [], {"sizes": (8, 0)}, "sizes must be whole numbers of at least 1"),
    ("split", [X], [], {"sizes": [4, 4]}, "sizes must be whole numbers"),
    ("attention", [LOGITS] * 3, [], ATTENTION, "inputs must have a row per token"),
    ("attention", [X] * 3, [], {**ATTENTION, "stream": 2}, "there is no stream 2"),
    ("attention", [X] * 3, [], {**ATTENTION, "heads": 3}, "heads must be a multiple of the stream's kv_heads"),
    ("attention", [X, of(4), X], [], ATTENTION, r"q, k, v must be \(8, 8, 8\) wide"),
    ("attention", [X] * 3, [w(3)], ATTENTION, "sinks must have one float per head"),
    ("attention", [X] * 3, [], {**ATTENTION, "stream": 1, "causal": False}, "both directions has no window"),
    ("attention", [X] * 3, [], {**ATTENTION, "causal": 1}, "causal must be true or false"),
    ("gather_rows", [LOGITS], [], {}, "x must have a row per token"),
    ("pool", [LOGITS], [], {"method": "mean"}, "x must have a row per token"),
    ("pool", [X], [], {"method": "max"}, "method must be one of cls, last, mean"),
    ("embed", [POSITIONS], [w(4, 8)], {}, "ids must be the plan's input tokens or token_types"),
    ("embed_positions", [IDS], [w(4, 8)], {"offset": 0}, "positions must be the plan's input"),
    ("embed_positions", [POSITIONS], [w(4, 8)], {"offset": 4}, "offset must be a row of the table"),
]


@pytest.mark.parametrize(
    ("kind", "inputs", "weights", "attrs", "rule"), BROKEN, ids=[f"{b[0]}-{i}" for i, b in enumerate(BROKEN)]
)
def test_a_broken_rule_is_named(
    kind: str, inputs: list[ValueSpec], weights: list[WeightSpec], attrs: dict[str, Any], rule: str
) -> None:
    with pytest.raises(PlanError, match=rule) as caught:
        infer(kind, "layers.0.it", inputs, weights, attrs, STREAMS, TABLES)
    assert str(caught.value).startswith(f"{kind} 'layers.0.it': ")
    for value in inputs:
        assert f"{value.name} [{value.rows}, {value.width}] {value.dtype}" in str(caught.value)


def test_shapes_of_results() -> None:
    def shape(kind: str, inputs: list[ValueSpec], weights: list[WeightSpec], **attrs: Any) -> object:
        return infer(kind, "it", inputs, weights, attrs, STREAMS, TABLES)

    assert shape("embed", [IDS], [w(5, 7)]) == (("tokens", 7),)
    assert shape("linear", [LOGITS], [w(5, 8), w(5)]) == (("logits", 5),)
    assert shape("rms_norm", [X], [w(4)], eps=1, offset=0) == (("tokens", 8),)
    assert shape("split", [X], [], sizes=(3, 5)) == (("tokens", 3), ("tokens", 5))
    assert shape("concat", [X, of(3), of(2)], []) == (("tokens", 13),)
    assert shape("attention", [X, X, X], [w(2)], **ATTENTION) == (("tokens", 8),)
    assert shape("gather_rows", [X], []) == (("logits", 8),)
    assert set(OPS) > {"embed", "soft_cap"}


def plan() -> Plan:
    b = PlanBuilder()
    x = b.embed(b.tokens, "e", rows=4, width=4)
    b.table("rope", [1.0, 0.5])
    x = b.rope(x, heads=1, table="rope")
    x = b.add(x, b.attention(x, x, x, heads=1, kv_heads=1, scale=0.5))
    b.output("logits", b.linear(b.gather_rows(x), "e", out=4))
    return b.build()


def op_with(index: int, **changes: Any) -> Callable[[Plan], Plan]:
    def change(p: Plan) -> Plan:
        ops = list(p.ops)
        ops[index] = replace(ops[index], **changes)
        return replace(p, ops=tuple(ops))

    return change


def value_with(index: int, **changes: Any) -> Callable[[Plan], Plan]:
    def change(p: Plan) -> Plan:
        values = list(p.values)
        values[index] = replace(values[index], **changes)
        return replace(p, values=tuple(values))

    return change


def stream_with(**changes: Any) -> Callable[[Plan], Plan]:
    return lambda p: replace(p, streams=(replace(p.streams[0], **changes),))


BROKEN_PLANS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "no inputs": (lambda p: replace(p, values=()), "value 0 must be the i32 input 'tokens'"),
    "positions": (value_with(1, name="place"), "value 1 must be the i32 input 'positions'"),
    "value id": (value_with(3, id=7), "value 'rope' has id 7 at place 3"),
    "value name twice": (value_with(3, name="e"), "two values are named 'e'"),
    "value without name": (value_with(3, name=""), "or it has no name"),
    "value width 0": (value_with(3, width=0), "width 0 is not between"),
    "value width": (value_with(3, width=MAX_DIM + 1), "is not between 1 and"),
    "value rows": (value_with(3, rows="logits"), r"gives \[tokens, 4\] f32, but 'rope' is \[logits, 4\] f32"),
    "value type": (value_with(3, dtype="i32"), "but 'rope' is .* i32"),
    "weight id": (lambda p: replace(p, weights=(WeightSpec(1, "e", (4, 4)),)), "weight 'e' has id 1 at place 0"),
    "weight shape": (lambda p: replace(p, weights=(WeightSpec(0, "e", (4, 0)),)), r"weight 'e': \[4, 0\]"),
    "weight scalar": (lambda p: replace(p, weights=(WeightSpec(0, "e", ()),)), r"weight 'e': \[\]"),
    "weight unused": (lambda p: replace(p, weights=(*p.weights, WeightSpec(1, "f", (4,)))), "'f' is not used"),
    "weight index": (op_with(0, weights=(3,)), "embed 'e': there is no weight 3"),
    "stream id": (stream_with(id=2), "stream 'kv' has id 2 at place 0"),
    "stream sizes": (stream_with(head_dim=0), "stream 'kv': sizes must be between 1"),
    "stream window": (stream_with(window=-1), "the window must be between 0 and"),
    "stream unused": (
        lambda p: replace(p, streams=(*p.streams, KvStream(1, "b", 1, 4, 4))),
        "stream 'b' must be used by one attention, not 0",
    ),
    "table empty": (lambda p: replace(p, tables={"rope": ()}), "table 'rope' must have finite numbers"),
    "table infinite": (lambda p: replace(p, tables={"rope": (1.0, float("inf"))}), "must have finite numbers"),
    "table unused": (lambda p: replace(p, tables={**p.tables, "t": (1.0,)}), "table 't' is not used"),
    "input not yet there": (op_with(0, inputs=(5,)), "embed 'e': input 5 is not computed before it"),
    "input of nowhere": (op_with(0, inputs=(-1,)), "input -1 is not computed"),
    "outputs too many": (op_with(0, outputs=(2, 3)), "has 2 outputs where the rule gives 1"),
    "output of nowhere": (op_with(0, outputs=(70,)), "there is no value 70"),
    "computed twice": (op_with(1, outputs=(2,)), "rope 'rope': value 2 is computed twice"),
    "never computed": (
        lambda p: replace(p, values=(*p.values, ValueSpec(8, "y", "tokens", 1))),
        "'y' is never computed",
    ),
    "no outputs": (lambda p: replace(p, outputs={}), "the plan has no outputs"),
    "output missing": (lambda p: replace(p, outputs={"logits": 99}), "output 'logits': there is no value 99"),
    "output rows": (lambda p: replace(p, outputs={"logits": 3}), "output 'logits' must have a row per token whose"),
}


@pytest.mark.parametrize(("breaking", "rule"), BROKEN_PLANS.values(), ids=BROKEN_PLANS.keys())
def test_a_broken_plan_is_refused(breaking: Callable[[Plan], Plan], rule: str) -> None:
    whole = plan()
    assert verify(whole) is whole
    with pytest.raises(PlanError, match=rule):
        verify(breaking(whole))


def test_a_result_that_nobody_uses() -> None:
    b = PlanBuilder()
    x = b.embed(b.tokens, "e", rows=4, width=4)
    b.scale(x, 2.0)
    b.output("logits", b.linear(b.gather_rows(x), "e", out=4))
    with pytest.raises(PlanError, match="scale 'scale': nothing uses its result"):
        b.build()


def test_two_attentions_on_one_stream() -> None:
    whole = plan()
    extra = Op("attention", "again", (3, 3, 3), (8,), (), whole.ops[2].attrs)
    ops = (*whole.ops[:3], extra, *whole.ops[3:])
    values = (*whole.values, ValueSpec(8, "again", "tokens", 4))
    with pytest.raises(PlanError, match="must be used by one attention, not 2"):
        verify(replace(whole, ops=ops, values=values, outputs={**whole.outputs, "again": 8}))
