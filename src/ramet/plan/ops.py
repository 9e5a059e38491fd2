"""Which operations exist: one table, from which verification, the reference page, the tests over executors × formats ×
shapes and the benchmark entries grow.

`executor/reference.py` is the executable meaning of each row. Every operation acts on each row of its inputs on its
own, except `attention` (which reads state), `gather_rows` and `pool`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ramet.errors import PlanError
from ramet.plan.plan import AttrValue, DType, KvStream, Rows

AttrType = Literal["int", "float", "bool", "text", "ints"]
Norm = Literal["exact", "element", "row", "dot", "state"]

FUNCTIONS = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh")
#: Largest numbers in attributes: int32, float32.
MAX_INT = (1 << 31) - 1
MAX_FLOAT = 3.4e38

ROPE_STYLES = ("half", "interleaved")
POOL_METHODS = ("cls", "last", "mean")


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute of an operation. Numbers are finite and at least `minimum`; texts are among `choices`, if any."""

    type: AttrType
    meaning: str
    minimum: float = -math.inf
    choices: tuple[str, ...] = ()

    def complaint(self, value: object) -> str | None:
        """What is wrong with `value` ("must be …"), or None."""
        if self.type == "bool":
            return None if isinstance(value, bool) else "must be true or false"
        if self.type == "text":
            if not isinstance(value, str) or (self.choices and value not in self.choices):
                return f"must be one of {', '.join(self.choices)}" if self.choices else "must be a text"
            return None
        if self.type == "ints":
            good = isinstance(value, tuple) and all(type(n) is int and self.minimum <= n <= MAX_INT for n in value)
            return None if good else f"must be whole numbers of at least {self.minimum:g}"
        limit = MAX_INT if self.type == "int" else MAX_FLOAT
        if isinstance(value, bool) or not isinstance(value, int if self.type == "int" else int | float):
            return "must be a whole number" if self.type == "int" else "must be a number"
        if not max(self.minimum, -limit) <= value <= limit:  # false for NaN too
            return f"must be finite and at least {self.minimum:g}" if math.isfinite(self.minimum) else "must be finite"
        return None


@dataclass(frozen=True, slots=True)
class Operand:
    """One input: its name in texts and messages, and its element type."""

    name: str
    dtype: DType = "f32"


@dataclass(frozen=True, slots=True)
class WeightOperand:
    """One weight. Rank 2 may come in every format of `weights.formats`; rank 1 is unpacked to f32 by every executor."""

    name: str
    rank: Literal[1, 2]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far executors may differ, per element of the result, as `relative` times a norm of the operands.

    exact: not at all, bit for bit. element: the product of max(|input|, 1). row: the largest magnitude in the result's
    row. state: the largest magnitude among the values in the row's state. dot: ‖x‖·‖w‖ of the product's two vectors;
    with a quantised weight, where activations are rounded to 8 bits in blocks of 32, plus `int8` · max|x|·‖w‖: the
    rounding error is uniform in ± max|x| / 254, and this is six standard deviations.
    """

    norm: Norm
    relative: float = 0.0
    int8: float = 0.0


@dataclass(frozen=True, slots=True)
class Shapes:
    """What a shape rule sees of an operation whose operands and attributes have already been checked."""

    rows: Rows  # of all inputs
    widths: tuple[int, ...]  # of the inputs
    weights: tuple[tuple[int, ...], ...]
    attrs: Mapping[str, AttrValue]
    streams: tuple[KvStream, ...]
    tables: Mapping[str, tuple[float, ...]]

    def integer(self, name: str) -> int:
        value = self.attrs[name]
        assert isinstance(value, int)
        return value

    def require(self, truth: bool, rule: str) -> None:
        if not truth:
            raise PlanError(rule)


Result = tuple[tuple[Rows, int], ...]  # (rows, width) of each output


def _same(s: Shapes) -> Result:
    s.require(len(set(s.widths)) == 1, "inputs must be equally wide")
    return ((s.rows, s.widths[0]),)


def _embed(s: Shapes) -> Result:
    return ((s.rows, s.weights[0][1]),)


def _linear(s: Shapes) -> Result:
    out, width = s.weights[0]
    s.require(width == s.widths[0], "the weight's second dimension must be the width of x")
    s.require(len(s.weights) == 1 or s.weights[1] == (out,), "the bias must have one float per row of the weight")
    return ((s.rows, out),)


def _rms_norm(s: Shapes) -> Result:
    s.require(s.widths[0] % s.weights[0][0] == 0, "the width of x must be a multiple of the weight's length")
    return _same(s)


def _layer_norm(s: Shapes) -> Result:
    s.require(s.weights[0] == s.weights[1] == s.widths, "weight and bias must be as long as x is wide")
    return _same(s)


def _rope(s: Shapes) -> Result:
    rotary, table = s.integer("rotary_dim"), str(s.attrs["table"])
    s.require(s.widths[0] == s.integer("heads") * s.integer("head_dim"), "x must be heads · head_dim wide")
    s.require(rotary % 2 == 0 and rotary <= s.integer("head_dim"), "rotary_dim must be even and at most head_dim")
    s.require(table in s.tables, f"there is no table {table!r}")
    s.require(len(s.tables[table]) == rotary // 2, f"table {table!r} must have rotary_dim / 2 floats")
    return ((s.rows, s.widths[0]),)


def _split(s: Shapes) -> Result:
    sizes = s.attrs["sizes"]
    assert isinstance(sizes, tuple)
    s.require(len(sizes) > 0 and sum(sizes) == s.widths[0], "sizes must add up to the width of x")
    return tuple((s.rows, size) for size in sizes)


def _concat(s: Shapes) -> Result:
    return ((s.rows, sum(s.widths)),)


def _attention(s: Shapes) -> Result:
    index, heads = s.integer("stream"), s.integer("heads")
    s.require(s.rows == "tokens", "inputs must have a row per token")
    s.require(index < len(s.streams), f"there is no stream {index}")
    stream = s.streams[index]
    s.require(heads % stream.kv_heads == 0, "heads must be a multiple of the stream's kv_heads")
    wanted = (heads * stream.head_dim, stream.kv_heads * stream.head_dim, stream.kv_heads * stream.v_dim)
    s.require(s.widths == wanted, f"q, k, v must be {wanted} wide for stream {index}")
    s.require(not s.weights or s.weights[0] == (heads,), "sinks must have one float per head")
    s.require(s.attrs["causal"] is True or not stream.window, "attention in both directions has no window")
    return (("tokens", heads * stream.v_dim),)


def _embed_positions(s: Shapes) -> Result:
    s.require(s.integer("offset") < s.weights[0][0], "the offset must be a row of the table")
    return ((s.rows, s.weights[0][1]),)


def _gather_rows(s: Shapes) -> Result:
    s.require(s.rows == "tokens", "x must have a row per token")
    return (("logits", s.widths[0]),)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One row of the table. All inputs of an operation have the same rows; a variadic one repeats its last input."""

    meaning: str
    inputs: tuple[Operand, ...]
    shape: Callable[[Shapes], Result]
    tolerance: Tolerance
    weights: tuple[WeightOperand, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    variadic: bool = False


_X = (Operand("x"),)
_FUNCTION = Attr("text", "the function f; gelu is the exact one (erf)", choices=FUNCTIONS)
_EPS = Attr("float", "added to the mean square (or variance)", minimum=0.0)

OPS: Mapping[str, OpSpec] = {
    "embed": OpSpec(
        "row `id` of the table, for each id",
        (Operand("ids", "i32"),),
        _embed,
        Tolerance("row", 2.0**-22),  # d·q + m may be one rounding (fused) or two
        weights=(WeightOperand("table", 2),),
    ),
    "linear": OpSpec(
        "x · wᵀ (+ bias)",
        _X,
        _linear,
        Tolerance("dot", 2.0**-20, int8=6 / (254 * math.sqrt(3))),
        weights=(WeightOperand("w", 2), WeightOperand("bias", 1, optional=True)),
    ),
    "rms_norm": OpSpec(
        "per group of len(w) floats: x / sqrt(mean(x²) + eps) · (offset + w)",
        _X,
        _rms_norm,
        Tolerance("row", 2.0**-20),
        weights=(WeightOperand("w", 1),),
        attrs={"eps": _EPS, "offset": Attr("float", "added to the weight: 0, or 1 where checkpoints store w - 1")},
    ),
    "layer_norm": OpSpec(
        "(x - mean(x)) / sqrt(var(x) + eps) · w + b",
        _X,
        _layer_norm,
        Tolerance("row", 2.0**-19),
        weights=(WeightOperand("w", 1), WeightOperand("b", 1)),
        attrs={"eps": _EPS},
    ),
    "add": OpSpec("a + b", (Operand("a"), Operand("b")), _same, Tolerance("exact")),
    "mul": OpSpec("a · b, element by element", (Operand("a"), Operand("b")), _same, Tolerance("exact")),
    "scale": OpSpec("x · factor", _X, _same, Tolerance("exact"), attrs={"factor": Attr("float", "the factor, as f32")}),
    "soft_cap": OpSpec(
        "cap · tanh(x / cap)",
        _X,
        _same,
        Tolerance("element", 2.0**-20),
        attrs={"cap": Attr("float", "the bound of the result", minimum=1e-6)},
    ),
    "activation": OpSpec("f(x)", _X, _same, Tolerance("element", 2.0**-20), attrs={"function": _FUNCTION}),
    "gated_activation": OpSpec(
        "f(gate) · up",
        (Operand("gate"), Operand("up")),
        _same,
        Tolerance("element", 2.0**-20),
        attrs={"function": _FUNCTION},
    ),
    "rope": OpSpec(
        "the first rotary_dim floats of each head rotated by position · table",
        (Operand("x"), Operand("positions", "i32")),
        _rope,
        Tolerance("row", 2.0**-20),
        attrs={
            "heads": Attr("int", "heads in x", minimum=1),
            "head_dim": Attr("int", "floats per head", minimum=1),
            "rotary_dim": Attr("int", "floats of each head that rotate", minimum=2),
            "style": Attr("text", "pairs (i, i + rotary_dim / 2) or (2i, 2i + 1)", choices=ROPE_STYLES),
            "table": Attr("text", "name of the table of rotary_dim / 2 inverse frequencies"),
            "factor": Attr("float", "multiplies cos and sin"),
        },
    ),
    "split": OpSpec(
        "the columns of x as several values",
        _X,
        _split,
        Tolerance("exact"),
        attrs={"sizes": Attr("ints", "width of each result", minimum=1)},
    ),
    "concat": OpSpec("columns joined", (Operand("a"), Operand("b")), _concat, Tolerance("exact"), variadic=True),
    "attention": OpSpec(
        "k and v stored in the stream's pages at the tokens' positions, then softmax(scale · q · K) · V over the "
        "positions that each token sees",
        (Operand("q"), Operand("k"), Operand("v")),
        _attention,
        Tolerance("state", 2.0**-17),
        weights=(WeightOperand("sinks", 1, optional=True),),
        attrs={
            "stream": Attr("int", "id of the state stream", minimum=0),
            "heads": Attr("int", "query heads; head h uses kv head h // (heads / kv_heads)", minimum=1),
            "scale": Attr("float", "multiplies q · K", minimum=0.0),
            "soft_cap": Attr("float", "cap · tanh(· / cap) on scale · q · K; 0: none", minimum=0.0),
            "causal": Attr("bool", "a token sees only positions up to its own; false: all of its row"),
        },
    ),
    "gather_rows": OpSpec("the rows whose logits are wanted", _X, _gather_rows, Tolerance("exact")),
    "embed_positions": OpSpec(
        "row `position + offset` of the table, for each token",
        (Operand("positions", "i32"),),
        _embed_positions,
        Tolerance("row", 2.0**-22),
        weights=(WeightOperand("table", 2),),
        attrs={"offset": Attr("int", "the table's row of position 0", minimum=0)},
    ),
    "pool": OpSpec(
        "for each wanted token one row: that of its prompt's first token, its own, or the mean of both and all between",
        _X,
        _gather_rows,
        Tolerance("row", 2.0**-22),
        attrs={"method": Attr("text", "which", choices=POOL_METHODS)},
    ),
    "l2_norm": OpSpec(
        "x / max(‖x‖, eps)",
        _X,
        _same,
        Tolerance("row", 2.0**-22),
        attrs={"eps": Attr("float", "the least norm to divide by", minimum=0.0)},
    ),
}


def operations_page() -> str:
    """The reference page of this table (Markdown): a section per operation."""
    parts = [
        "# Operations\n\n"
        "Generated from `ramet/plan/ops.py`; do not edit. A plan is a list of these operations over float32 matrices\n"
        "`[rows, width]`. `ramet/executor/reference_ops.py` is their executable meaning.\n"
    ]
    parts += [_section(kind, spec) for kind, spec in OPS.items()]
    return "\n".join(parts)


def _section(kind: str, spec: OpSpec) -> str:
    inputs = [f"`{o.name}` ({o.dtype})" for o in spec.inputs] + (["…"] if spec.variadic else [])
    weights = [f"`{w.name}` ({w.rank}-D{', optional' if w.optional else ''})" for w in spec.weights]
    lines = [f"## {kind}\n", f"{spec.meaning}\n", f"- inputs: {', '.join(inputs)}"]
    if weights:
        lines.append(f"- weights: {', '.join(weights)}")
    lines += [f"- `{name}` ({attr.type}): {attr.meaning}{_range(attr)}" for name, attr in spec.attrs.items()]
    lines.append(f"- tolerance: {_tolerance(spec.tolerance)}\n")
    return "\n".join(lines)


def _range(attr: Attr) -> str:
    if attr.choices:
        return f" ({', '.join(attr.choices)})"
    return f" (at least {attr.minimum:g})" if attr.minimum > float("-inf") else ""


def _tolerance(tolerance: Tolerance) -> str:
    if tolerance.norm == "exact":
        return "none: bit for bit"
    norms = {
        "element": "product of max(|input|, 1), per element",
        "row": "largest magnitude in the result's row",
        "state": "largest magnitude among the row's values",
        "dot": "‖x‖ · ‖w‖",
    }
    text = f"{tolerance.relative:.2g} × {norms[tolerance.norm]}"
    return text + (f"; quantised weights add {tolerance.int8:.2g} × max|x| · ‖w‖" if tolerance.int8 else "")
