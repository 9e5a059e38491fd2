"""JSON form, text form, memory plan and reference page of plans."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramet.errors import PlanError
from ramet.plan.builder import PlanBuilder
from ramet.plan.memory import activation_peak, last_uses, live_ranges
from ramet.plan.ops import OPS, operations_page
from ramet.plan.plan import Plan
from ramet.plan.serialize import from_json, to_json
from ramet.plan.text import to_text


def small() -> Plan:
    b = PlanBuilder("text")
    x = b.embed(b.tokens, "embed_tokens", rows=5, width=4)
    b.table("rope", [1.0, 1 / 3])
    with b.scope("layers.0"):
        gate, up = b.split(b.linear(x, "gate_up", out=12, bias=True), [6, 6])
        x = b.add(x, b.linear(b.gated_activation(gate, up, "gelu_tanh"), "down", out=4))
        q = b.rope(x, heads=1, table="rope", factor=0.1)
        x = b.attention(q, q, x, heads=1, kv_heads=1, scale=1 / 3, window=7)
    b.output("logits", b.linear(b.gather_rows(x), "embed_tokens", out=5))
    return b.build()


def test_json_round_trip_keeps_every_bit() -> None:
    plan = small()
    assert from_json(to_json(plan)) == plan
    assert from_json(to_json(plan).encode()) == plan


def test_json_has_the_keys_that_the_native_parser_reads() -> None:
    document = json.loads(to_json(small()))
    assert list(document) == ["version", "name", "values", "weights", "streams", "tables", "ops", "outputs"]
    assert document["values"][0] == {"id": 0, "name": "tokens", "rows": "tokens", "width": 1, "dtype": "i32"}
    assert document["weights"][0] == {"id": 0, "name": "embed_tokens", "shape": [5, 4]}
    stream = {"id": 0, "name": "layers.0", "kv_heads": 1, "head_dim": 4, "v_dim": 4, "window": 7}
    assert document["streams"] == [stream]
    assert document["tables"] == {"rope": [1.0, 1 / 3]}
    embed = {"kind": "embed", "name": "embed_tokens", "inputs": [0], "outputs": [2], "weights": [0], "attrs": {}}
    assert document["ops"][0] == embed
    assert document["ops"][2]["attrs"] == {"sizes": [6, 6]}


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(to_json(small())), **changes})


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "not a plan"),
        ("[]", "not a plan"),
        ("{}", "missing required field `version`"),
        (changed(version=2), "plan version 2: this program reads version 1"),
        (changed(version="1"), "not a plan: Expected `int`"),
        (changed(extra=1), "unknown field `extra`"),
        (changed(values=[{"id": 0}]), "missing required field"),
        (changed(ops=[]), "is never computed"),
        (changed(outputs={"logits": "x"}), "not a plan"),
        (b"\xff{}", "not a plan"),
    ],
)
def test_bad_json_is_refused(text: str | bytes, rule: str) -> None:
    with pytest.raises(PlanError, match=rule):
        from_json(text)


def test_text_form() -> None:
    assert to_text(small()) == (
        "plan text\n"
        "stream 0 layers.0: kv_heads=1 head_dim=4 v_dim=4 window=7\n"
        "table rope: 1 0.333333\n"
        "%2 embed_tokens [tokens, 4] = embed(%0, embed_tokens[5, 4])\n"
        "%3 layers.0.gate_up [tokens, 12] = linear(%2, layers.0.gate_up[12, 4], layers.0.gate_up.bias[12])\n"
        "%4 layers.0.split.0 [tokens, 6], %5 layers.0.split.1 [tokens, 6] = split(%3) sizes=(6, 6)\n"
        "%6 layers.0.gated_activation [tokens, 6] = gated_activation(%4, %5) function=gelu_tanh\n"
        "%7 layers.0.down [tokens, 4] = linear(%6, layers.0.down[4, 6])\n"
        "%8 layers.0.add [tokens, 4] = add(%2, %7)\n"
        "%9 layers.0.rope [tokens, 4] = rope(%8, %1) heads=1 head_dim=4 rotary_dim=4 style=half table=rope factor=0.1\n"
        "%10 layers.0.attention [tokens, 4] = attention(%9, %9, %8) stream=0 heads=1 scale=0.333333 "
        "soft_cap=0 causal=True\n"
        "%11 gather_rows [logits, 4] = gather_rows(%10)\n"
        "%12 embed_tokens.2 [logits, 5] = linear(%11, embed_tokens[5, 4])\n"
        "output logits: %12\n"
    )


def test_live_ranges() -> None:
    plan = small()
    ranges = live_ranges(plan)
    assert ranges[0] == (-1, 0)  # tokens, read by the embedding
    assert ranges[1] == (-1, 6)  # positions, read by the rope
    assert ranges[2] == (0, 5)  # the embedding, read by the first add
    assert ranges[12] == (9, 10)  # logits outlive the last operation
    assert last_uses(plan) == ((0,), (), (3,), (4, 5), (6,), (2, 7), (1,), (8, 9), (10,), (11,))


def test_peak_covers_what_is_alive_together() -> None:
    # Widest moment per token: positions 1, embedding 4, and the split's 12 in and 12 out.
    peak = activation_peak(small())
    assert (peak.floats_per_token, peak.floats_per_logits_row) == (29, 9)
    assert peak.bytes(tokens=10, logits_rows=3) == 4 * (290 + 27)


def test_a_value_that_is_never_read_is_freed_at_once() -> None:
    b = PlanBuilder()
    x = b.embed(b.tokens, "e", rows=5, width=4)
    first, _ = b.split(x, [2, 2])
    b.output("logits", b.linear(b.gather_rows(first), "head", out=5))
    assert last_uses(b.build())[1] == (2, 4)


def test_the_page_tells_of_every_operation() -> None:
    page = operations_page()
    for kind, spec in OPS.items():
        assert f"## {kind}\n" in page
        assert spec.meaning in page
        for name, attr in spec.attrs.items():
            assert f"- `{name}` ({attr.type}): {attr.meaning}" in page
    assert "…" in page
    assert "none: bit for bit" in page


def test_floats_that_a_token_takes_in_a_stream() -> None:
    assert small().streams[0].floats_per_token == 8  # one head of 4 in keys and in values
