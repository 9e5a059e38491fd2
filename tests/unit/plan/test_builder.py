from __future__ import annotations

import operator
from collections.abc import Callable

import pytest

from ramet.errors import PlanError
from ramet.plan.builder import PlanBuilder, Value
from ramet.plan.ops import OPS
from ramet.plan.plan import Plan
from ramet.plan.serialize import from_json, to_json


def small_plan() -> Plan:
    """Every operation once or more."""
    b = PlanBuilder("text")
    x = b.embed(b.tokens, "embed_tokens", rows=32, width=8)
    b.table("rope", [1.0, 0.25])
    with b.scope("layers.0"):
        h = b.rms_norm(x, "input_layernorm", eps=1e-5, offset=1)
        qkv = b.linear(h, "qkv", out=16, bias=True)
        q, k, v = b.split(qkv, [8, 4, 4])
        q = b.rope(b.rms_norm(q, "q_norm", eps=1e-6, group=4), heads=2, table="rope")
        k = b.rope(k, heads=1, table="rope", style="interleaved", name="rope_k")
        a = b.attention(q, k, v, heads=2, kv_heads=1, scale=0.5, window=3, soft_cap=20, sinks="sinks")
        x = b.add(x, b.linear(a, "o_proj", out=8))
        h = b.layer_norm(x, "post", eps=1e-5)
        g = b.gated_activation(b.linear(h, "gate", out=8), b.mul(h, h), "silu")
        x = b.add(b.scale(x, 0.5), g)
        x = b.linear(b.activation(b.concat(x, h, g), "gelu"), "down", out=8)
    logits = b.linear(b.gather_rows(x), "embed_tokens", out=32)
    b.output("logits", b.soft_cap(logits, 30.0))
    return b.build()


def test_names_come_from_scopes_and_stay_unique() -> None:
    b = PlanBuilder()
    x = b.embed(b.tokens, "embed_tokens", rows=4, width=2)
    with b.scope("layers.0"), b.scope("mlp"):
        y = b.add(x, b.add(x, b.linear(x, "up", out=2)))
    assert y.spec.name == "layers.0.mlp.add.2"
    b.output("logits", b.linear(b.gather_rows(y), "embed_tokens", out=4))
    plan = b.build()
    assert [w.name for w in plan.weights] == ["embed_tokens", "layers.0.mlp.up"]  # tied: one weight
    names = [op.name for op in plan.ops]
    assert len(set(names)) == len(names)
    assert plan.ops[-1].name == "embed_tokens.2"


def test_scopes_close_after_an_error() -> None:
    b = PlanBuilder()
    with pytest.raises(PlanError), b.scope("layers.0"):
        b.add(b.tokens, b.positions)
    assert b.embed(b.tokens, "e", rows=4, width=2).spec.name == "e"


def test_width_and_text_of_a_value() -> None:
    b = PlanBuilder()
    x = b.embed(b.tokens, "e", rows=4, width=2)
    assert x.width == 2
    assert repr(x) == "<Value e [tokens, 2]>"


USES: dict[str, Callable[[Value], object]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "index": operator.index,
    "len": len,
    "iter": lambda v: list(v),
    "item": lambda v: v[0],
    "less": lambda v: v < 1,
    "at_least": lambda v: v >= v,
    "sum": lambda v: v + v,
    "sum_from_right": lambda v: 1 + v,
    "product": lambda v: 2.0 * v,
    "matmul": lambda v: v @ v,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_a_value_has_no_numbers(use: Callable[[Value], object]) -> None:
    b = PlanBuilder()
    with pytest.raises(PlanError, match="has no numbers while the plan is built"):
        use(b.tokens)


def test_values_do_not_cross_builders() -> None:
    one, other = PlanBuilder(), PlanBuilder()
    x = one.embed(one.tokens, "e", rows=4, width=2)
    with pytest.raises(PlanError, match="belongs to another builder"):
        other.scale(x, 2.0)
    with pytest.raises(PlanError, match="belongs to another builder"):
        other.embed(one.tokens, "e", rows=4, width=2)


def test_one_name_one_meaning() -> None:
    b = PlanBuilder()
    x = b.embed(b.tokens, "e", rows=4, width=2)
    with pytest.raises(PlanError, match=r"'e' is used as \[3, 2\] and as \[4, 2\]"):
        b.linear(x, "e", out=3)
    b.table("rope", [1.0])
    b.table("rope", [1])
    with pytest.raises(PlanError, match="table 'rope' is defined twice"):
        b.table("rope", [2.0])
    b.output("logits", x)
    with pytest.raises(PlanError, match="output 'logits' is defined twice"):
        b.output("logits", x)


def test_a_slip_is_told_where_it_happens() -> None:
    b = PlanBuilder()
    x = b.embed(b.tokens, "e", rows=4, width=6)
    with b.scope("layers.3"), pytest.raises(PlanError) as caught:
        b.rms_norm(x, "norm", eps=1e-5, group=4)
    assert str(caught.value) == (
        "rms_norm 'layers.3.norm': the width of x must be a multiple of the weight's length "
        "(operands: e [tokens, 6] f32; layers.3.norm [4])"
    )


def test_a_stream_outside_all_scopes_has_a_name() -> None:
    b = PlanBuilder()
    x = b.embed(b.tokens, "e", rows=4, width=2)
    b.output("logits", b.linear(b.gather_rows(b.attention(x, x, x, heads=1, kv_heads=1, scale=1.0)), "e", out=4))
    assert b.build().streams[0].name == "kv"


def small_encoder() -> Plan:
    """The operations that only models for embeddings have."""
    b = PlanBuilder("embed")
    types = b.token_types
    x = b.add(b.embed(b.tokens, "words", rows=32, width=8), b.embed(types, "types", rows=2, width=8))
    x = b.add(x, b.embed_positions("places", rows=18, width=8, offset=2))
    x = b.attention(x, x, x, heads=2, kv_heads=2, scale=0.5, causal=False)
    b.output("embedding", b.l2_norm(b.pool(x, "mean")))
    return b.build()


def test_small_plans_use_every_operation() -> None:
    assert {op.kind for plan in (small_plan(), small_encoder()) for op in plan.ops} == set(OPS)


def test_what_a_plan_says_of_itself() -> None:
    text, embed = small_plan(), small_encoder()
    assert (text.vocab_size, text.embedding_size, text.whole_rows, text.max_positions) == (32, 0, False, None)
    assert (embed.vocab_size, embed.embedding_size, embed.whole_rows, embed.max_positions) == (32, 8, True, 16)
    assert from_json(to_json(embed)) == embed


def test_token_types_come_before_all_operations() -> None:
    b = PlanBuilder()
    b.embed(b.tokens, "words", rows=4, width=2)
    with pytest.raises(PlanError, match="before the first operation"):
        _ = b.token_types


def test_an_embedding_needs_tokens_and_no_logits() -> None:
    b = PlanBuilder()
    b.output("embedding", b.pool(b.embed_positions("places", rows=4, width=2), "last"))
    with pytest.raises(PlanError, match="must embed its tokens"):
        b.build()
    b = PlanBuilder()
    x = b.pool(b.embed(b.tokens, "words", rows=4, width=2), "last")
    b.output("embedding", x)
    b.output("logits", x)
    with pytest.raises(PlanError, match="not both"):
        b.build()
    b = PlanBuilder()
    b.output("embedding", b.embed(b.tokens, "words", rows=4, width=2))
    with pytest.raises(PlanError, match="use gather_rows or pool"):
        b.build()
