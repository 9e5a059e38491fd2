"""Every operation of the table × executor × weight format × edge shape, against its formula in float64.

An executor runs whole plans, so each case is one: embeddings of f32 tables give the operands (token i picks row i), the
operation under test follows, and its result, beside zeros for at least as many columns as tokens, is taken for logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from ramet._native import cpu_info
from ramet.executor.base import Layout, RowParams, StepBatch
from ramet.executor.native import NativeExecutor
from ramet.executor.reference import ReferenceExecutor
from ramet.plan.builder import PlanBuilder, Value
from ramet.plan.ops import FUNCTIONS, OPS
from ramet.plan.plan import Plan
from ramet.weights.formats import FORMATS, dequantize, quantize
from ramet.weights.tensor import Weight

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


class Runs(Protocol):
    """An executor that shows logits."""

    vocab_size: int

    def logits(self, batch: StepBatch) -> F32: ...

    def close(self) -> None: ...


MakeExecutor = Callable[[Plan, Mapping[str, Weight], Layout], Runs]

EXECUTORS: dict[str, MakeExecutor] = {
    "reference": ReferenceExecutor,
    **{f"native-{tier}": partial(NativeExecutor, tier=tier, threads=2) for tier in cpu_info()["tiers"]},
}


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(rows: int, width: int, seed: int, scale: float = 1.0) -> F32:
    return (scale * rng(rows, width, seed).standard_normal((rows, width))).astype(np.float32)


def plain(name: str, values: F32) -> Weight:
    return Weight(name, "f32", values.shape, np.ascontiguousarray(values).view(np.uint8).reshape(-1))


#: Where the float16 scales of a k-quant's block lie; all other bytes may be anything.
SCALES = {"q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}


def random_weight(name: str, format: str, shape: tuple[int, int], seed: int = 0) -> Weight:
    """Normal numbers, packed; for formats that are only read, random blocks with small scales."""
    if format not in SCALES:
        values = normal(*shape, seed, scale=0.5)
        return Weight(name, format, shape, quantize(values, format))
    fmt = FORMATS[format]
    generator = rng(*shape, seed)
    blocks = generator.integers(0, 256, (math.prod(shape) // fmt.block_elements, fmt.block_bytes), np.uint8)
    for at in SCALES[format]:
        blocks[:, at : at + 2] = generator.uniform(0.001, 0.01, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    return Weight(name, format, shape, blocks.reshape(-1))


@dataclass
class Case:
    """One operation on operands [T, width], what it should give, and how far off it may be, both [T, width]."""

    name: str
    operands: list[F32]
    build: Callable[[PlanBuilder, list[Value]], Value]
    expected: F64
    bound: F64
    weights: list[Weight] = field(default_factory=list)
    rounded: F64 | None = None  # linear: expected with activations in 8 bits
    rounded_bound: F64 | None = None
    kv_dtype: str = "f32"
    page_size: int = 16
    rows: tuple[int, ...] = ()  # tokens of each row, which sum to T; default: one row
    chunk: int = 1000  # tokens of a row per step


def run(make: MakeExecutor, case: Case) -> F64:
    """The result of the operation, [T, width]."""
    tokens = len(case.expected)
    b = PlanBuilder()
    inputs = [b.embed(b.tokens, f"operand.{i}", rows=tokens, width=x.shape[1]) for i, x in enumerate(case.operands)]
    origin = b.embed(b.tokens, "origin", rows=tokens, width=tokens)
    result = case.build(b, inputs)
    if result.spec.rows == "tokens":
        result = b.gather_rows(result)
    b.output("logits", b.concat(result, b.gather_rows(origin)))
    weights = {f"operand.{i}": plain(f"operand.{i}", x) for i, x in enumerate(case.operands)}
    weights["origin"] = plain("origin", np.zeros((tokens, tokens), np.float32))
    weights |= {weight.name: weight for weight in case.weights}
    per_row = -(-64 // case.page_size)
    layout = Layout(
        num_pages=per_row * 2,
        page_size=case.page_size,
        max_rows=2,
        max_row_tokens=64,
        max_step_tokens=64,
        kv_dtype=case.kv_dtype,
    )
    executor = make(b.build(), weights, layout)
    try:
        return np.concatenate(list(_steps(executor, case, per_row)))[np.argsort(np.concatenate(_order(case)))]
    finally:
        executor.close()


def _order(case: Case) -> list[NDArray[np.int64]]:
    """Token ids of each step, rows after one another within it."""
    lengths = case.rows or (len(case.expected),)
    firsts = np.cumsum((0, *lengths))
    return [
        np.concatenate([np.arange(f + at, f + min(at + case.chunk, n)) for f, n in zip(firsts, lengths, strict=False)])
        for at in range(0, max(lengths), case.chunk)
    ]


def _steps(executor: Runs, case: Case, per_row: int) -> Iterator[F64]:
    lengths = np.asarray(case.rows or (len(case.expected),))
    width = case.expected.shape[1]
    pages = [(row, i, i * len(lengths) + row) for row in range(len(lengths)) for i in range(per_row)]
    for step, tokens in enumerate(_order(case)):
        at = step * case.chunk
        rows = np.flatnonzero(lengths > at).astype(np.int32)
        batch = StepBatch(
            rows=rows,
            query_lens=np.minimum(lengths[rows] - at, case.chunk).astype(np.int32),
            starts=np.full(len(rows), at, np.int32),
            token_ids=tokens.astype(np.int32),
            samples=np.zeros(len(rows), np.bool_),
            page_updates=np.asarray(pages if step == 0 else np.zeros((0, 3)), np.int32),
            new_rows=tuple((row, RowParams()) for row in range(len(lengths))) if step == 0 else (),
            score_tokens=np.arange(len(tokens), dtype=np.int32),
            score_targets=np.zeros(len(tokens), np.int32),
        )
        yield executor.logits(batch)[:, :width].astype(np.float64)


# --- bounds, as the table words them ----------------------------------------------------------------------------------


def element(kind: str, *operands: F32) -> F64:
    bound = np.full(operands[0].shape, OPS[kind].tolerance.relative)
    for x in operands:
        bound = bound * np.maximum(np.abs(x), 1)
    return bound


def row(kind: str, expected: F64) -> F64:
    largest = np.abs(expected).max(axis=1, keepdims=True)
    return np.broadcast_to(OPS[kind].tolerance.relative * largest, expected.shape)


def dot(x: F64, w: F64, relative: float) -> F64:
    bound: F64 = relative * np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(w, axis=1)[None, :]
    return bound


# --- cases ------------------------------------------------------------------------------------------------------------

#: Lengths around the widths of vectors, panels and blocks.
WIDTHS = (1, 7, 8, 9, 31, 33, 64)
ROWS = (1, 5, 17)


def linear(format: str, rows: int, out: int, width: int, bias: bool) -> Case:
    x = normal(rows, width, 1)
    weight = random_weight("w", format, (out, width))
    b = normal(1, out, 3)[0]
    w = dequantize(weight).astype(np.float64)
    extra = b.astype(np.float64) if bias else np.zeros(out)
    expected = x.astype(np.float64) @ w.T + extra
    tolerance = OPS["linear"].tolerance
    floor = 2.0**-22 * np.abs(extra)
    bound = dot(x.astype(np.float64), w, tolerance.relative) + floor
    case = Case(
        f"linear-{format}-{rows}x{width}x{out}{'-bias' if bias else ''}",
        [x],
        lambda builder, v: builder.linear(v[0], "w", out=out, bias=bias),
        expected,
        bound,
        [weight, *([plain("w.bias", b)] if bias else [])],
    )
    if FORMATS[format].block_elements > 1:
        blocks = x.reshape(rows, -1, 32)
        scale = np.abs(blocks).max(axis=2, keepdims=True) / np.float32(127)
        near = (np.rint(blocks / scale) * scale).reshape(rows, width).astype(np.float64)
        case.rounded, case.rounded_bound = near @ w.T + extra, bound
        reach = np.abs(x).max(axis=1)[:, None] * np.linalg.norm(w, axis=1)[None, :]
        case.bound = bound + tolerance.int8 * reach
    return case


def linear_cases() -> Iterator[Case]:
    for format, fmt in FORMATS.items():
        block = fmt.block_elements
        widths = WIDTHS if block == 1 else (32, 64, 96, 288) if block == 32 else (256, 512)
        for i, width in enumerate(widths):
            yield linear(format, ROWS[i % 3], (1, 16, 37)[i % 3], width, bias=i % 2 == 0)
            yield linear(format, ROWS[(i + 1) % 3], (15, 33, 2)[i % 3], width, bias=i % 2 == 1)


def embed_cases() -> Iterator[Case]:
    for format, fmt in FORMATS.items():
        for width in (1, 33) if fmt.block_elements == 1 else (fmt.block_elements, 2 * fmt.block_elements):
            table = random_weight("table", format, (5, width))
            expected = dequantize(table).astype(np.float64)
            yield Case(
                f"embed-{format}-{width}",
                [],
                lambda b, _, width=width: b.embed(b.tokens, "table", rows=5, width=width),  # type: ignore[misc]
                expected,
                row("embed", expected),
                [table],
            )


def norm_cases() -> Iterator[Case]:
    for width in WIDTHS:
        for groups, offset in ((1, 0.0), (1, 1.0), (3, 0.0)):
            x, w = normal(5, width * groups, 4, scale=3), normal(1, width, 5)[0]
            grouped = x.astype(np.float64).reshape(5, groups, width)
            y = grouped / np.sqrt((grouped**2).mean(axis=2, keepdims=True) + 1e-5) * (offset + w.astype(np.float64))
            expected = y.reshape(5, -1)
            yield Case(
                f"rms_norm-{width}x{groups}-{offset:g}",
                [x],
                lambda b, v, o=offset, g=width: b.rms_norm(v[0], "w", eps=1e-5, offset=o, group=g),  # type: ignore[misc]
                expected,
                row("rms_norm", expected),
                [plain("w", w)],
            )
        x, w, bias = normal(5, width, 6, scale=2) + 3, normal(1, width, 7)[0], normal(1, width, 8)[0]
        centred = x.astype(np.float64) - x.astype(np.float64).mean(axis=1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-3) * w + bias
        yield Case(
            f"layer_norm-{width}",
            [x],
            lambda b, v: b.layer_norm(v[0], "w", eps=1e-3),
            normed,
            # Where all of a row is nearly its mean, the difference keeps only what is left of x's own precision.
            row("layer_norm", normed) + 2.0**-22 * np.abs(x).max() / math.sqrt(1e-3) * (width == 1),
            [plain("w", w), plain("w.bias", bias)],
        )
        unit = x.astype(np.float64) / np.maximum(np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True), 4.0)
        yield Case(f"l2_norm-{width}", [x], lambda b, v: b.l2_norm(v[0], eps=4.0), unit, row("l2_norm", unit))


FORMULAS: Mapping[str, Callable[[float], float]] = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    "relu": lambda x: max(x, 0.0),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
}


def elementwise_cases() -> Iterator[Case]:
    for width in WIDTHS:
        a, c = normal(5, width, 9, scale=4), normal(5, width, 10, scale=4)
        a[0, 0], a[1, 0] = 0.0, -20.0
        wide_a, wide_c = a.astype(np.float64), c.astype(np.float64)
        none = np.zeros_like(wide_a)
        yield Case(f"add-{width}", [a, c], lambda b, v: b.add(v[0], v[1]), (a + c).astype(np.float64), none)
        yield Case(f"mul-{width}", [a, c], lambda b, v: b.mul(v[0], v[1]), (a * c).astype(np.float64), none)
        scaled = (a * np.float32(0.3)).astype(np.float64)
        yield Case(f"scale-{width}", [a], lambda b, v: b.scale(v[0], 0.3), scaled, none)
        capped = 5 * np.tanh(wide_a / 5)
        yield Case(f"soft_cap-{width}", [a], lambda b, v: b.soft_cap(v[0], 5.0), capped, element("soft_cap", a))
        joined = np.concatenate([wide_a, wide_c, wide_a], axis=1)
        yield Case(f"concat-{width}", [a, c], lambda b, v: b.concat(v[0], v[1], v[0]), joined, np.zeros_like(joined))
        for function in FUNCTIONS:
            f = np.vectorize(FORMULAS[function], otypes=[np.float64])(wide_a)
            yield Case(
                f"activation-{function}-{width}",
                [a],
                lambda b, v, f=function: b.activation(v[0], f),  # type: ignore[misc]
                f,
                element("activation", a),
            )
            yield Case(
                f"gated_activation-{function}-{width}",
                [a, c],
                lambda b, v, f=function: b.gated_activation(v[0], v[1], f),  # type: ignore[misc]
                f * wide_c,
                element("gated_activation", a, c),
            )


def split_cases() -> Iterator[Case]:
    for sizes in ((1, 1), (7, 9, 1), (64, 33), (5,)):
        x = normal(5, sum(sizes), 11)
        parts = np.split(x.astype(np.float64), np.cumsum(sizes)[:-1], axis=1)
        back = np.concatenate(parts[::-1], axis=1)

        def build(b: PlanBuilder, v: list[Value], sizes: tuple[int, ...] = sizes) -> Value:
            parts = b.split(v[0], sizes)
            return b.concat(*parts[::-1]) if len(parts) > 1 else parts[0]

        yield Case(f"split-{'-'.join(map(str, sizes))}", [x], build, back, np.zeros_like(back))


def rope_cases() -> Iterator[Case]:
    for style in ("half", "interleaved"):
        for heads, dim, rotary, factor in ((1, 2, 2, 1.0), (3, 16, 16, 1.0), (2, 10, 6, 1.25), (1, 64, 64, 0.5)):
            x = normal(40, heads * dim, 12)
            table = [1000.0 ** (-2 * i / rotary) for i in range(rotary // 2)]
            y = x.astype(np.float64).reshape(40, heads, dim).copy()
            pairs = [(i, i + rotary // 2) if style == "half" else (2 * i, 2 * i + 1) for i in range(rotary // 2)]
            for frequency, (i, j) in zip(table, pairs, strict=True):
                turn = np.exp(1j * np.arange(40) * frequency)[:, None] * factor
                turned = (y[:, :, i] + 1j * y[:, :, j]) * turn
                y[:, :, i], y[:, :, j] = turned.real, turned.imag
            expected = y.reshape(40, -1)

            def build(
                b: PlanBuilder,
                v: list[Value],
                heads: int = heads,
                rotary: int = rotary,
                style: str = style,
                factor: float = factor,
                table: list[float] = table,
            ) -> Value:
                name = b.table("rope", table)
                return b.rope(v[0], heads=heads, rotary_dim=rotary, style=style, table=name, factor=factor)

            yield Case(f"rope-{style}-{heads}x{dim}-{rotary}", [x], build, expected, row("rope", expected))


def to_kv_dtype(x: F32, kv_dtype: str) -> F64:
    format = {"f32": "f32", "f16": "f16", "bf16": "bf16"}[kv_dtype]
    return dequantize(Weight("kv", format, x.shape, quantize(x, format))).astype(np.float64)


def attention(
    name: str,
    heads: int,
    kv_heads: int,
    dim: int,
    v_dim: int,
    *,
    window: int = 0,
    cap: float = 0.0,
    sinks: bool = False,
    causal: bool = True,
    **more: Any,
) -> Case:
    rows = more.setdefault("rows", (40,))
    total = sum(rows)
    q, k, v = normal(total, heads * dim, 13), normal(total, kv_heads * dim, 14), normal(total, kv_heads * v_dim, 15)
    sink = normal(1, heads, 16)[0]
    kept_k = to_kv_dtype(k, more.get("kv_dtype", "f32")).reshape(total, kv_heads, dim)
    kept_v = to_kv_dtype(v, more.get("kv_dtype", "f32")).reshape(total, kv_heads, v_dim)
    expected = np.zeros((total, heads, v_dim))
    scale = dim**-0.5
    first = 0
    for length in rows:
        for at in range(length):
            last = at if causal else length - 1
            seen = slice(first + (max(0, at - window + 1) if window else 0), first + last + 1)
            for head in range(heads):
                group = head // (heads // kv_heads)
                scores = scale * kept_k[seen, group] @ q[first + at, head * dim : (head + 1) * dim].astype(np.float64)
                scores = cap * np.tanh(scores / cap) if cap else scores
                shares = np.exp(scores)
                expected[first + at, head] = shares @ kept_v[seen, group]
                expected[first + at, head] /= shares.sum() + (np.exp(np.float64(sink[head])) if sinks else 0)
        first += length
    flat = expected.reshape(total, -1)
    reach = np.full(flat.shape, OPS["attention"].tolerance.relative * np.abs(kept_v).max())
    return Case(
        f"attention-{name}",
        [q, k, v],
        lambda b, x: b.attention(
            x[0],
            x[1],
            x[2],
            heads=heads,
            kv_heads=kv_heads,
            scale=scale,
            window=window,
            soft_cap=cap,
            sinks="sinks" if sinks else None,
            causal=causal,
        ),
        flat,
        reach,
        [plain("sinks", sink)] if sinks else [],
        **more,
    )


def attention_cases() -> Iterator[Case]:
    yield attention("one", 1, 1, 4, 4, rows=(1,))
    yield attention("plain", 4, 4, 16, 16)
    yield attention("grouped", 6, 2, 16, 16, page_size=1)
    yield attention("odd-sizes", 3, 1, 10, 7, page_size=4)
    yield attention("wide", 2, 1, 80, 64)
    yield attention("window-1", 2, 1, 8, 8, window=1)
    yield attention("window", 2, 2, 8, 8, window=9, page_size=4)
    yield attention("window-beyond", 2, 2, 8, 8, window=100)
    yield attention("soft-cap", 2, 1, 8, 8, cap=2.0)
    yield attention("sinks", 4, 2, 8, 8, sinks=True, window=5)
    yield attention("both-ways", 4, 2, 16, 16, causal=False, rows=(33, 7), page_size=4)
    yield attention("both-ways-alone", 3, 3, 10, 7, causal=False, rows=(1, 39), sinks=True)
    for kv_dtype in ("f32", "f16", "bf16"):
        yield attention(f"{kv_dtype}-rows-chunks", 4, 2, 16, 16, kv_dtype=kv_dtype, rows=(33, 7), chunk=5)
        yield attention(f"{kv_dtype}-decode", 4, 2, 32, 32, kv_dtype=kv_dtype, rows=(3, 37), chunk=1, page_size=4)


def gather_cases() -> Iterator[Case]:
    x = normal(9, 5, 17)
    yield Case("gather_rows", [x], lambda b, v: v[0], x.astype(np.float64), np.zeros(x.shape))


def whole_row_cases() -> Iterator[Case]:
    """The operations of encoders: what they give depends on where a token stands in its row."""
    x, lengths = normal(40, 70, 18), (33, 7)
    tops = np.repeat(np.cumsum(lengths) - lengths, lengths)  # the first token of each token's row
    f64 = x.astype(np.float64)
    means = np.stack([f64[top : at + 1].mean(axis=0) for at, top in enumerate(tops)])
    for method, expected in (("cls", f64[tops]), ("last", f64), ("mean", means)):

        def pool(b: PlanBuilder, v: list[Value], method: str = method) -> Value:
            return b.pool(v[0], method)

        yield Case(f"pool-{method}", [x], pool, expected, row("pool", expected), rows=lengths)

    table = normal(67, 70, 19)
    expected = table[np.arange(40) - tops + 3].astype(np.float64)
    yield Case(
        "embed_positions",
        [np.zeros_like(x)],
        lambda b, v: b.add(v[0], b.embed_positions("places", rows=67, width=70, offset=3)),
        expected,
        row("embed_positions", expected),
        [plain("places", table)],
        rows=lengths,
    )


CASES: dict[str, Case] = {
    case.name: case
    for make in (
        embed_cases,
        linear_cases,
        norm_cases,
        elementwise_cases,
        split_cases,
        rope_cases,
        attention_cases,
        gather_cases,
        whole_row_cases,
    )
    for case in make()
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("executor", EXECUTORS)
def test_operation(executor: str, case: Case) -> None:
    found = run(EXECUTORS[executor], case)
    assert_within(found, case.expected, case.bound)
    if executor != "reference" and case.rounded is not None and case.rounded_bound is not None:
        assert_within(found, case.rounded, case.rounded_bound)  # the rounding of activations explains all of it


def assert_within(found: F64, wanted: F64, bound: F64) -> None:
    excess = np.abs(found - wanted) - bound
    assert excess.max() <= 0, f"off by {excess.max():.3g} more than allowed at {np.argwhere(excess > 0)[:5].tolist()}"


def test_every_operation_has_cases() -> None:
    assert {name.split("-")[0] for name in CASES} == set(OPS)
    for kind in ("embed", "linear"):
        assert {name.split("-")[1] for name in CASES if name.startswith(f"{kind}-")} == set(FORMATS)
