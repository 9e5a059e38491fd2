"""Random plans survive JSON unchanged; random damage to the JSON is refused as a `PlanError` or still a legal plan."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.errors import PlanError
from ramet.plan.builder import PlanBuilder
from ramet.plan.memory import activation_peak, last_uses, live_ranges
from ramet.plan.ops import FUNCTIONS
from ramet.plan.plan import Plan
from ramet.plan.serialize import from_json, to_json
from ramet.plan.text import to_text
from ramet.plan.verify import verify

FINITE = st.floats(-3e38, 3e38)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A chain of operations of even widths, each on the latest value and sometimes an older one."""
    b = PlanBuilder(draw(st.text(max_size=3)))
    x = old = b.embed(b.tokens, "embed", rows=7, width=2 * draw(st.integers(1, 4)))
    for i in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(("linear", "norm", "add", "scale", "function", "rope", "split", "attention")))
        with b.scope(f"layers.{i}"):
            if kind == "linear":
                x = b.linear(x, "w", out=2 * draw(st.integers(1, 4)), bias=draw(st.booleans()))
            elif kind == "norm":
                x = b.rms_norm(x, "norm", eps=draw(st.floats(0, 1)), offset=draw(FINITE), group=2)
            elif kind == "add":
                x = b.add(x, old) if x.width == old.width else b.concat(x, old)
            elif kind == "scale":
                x = b.scale(x, draw(FINITE))
            elif kind == "function":
                x = b.activation(x, draw(st.sampled_from(FUNCTIONS)))
            elif kind == "rope":
                table = b.table(f"t{i}", draw(st.lists(FINITE, min_size=x.width // 2, max_size=x.width // 2)))
                x = b.rope(x, heads=1, table=table, factor=draw(FINITE))
            elif kind == "split":
                left, right = b.split(x, [x.width // 2, x.width // 2])
                x = b.concat(right, left)
            else:
                x = b.attention(
                    x, x, x, heads=2, kv_heads=2, scale=draw(st.floats(0, 9)), window=draw(st.integers(0, 3))
                )
        if draw(st.booleans()):
            old = x
    b.output("logits", b.linear(b.gather_rows(x), "head", out=7))
    return b.build()


@settings(max_examples=60, deadline=None)
@given(plans())
def test_json_round_trip(plan: Plan) -> None:
    text = to_json(plan)
    back = from_json(text)
    assert back == plan
    assert to_json(back) == text
    assert to_text(back) == to_text(plan)


@settings(max_examples=60, deadline=None)
@given(plans())
def test_a_value_is_freed_once_and_after_its_last_reader(plan: Plan) -> None:
    freed = [value for values in last_uses(plan) for value in values]
    assert sorted(freed) == sorted(set(range(len(plan.values))) - set(plan.outputs.values()) - _unread_inputs(plan))
    alive: set[int] = {0, 1}
    most = 0
    for op, gone in zip(plan.ops, last_uses(plan), strict=True):
        assert alive.issuperset(op.inputs)
        alive.update(op.outputs)
        most = max(most, sum(plan.values[v].width for v in alive if plan.values[v].rows == "tokens"))
        alive.difference_update(gone)
    assert activation_peak(plan).floats_per_token == most


def _unread_inputs(plan: Plan) -> set[int]:
    return {value for value in (0, 1) if live_ranges(plan)[value] == (-1, -1)}


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.sampled_from([2**31, 2**63, 2**64, 10**400, 1e300, -1.5]),
    st.text(max_size=2),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-1, 5), max_size=3),
)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON document."""
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    return [place for key, child in items for place in [(node, key), *places(child)]]


@settings(max_examples=300, deadline=None)
@given(plans(), st.data())
def test_damaged_json_is_refused_or_legal(plan: Plan, data: st.DataObject) -> None:
    document = json.loads(to_json(plan))
    container, key = data.draw(st.sampled_from(places(document)))
    if isinstance(container, dict) and data.draw(st.booleans()):
        del container[key]
    else:
        container[key] = data.draw(JUNK)
    try:
        verify(from_json(json.dumps(document)))
    except PlanError as error:
        assert str(error)  # noqa: PT017  # damage that leaves a legal plan is fine
