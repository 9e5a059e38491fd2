"""A plan: the flat list of coarse operations that a model is, over named values. Built once, run by every executor.

All activations are float32 matrices `[rows, width]`; `rows` is `tokens` (one per query token of the step) or `logits`
(one per token whose logits are wanted, after `gather_rows`). The plan inputs `tokens` and `positions` are int32
`[tokens]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Rows = Literal["tokens", "logits"]
DType = Literal["f32", "i32"]
AttrValue = int | float | str | bool | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """A named value of the plan; `id` is its index in `Plan.values`."""

    id: int
    name: str
    rows: Rows
    width: int  # floats per row; 1 for the int32 inputs
    dtype: DType = "f32"


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight the plan needs. Matrices are `[out, in]` (row-major, `in` contiguous), vectors `[n]`."""

    id: int
    name: str  # the checkpoint's Hugging Face name without the leading "model." and the trailing ".weight"
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvStream:
    """State of one attention layer: keys and values of every token of a row, in pages."""

    id: int
    name: str
    kv_heads: int
    head_dim: int  # of keys
    v_dim: int  # of values
    window: int = 0  # a query sees the `window` latest positions, itself included; 0: all

    @property
    def floats_per_token(self) -> int:
        return self.kv_heads * (self.head_dim + self.v_dim)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. Inputs, outputs: value ids. Weights: weight ids. `plan.ops.OPS[kind]` says the rest."""

    kind: str
    name: str  # scope path, for people: layers.0.self_attn.q_proj
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    weights: tuple[int, ...] = ()
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """A verified plan. `tables` are named float vectors (rope inverse frequencies), shared by the ops naming them."""

    name: str
    values: tuple[ValueSpec, ...]
    weights: tuple[WeightSpec, ...]
    streams: tuple[KvStream, ...]
    tables: Mapping[str, tuple[float, ...]]
    ops: tuple[Op, ...]
    outputs: Mapping[str, int]  # "logits" -> value id
