"""The reference page docs/operations.md, written from the table: `python -m ramet.plan.reference_page`."""

from __future__ import annotations

import sys

from ramet.plan.ops import OPS, Attr, OpSpec, Tolerance


def reference_page() -> str:
    """Markdown: one section per operation."""
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
        "dot": "‖x‖ · ‖w‖",
    }
    text = f"{tolerance.relative:.2g} × {norms[tolerance.norm]}"
    return text + (f"; quantised weights add {tolerance.int8:.2g} × max|x| · ‖w‖" if tolerance.int8 else "")


if __name__ == "__main__":
    sys.stdout.write(reference_page())
