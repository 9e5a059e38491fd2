"""The meaning of every operation in `plan/ops.py`, in numpy: slow and obvious, float64 inside, float32 between.

Where another executor differs by more than the table's tolerance, this file is right or it is the bug.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ramet.plan.plan import AttrValue, KvStream

F64 = NDArray[np.float64]
Array = NDArray[np.float32]
I32 = NDArray[np.int32]
Attrs = Mapping[str, AttrValue]


class KvCache(Protocol):
    """Keys and values of one stream during one step."""

    spec: KvStream

    def write(self, k: Array, v: Array) -> None:
        """Store a row per token of the step, [T, kv_heads · head_dim] and [T, kv_heads · v_dim], as the KV type."""
        ...

    def read(self, token: int, first: int, last: int) -> tuple[Array, Array]:
        """Keys [n, kv_heads, head_dim] and values [n, kv_heads, v_dim] of the positions first … last of the row that
        this token of the step belongs to."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """What operations see of the step beside their operands."""

    positions: I32  # [T]
    last_positions: I32  # [T] the last position of the token's row
    wanted: I32  # [L] flat indices of the tokens whose logits are wanted, ascending
    tables: Mapping[str, tuple[float, ...]]
    caches: Sequence[KvCache]  # by stream id


def _f64(x: NDArray[np.generic]) -> F64:
    return x.astype(np.float64)


def _number(attrs: Attrs, name: str) -> float:
    value = attrs[name]
    assert isinstance(value, int | float)
    return float(value)


def _int(attrs: Attrs, name: str) -> int:
    value = attrs[name]
    assert isinstance(value, int)
    return value


def function(name: str, x: F64) -> F64:
    """The activation functions of the table."""
    if name == "relu":
        return np.where(x < 0, 0.0, x)
    if name == "tanh":
        return np.tanh(x)
    if name == "gelu":
        erf: F64 = np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2.0))
        return 0.5 * x * (1.0 + erf)
    if name == "gelu_tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    sigmoid: F64 = 0.5 * (1.0 + np.tanh(0.5 * x))
    return x * sigmoid if name == "silu" else sigmoid


def _embed(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    return [weights[0][inputs[0][:, 0].astype(np.int64)]]


def _linear(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    y = _f64(inputs[0]) @ _f64(weights[0]).T
    if len(weights) > 1:
        y = y + weights[1]
    return [y.astype(np.float32)]


def _rms_norm(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    x = _f64(inputs[0]).reshape(len(inputs[0]), -1, len(weights[0]))
    mean_square = np.mean(x * x, axis=2, keepdims=True)
    y = x / np.sqrt(mean_square + _number(attrs, "eps")) * (_number(attrs, "offset") + _f64(weights[0]))
    return [y.reshape(inputs[0].shape).astype(np.float32)]


def _layer_norm(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    x = _f64(inputs[0])
    centred = x - x.mean(axis=1, keepdims=True)
    y = centred / np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + _number(attrs, "eps"))
    return [(y * weights[0] + weights[1]).astype(np.float32)]


def _add(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    return [inputs[0] + inputs[1]]


def _mul(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    return [inputs[0] * inputs[1]]


def _scale(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    return [inputs[0] * np.float32(_number(attrs, "factor"))]


def _soft_cap(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    cap = _number(attrs, "cap")
    return [(cap * np.tanh(_f64(inputs[0]) / cap)).astype(np.float32)]


def _activation(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    return [function(str(attrs["function"]), _f64(inputs[0])).astype(np.float32)]


def _gated_activation(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    return [(function(str(attrs["function"]), _f64(inputs[0])) * inputs[1]).astype(np.float32)]


def _rope(c: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    heads, head_dim, rotary = (_int(attrs, name) for name in ("heads", "head_dim", "rotary_dim"))
    factor = np.float32(_number(attrs, "factor"))
    angles = _f64(inputs[1]) * np.array(c.tables[str(attrs["table"])], np.float64)  # [T, rotary / 2]
    cos = _f64(np.cos(angles).astype(np.float32) * factor)[:, None, :]
    sin = _f64(np.sin(angles).astype(np.float32) * factor)[:, None, :]
    y = _f64(inputs[0]).reshape(-1, heads, head_dim)
    if attrs["style"] == "half":
        first, second = slice(0, rotary // 2), slice(rotary // 2, rotary)
    else:
        first, second = slice(0, rotary, 2), slice(1, rotary, 2)
    a, b = y[:, :, first].copy(), y[:, :, second].copy()
    y[:, :, first] = a * cos - b * sin
    y[:, :, second] = b * cos + a * sin
    return [y.reshape(inputs[0].shape).astype(np.float32)]


def _split(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    sizes = attrs["sizes"]
    assert isinstance(sizes, tuple)
    return np.split(inputs[0], np.cumsum(sizes)[:-1].tolist(), axis=1)


def _concat(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    return [np.concatenate(inputs, axis=1)]


def _attention(c: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    cache = c.caches[_int(attrs, "stream")]
    heads, kv_heads, window = _int(attrs, "heads"), cache.spec.kv_heads, cache.spec.window
    scale, cap = _number(attrs, "scale"), _number(attrs, "soft_cap")
    cache.write(inputs[1], inputs[2])
    out = np.empty((len(inputs[0]), heads, cache.spec.v_dim), np.float32)
    lasts = c.positions if attrs["causal"] else c.last_positions
    for token, (position, last) in enumerate(zip(c.positions.tolist(), lasts.tolist(), strict=True)):
        keys, values = cache.read(token, max(0, position - window + 1) if window else 0, last)
        q = _f64(inputs[0][token]).reshape(kv_heads, heads // kv_heads, cache.spec.head_dim)
        scores = scale * np.einsum("kgd,nkd->kgn", q, _f64(keys)).reshape(heads, len(keys))
        if cap:
            scores = cap * np.tanh(scores / cap)
        largest = scores.max(axis=1, keepdims=True)
        sinks = np.full((heads, 1), -np.inf)  # no sink weighs nothing
        if weights:
            sinks = _f64(weights[0])[:, None]
            largest = np.maximum(largest, sinks)
        shares = np.exp(scores - largest)
        shares /= shares.sum(axis=1, keepdims=True) + np.exp(sinks - largest)
        shares = shares.reshape(kv_heads, heads // kv_heads, len(keys))
        out[token] = np.einsum("kgn,nkd->kgd", shares, _f64(values)).reshape(heads, cache.spec.v_dim)
    return [out.reshape(len(out), heads * cache.spec.v_dim)]


def _gather_rows(c: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    return [inputs[0][c.wanted]]


def _embed_positions(c: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    return [weights[0][inputs[0][:, 0].astype(np.int64) + _int(attrs, "offset")]]


def _pool(c: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    if attrs["method"] == "last":
        return [inputs[0][c.wanted]]
    firsts = c.wanted - c.positions[c.wanted]  # rows are whole
    if attrs["method"] == "cls":
        return [inputs[0][firsts]]
    means = np.empty((len(firsts), inputs[0].shape[1]), np.float32)
    for mean, first, last in zip(means, firsts.tolist(), c.wanted.tolist(), strict=True):
        mean[:] = _f64(inputs[0][first : last + 1]).mean(axis=0)
    return [means]


def _l2_norm(_: Context, inputs: list[Array], weights: list[Array], attrs: Attrs) -> list[Array]:
    x = _f64(inputs[0])
    norms = np.sqrt(np.sum(x * x, axis=1, keepdims=True))
    return [(x / np.maximum(norms, _number(attrs, "eps"))).astype(np.float32)]


Meaning = Callable[[Context, list[Array], list[Array], Attrs], list[Array]]

MEANINGS: Mapping[str, Meaning] = {
    "embed": _embed,
    "linear": _linear,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "add": _add,
    "mul": _mul,
    "scale": _scale,
    "soft_cap": _soft_cap,
    "activation": _activation,
    "gated_activation": _gated_activation,
    "rope": _rope,
    "split": _split,
    "concat": _concat,
    "attention": _attention,
    "gather_rows": _gather_rows,
    "embed_positions": _embed_positions,
    "pool": _pool,
    "l2_norm": _l2_norm,
}
