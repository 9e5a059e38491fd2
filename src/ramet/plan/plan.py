"""A plan: the flat list of coarse operations that a model is, over named values. Built once, run by every executor.

All activations are float32 matrices `[rows, width]`; `rows` is `tokens` (one per query token of the step) or `logits`
(one per token whose logits are wanted, after `gather_rows` or `pool`). The plan inputs `tokens`, `positions` and, where
a model embeds them, `token_types` are int32 `[tokens]`.
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
    outputs: Mapping[str, int]  # "logits" or "embedding" -> value id

    @property
    def embedding_size(self) -> int:
        """Floats of the vector that a row gives; 0 where rows draw tokens from logits."""
        return self.values[self.outputs["embedding"]].width if "embedding" in self.outputs else 0

    @property
    def vocab_size(self) -> int:
        """Token ids are below this: rows of the head, or of the tokens' table where there is no head."""
        if "logits" in self.outputs:
            return self.values[self.outputs["logits"]].width
        return next(self.weights[op.weights[0]].shape[0] for op in self.ops if op.kind == "embed" and op.inputs == (0,))

    @property
    def whole_rows(self) -> bool:
        """Whether rows must come whole, from position 0, in one step, because some token depends on later ones."""
        return any(
            (op.kind == "attention" and not op.attrs["causal"]) or (op.kind == "pool" and op.attrs["method"] != "last")
            for op in self.ops
        )

    @property
    def max_positions(self) -> int | None:
        """The longest row that the plan's tables of positions hold; None where there is no such table."""
        sizes = [
            self.weights[op.weights[0]].shape[0] - int(op.attrs["offset"])  # type: ignore[arg-type]  # an int attribute
            for op in self.ops
            if op.kind == "embed_positions"
        ]
        return min(sizes, default=None)
