"""Is this plan legal? Every rule of `plan/ops.py`, for every operation, and the rules that join them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ramet.errors import PlanError
from ramet.plan.ops import MAX_INT, OPS, OpSpec, Result, Shapes
from ramet.plan.plan import AttrValue, KvStream, Op, Plan, ValueSpec, WeightSpec

#: No dimension of a value, weight or stream may exceed this: products of two stay far from overflow in int64.
MAX_DIM = 1 << 28


#: Names of the plan's int32 inputs, by value id. A plan may do without the last.
INPUTS = ("tokens", "positions", "token_types")
POSITIONS = 1


def num_inputs(values: Sequence[ValueSpec]) -> int:
    """How many of `INPUTS` the plan has."""
    return 3 if values[2:3] == (ValueSpec(2, "token_types", "tokens", 1, "i32"),) else 2


def verify(plan: Plan) -> Plan:
    """The same plan, checked whole.

    Raises:
        PlanError: names the operation, its operands' shapes and the rule that is broken.
    """
    _check_values(plan.values)
    _check_weights(plan.weights)
    _check_streams(plan.streams)
    for name, table in plan.tables.items():
        if not table or not all(math.isfinite(x) for x in table):
            raise PlanError(f"table {name!r} must have finite numbers, at least one")
    defined = set(range(num_inputs(plan.values)))
    for op in plan.ops:
        _check_op(plan, op, defined)
    for value in plan.values:
        if value.id not in defined:
            raise PlanError(f"value {value.name!r} is never computed")
    _check_outputs(plan)
    _check_use(plan)
    return plan


def infer(
    kind: str,
    name: str,
    inputs: Sequence[ValueSpec],
    weights: Sequence[WeightSpec],
    attrs: Mapping[str, AttrValue],
    streams: tuple[KvStream, ...],
    tables: Mapping[str, tuple[float, ...]],
) -> Result:
    """Rows and width of each result of one operation.

    Raises:
        PlanError: the operands or attributes break a rule of the operation.
    """
    try:
        if kind not in OPS:
            raise PlanError(f"no such operation; there are {', '.join(OPS)}")
        spec = OPS[kind]
        _check_operands(spec, inputs, weights)
        _check_attrs(spec, attrs)
        widths = tuple(value.width for value in inputs)
        shapes = tuple(weight.shape for weight in weights)
        return spec.shape(Shapes(inputs[0].rows, widths, shapes, attrs, streams, tables))
    except PlanError as error:
        told = [f"{v.name} [{v.rows}, {v.width}] {v.dtype}" for v in inputs]
        told += [f"{w.name} {list(w.shape)}" for w in weights]
        raise PlanError(f"{kind} {name!r}: {error.message} (operands: {'; '.join(told) or 'none'})") from None


def _check_operands(spec: OpSpec, inputs: Sequence[ValueSpec], weights: Sequence[WeightSpec]) -> None:
    least = len(spec.inputs)
    if len(inputs) < least or (len(inputs) > least and not spec.variadic):
        raise PlanError(f"takes {least}{' or more' if spec.variadic else ''} inputs, not {len(inputs)}")
    for i, value in enumerate(inputs):
        operand = spec.inputs[min(i, least - 1)]
        if value.dtype != operand.dtype:
            raise PlanError(f"{operand.name} must be {operand.dtype}")
        if operand.name == "positions" and value.id != POSITIONS:
            raise PlanError("positions must be the plan's input of that name")
        if operand.name == "ids" and value.id == POSITIONS:
            raise PlanError("ids must be the plan's input tokens or token_types")
    if len({value.rows for value in inputs}) != 1:
        raise PlanError("inputs must have the same rows")
    needed = sum(not weight.optional for weight in spec.weights)
    if not needed <= len(weights) <= len(spec.weights):
        raise PlanError(f"takes {needed} to {len(spec.weights)} weights, not {len(weights)}")
    for wanted, weight in zip(spec.weights, weights, strict=False):
        if len(weight.shape) != wanted.rank:
            raise PlanError(f"{wanted.name} must have {wanted.rank} dimension(s)")


def _check_attrs(spec: OpSpec, attrs: Mapping[str, AttrValue]) -> None:
    if set(attrs) != set(spec.attrs):
        raise PlanError(f"attributes must be {sorted(spec.attrs)}, not {sorted(attrs)}")
    for name, attr in spec.attrs.items():
        complaint = attr.complaint(attrs[name])
        if complaint is not None:
            raise PlanError(f"{name} {complaint}, not {attrs[name]!r}")


def _check_op(plan: Plan, op: Op, defined: set[int]) -> None:
    """Inputs are computed before, weights exist, results are new and have the shapes that the rule says."""
    for source in op.inputs:
        if source not in defined:
            raise PlanError(f"{op.kind} {op.name!r}: input {source} is not computed before it")
    for weight in op.weights:
        if not 0 <= weight < len(plan.weights):
            raise PlanError(f"{op.kind} {op.name!r}: there is no weight {weight}")
    result = infer(
        op.kind,
        op.name,
        [plan.values[i] for i in op.inputs],
        [plan.weights[i] for i in op.weights],
        op.attrs,
        plan.streams,
        plan.tables,
    )
    if len(result) != len(op.outputs):
        raise PlanError(f"{op.kind} {op.name!r}: has {len(op.outputs)} outputs where the rule gives {len(result)}")
    for output, (rows, width) in zip(op.outputs, result, strict=True):
        if not 0 <= output < len(plan.values):
            raise PlanError(f"{op.kind} {op.name!r}: there is no value {output}")
        if output in defined:
            raise PlanError(f"{op.kind} {op.name!r}: value {output} is computed twice")
        value = plan.values[output]
        if (value.rows, value.width, value.dtype) != (rows, width, "f32"):
            said = f"[{value.rows}, {value.width}] {value.dtype}"
            raise PlanError(f"{op.kind} {op.name!r}: gives [{rows}, {width}] f32, but {value.name!r} is {said}")
        defined.add(output)


def _check_values(values: tuple[ValueSpec, ...]) -> None:
    for i, name in enumerate(INPUTS[:2]):
        if values[i : i + 1] != (ValueSpec(i, name, "tokens", 1, "i32"),):
            raise PlanError(f"value {i} must be the i32 input {name!r}")
    _check_named("value", values)
    for value in values:
        if not 1 <= value.width <= MAX_DIM:
            raise PlanError(f"value {value.name!r}: width {value.width} is not between 1 and {MAX_DIM}")


def _check_weights(weights: tuple[WeightSpec, ...]) -> None:
    _check_named("weight", weights)
    for weight in weights:
        if not weight.shape or not all(1 <= n <= MAX_DIM for n in weight.shape):
            raise PlanError(f"weight {weight.name!r}: {list(weight.shape)} must be numbers between 1 and {MAX_DIM}")


def _check_streams(streams: tuple[KvStream, ...]) -> None:
    _check_named("stream", streams)
    for stream in streams:
        if not all(1 <= n <= MAX_DIM for n in (stream.kv_heads, stream.head_dim, stream.v_dim)):
            raise PlanError(f"stream {stream.name!r}: sizes must be between 1 and {MAX_DIM}: {stream}")
        if not 0 <= stream.window <= MAX_INT:
            raise PlanError(f"stream {stream.name!r}: the window must be between 0 and {MAX_INT}, not {stream.window}")


def _check_named(what: str, specs: Sequence[ValueSpec | WeightSpec | KvStream]) -> None:
    """Ids are indices, names differ."""
    names: set[str] = set()
    for i, spec in enumerate(specs):
        if spec.id != i:
            raise PlanError(f"{what} {spec.name!r} has id {spec.id} at place {i}")
        if not spec.name or spec.name in names:
            raise PlanError(f"two {what}s are named {spec.name!r}, or it has no name")
        names.add(spec.name)


def _check_outputs(plan: Plan) -> None:
    if not plan.outputs:
        raise PlanError("the plan has no outputs")
    for name, value in plan.outputs.items():
        if not 0 <= value < len(plan.values):
            raise PlanError(f"output {name!r}: there is no value {value}")
        if name in ("logits", "embedding") and plan.values[value].rows != "logits":
            raise PlanError(
                f"output {name!r} must have a row per token whose logits are wanted (use gather_rows or pool)"
            )
    if {"logits", "embedding"} <= set(plan.outputs):
        raise PlanError("a plan gives logits or an embedding, not both")
    if "embedding" in plan.outputs and not any(op.kind == "embed" and op.inputs == (0,) for op in plan.ops):
        raise PlanError("a plan that gives an embedding must embed its tokens")


def _check_use(plan: Plan) -> None:
    """Nothing is there in vain: a value, weight, stream or table that nobody reads is a slip in the model file."""
    read = {value for op in plan.ops for value in op.inputs} | set(plan.outputs.values())
    for op in plan.ops:
        if not read.intersection(op.outputs):
            raise PlanError(f"{op.kind} {op.name!r}: nothing uses its result")
    weights = {weight for op in plan.ops for weight in op.weights}
    for weight in plan.weights:
        if weight.id not in weights:
            raise PlanError(f"weight {weight.name!r} is not used")
    users = [op.attrs["stream"] for op in plan.ops if op.kind == "attention"]
    for stream in plan.streams:
        if users.count(stream.id) != 1:
            raise PlanError(f"stream {stream.name!r} must be used by one attention, not {users.count(stream.id)}")
    tables = {op.attrs["table"] for op in plan.ops if op.kind == "rope"}
    for table in plan.tables:
        if table not in tables:
            raise PlanError(f"table {table!r} is not used")
