"""A plan as text for people: one line per operation, stable, so that a change to a model shows as a diff."""

from __future__ import annotations

from ramet.plan.plan import Op, Plan


def to_text(plan: Plan) -> str:
    """Streams, tables, then the operations in order:

    `%7 layers.0.rope [tokens, 64] = rope(%4, %1) heads=4 …`; weights stand as name[shape] behind the values.
    Numbers are shortened to six digits, so that a float32 of a GGUF file and a float64 of a config.json look alike.
    """
    lines = [f"plan {plan.name}"]
    lines.extend(
        f"stream {s.id} {s.name}: kv_heads={s.kv_heads} head_dim={s.head_dim} v_dim={s.v_dim} window={s.window}"
        for s in plan.streams
    )
    for name, table in plan.tables.items():
        lines.append(f"table {name}: {' '.join(f'{x:.6g}' for x in table)}")
    lines.extend(_line(plan, op) for op in plan.ops)
    lines.extend(f"output {name}: %{value}" for name, value in plan.outputs.items())
    return "\n".join(lines) + "\n"


def _line(plan: Plan, op: Op) -> str:
    results = ", ".join(
        f"%{spec.id} {spec.name} [{spec.rows}, {spec.width}]" for spec in (plan.values[v] for v in op.outputs)
    )
    operands = [f"%{v}" for v in op.inputs]
    operands += [f"{w.name}[{', '.join(map(str, w.shape))}]" for w in (plan.weights[i] for i in op.weights)]
    attrs = "".join(
        f" {name}={value:.6g}" if isinstance(value, float) else f" {name}={value}" for name, value in op.attrs.items()
    )
    return f"{results} = {op.kind}({', '.join(operands)}){attrs}"
