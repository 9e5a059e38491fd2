"""A plan as JSON text: how it crosses to the native library, and how it is kept. Reading verifies."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from ramet.errors import PlanError
from ramet.plan.plan import KvStream, Op, Plan, ValueSpec, WeightSpec
from ramet.plan.verify import verify

VERSION = 1


class _PlanJson(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    name: str
    values: tuple[ValueSpec, ...]
    weights: tuple[WeightSpec, ...]
    streams: tuple[KvStream, ...]
    tables: dict[str, tuple[float, ...]]
    ops: tuple[_OpJson, ...]
    outputs: dict[str, int]


class _OpJson(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    weights: tuple[int, ...]
    attrs: dict[str, int | float | str | bool | tuple[int, ...]]


def to_json(plan: Plan) -> str:
    """One line of JSON; numbers keep every bit (shortest text that reads back the same float64)."""
    document: dict[str, Any] = {
        "version": VERSION,
        "name": plan.name,
        "values": [_fields(v, "id", "name", "rows", "width", "dtype") for v in plan.values],
        "weights": [_fields(w, "id", "name", "shape") for w in plan.weights],
        "streams": [_fields(s, "id", "name", "kv_heads", "head_dim", "v_dim", "window") for s in plan.streams],
        "tables": dict(plan.tables),
        "ops": [_fields(op, "kind", "name", "inputs", "outputs", "weights", "attrs") for op in plan.ops],
        "outputs": dict(plan.outputs),
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_json(text: str | bytes) -> Plan:
    """The plan of `to_json`, verified.

    Raises:
        PlanError: not JSON, another version, a field missing or of a wrong type, or an illegal plan.
    """
    try:
        raw = msgspec.json.decode(text, type=_PlanJson)
    except msgspec.DecodeError as error:
        raise PlanError(f"not a plan: {error}") from None
    if raw.version != VERSION:
        raise PlanError(f"plan version {raw.version}: this program reads version {VERSION}")
    ops = tuple(Op(op.kind, op.name, op.inputs, op.outputs, op.weights, op.attrs) for op in raw.ops)
    return verify(Plan(raw.name, raw.values, raw.weights, raw.streams, raw.tables, ops, raw.outputs))


def _fields(spec: object, *names: str) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in names}
