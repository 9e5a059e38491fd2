"""`PlanBuilder`: what a model file calls to make a plan. Each call adds one operation and gives its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from ramet.errors import PlanError
from ramet.plan.plan import AttrValue, KvStream, Op, Plan, ValueSpec, WeightSpec
from ramet.plan.verify import infer, verify


class Value:
    """A value of the plan being built: it has a shape but no numbers, so that nothing is baked in by accident."""

    __slots__ = ("spec",)

    def __init__(self, spec: ValueSpec) -> None:
        self.spec = spec

    @property
    def width(self) -> int:
        """Floats per row."""
        return self.spec.width

    def __repr__(self) -> str:
        return f"<Value {self.spec.name} [{self.spec.rows}, {self.spec.width}]>"

    def _refuse(self, *_: object) -> NoReturn:
        raise PlanError(
            f"{self!r} has no numbers while the plan is built: it cannot be tested, counted, compared or computed "
            "with; use the builder's operations (b.add, b.mul, …) or decide by the model's config"
        )

    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __getitem__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = _refuse


class PlanBuilder:
    """Builds one plan. `tokens` and `positions` are its int32 inputs, one per query token of a step; so is
    `token_types` where a model asks for it, before anything else.

    Weights are named as in the checkpoint, below the current scope; a weight named twice is one weight (tied
    embeddings). Every call raises `PlanError` at once if the operands do not fit.
    """

    def __init__(self, name: str = "text") -> None:
        self._name = name
        self._values: list[ValueSpec] = []
        self._weights: dict[str, WeightSpec] = {}
        self._streams: list[KvStream] = []
        self._tables: dict[str, tuple[float, ...]] = {}
        self._ops: list[Op] = []
        self._outputs: dict[str, int] = {}
        self._scopes: list[str] = []
        self._taken: set[str] = set()
        self.tokens = self._input("tokens")
        self.positions = self._input("positions")

    @property
    def token_types(self) -> Value:
        """The input of that name: 0, or 1 in the second text of a pair."""
        if len(self._values) == 2:
            self._input("token_types")
        if self._values[2].name != "token_types":
            raise PlanError("token_types must be asked for before the first operation")
        return Value(self._values[2])

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names inside begin with `name` and a dot."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    def table(self, name: str, numbers: Sequence[float]) -> str:
        """A named vector of floats for `rope`; the name is global. Gives the name back."""
        table = tuple(float(x) for x in numbers)
        if self._tables.setdefault(name, table) != table:
            raise PlanError(f"table {name!r} is defined twice, with different numbers")
        return name

    def output(self, name: str, value: Value) -> None:
        """Name a result of the plan."""
        if name in self._outputs:
            raise PlanError(f"output {name!r} is defined twice")
        self._outputs[name] = value.spec.id

    def build(self) -> Plan:
        """The plan, verified."""
        return verify(
            Plan(
                self._name,
                tuple(self._values),
                tuple(self._weights.values()),
                tuple(self._streams),
                dict(self._tables),
                tuple(self._ops),
                dict(self._outputs),
            )
        )

    # The operations, in the order of the table in `plan/ops.py`.

    def embed(self, ids: Value, weight: str, *, rows: int, width: int) -> Value:
        """Rows of the table `weight` [rows, width]."""
        return self._one("embed", weight, [ids], [self._weight(weight, (rows, width))])

    def embed_positions(self, weight: str, *, rows: int, width: int, offset: int = 0) -> Value:
        """Row `position + offset` of the table `weight` [rows, width], for each token."""
        return self._one(
            "embed_positions", weight, [self.positions], [self._weight(weight, (rows, width))], offset=offset
        )

    def linear(self, x: Value, weight: str, *, out: int, bias: bool = False) -> Value:
        """x · wᵀ with `weight` [out, x.width], plus `weight`.bias [out]."""
        weights = [self._weight(weight, (out, x.width))]
        if bias:
            weights.append(self._weight(f"{weight}.bias", (out,)))
        return self._one("linear", weight, [x], weights)

    def rms_norm(self, x: Value, weight: str, *, eps: float, offset: float = 0.0, group: int | None = None) -> Value:
        """Root-mean-square norm of each group of `group` floats (default: the whole row), with `weight` [group]."""
        weights = [self._weight(weight, (x.width if group is None else group,))]
        return self._one("rms_norm", weight, [x], weights, eps=float(eps), offset=float(offset))

    def layer_norm(self, x: Value, weight: str, *, eps: float) -> Value:
        """Layer norm with `weight` and `weight`.bias [x.width]."""
        weights = [self._weight(weight, (x.width,)), self._weight(f"{weight}.bias", (x.width,))]
        return self._one("layer_norm", weight, [x], weights, eps=float(eps))

    def add(self, a: Value, b: Value) -> Value:
        return self._one("add", "add", [a, b])

    def mul(self, a: Value, b: Value) -> Value:
        return self._one("mul", "mul", [a, b])

    def scale(self, x: Value, factor: float) -> Value:
        return self._one("scale", "scale", [x], factor=float(factor))

    def soft_cap(self, x: Value, cap: float) -> Value:
        """cap · tanh(x / cap)."""
        return self._one("soft_cap", "soft_cap", [x], cap=float(cap))

    def activation(self, x: Value, function: str) -> Value:
        return self._one("activation", function, [x], function=function)

    def gated_activation(self, gate: Value, up: Value, function: str) -> Value:
        """function(gate) · up."""
        return self._one("gated_activation", "gated_activation", [gate, up], function=function)

    def rope(
        self,
        x: Value,
        *,
        heads: int,
        table: str,
        rotary_dim: int | None = None,
        style: str = "half",
        factor: float = 1.0,
        name: str = "rope",
    ) -> Value:
        """Rotary embedding of each head by `positions`; `rotary_dim` (default: the whole head) floats rotate."""
        head_dim = x.width // heads
        return self._one(
            "rope",
            name,
            [x, self.positions],
            heads=heads,
            head_dim=head_dim,
            rotary_dim=head_dim if rotary_dim is None else rotary_dim,
            style=style,
            table=table,
            factor=float(factor),
        )

    def split(self, x: Value, sizes: Sequence[int]) -> tuple[Value, ...]:
        """The columns of x, cut into values of these widths."""
        return self._add("split", "split", [x], (), {"sizes": tuple(sizes)})

    def concat(self, *parts: Value) -> Value:
        """Columns joined."""
        return self._one("concat", "concat", parts)

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        heads: int,
        kv_heads: int,
        scale: float,
        window: int = 0,
        soft_cap: float = 0.0,
        sinks: str | None = None,
        causal: bool = True,
    ) -> Value:
        """Attention over a new state stream named as the current scope. `sinks`: a weight [heads]."""
        stream = KvStream(
            len(self._streams),
            ".".join(self._scopes) or "kv",
            kv_heads,
            k.width // kv_heads,
            v.width // kv_heads,
            window,
        )
        self._streams.append(stream)
        weights = [] if sinks is None else [self._weight(sinks, (heads,))]
        return self._one(
            "attention",
            "attention",
            [q, k, v],
            weights,
            stream=stream.id,
            heads=heads,
            scale=float(scale),
            soft_cap=float(soft_cap),
            causal=causal,
        )

    def gather_rows(self, x: Value) -> Value:
        """The rows whose logits are wanted."""
        return self._one("gather_rows", "gather_rows", [x])

    def pool(self, x: Value, method: str) -> Value:
        """One row for each prompt whose vector is wanted: its first token's ("cls"), last token's, or the mean."""
        return self._one("pool", "pool", [x], method=method)

    def l2_norm(self, x: Value, *, eps: float = 1e-12) -> Value:
        """x / max(‖x‖, eps)."""
        return self._one("l2_norm", "l2_norm", [x], eps=float(eps))

    def _input(self, name: str) -> Value:
        self._taken.add(name)
        spec = ValueSpec(len(self._values), name, "tokens", 1, "i32")
        self._values.append(spec)
        return Value(spec)

    def _weight(self, name: str, shape: tuple[int, ...]) -> WeightSpec:
        full = self._path(name)
        spec = self._weights.setdefault(full, WeightSpec(len(self._weights), full, shape))
        if spec.shape != shape:
            raise PlanError(f"weight {full!r} is used as {list(shape)} and as {list(spec.shape)}")
        return spec

    def _one(
        self,
        kind: str,
        name: str,
        inputs: Sequence[Value],
        weights: Sequence[WeightSpec] = (),
        **attrs: AttrValue,
    ) -> Value:
        (value,) = self._add(kind, name, inputs, weights, attrs)
        return value

    def _add(
        self,
        kind: str,
        name: str,
        inputs: Sequence[Value],
        weights: Sequence[WeightSpec],
        attrs: dict[str, AttrValue],
    ) -> tuple[Value, ...]:
        name = self._unique(self._path(name))
        for value in inputs:
            if value.spec.id >= len(self._values) or self._values[value.spec.id] is not value.spec:
                raise PlanError(f"{kind} {name!r}: {value!r} belongs to another builder")
        specs = [value.spec for value in inputs]
        result = infer(kind, name, specs, weights, attrs, tuple(self._streams), self._tables)
        outputs = []
        for i, (rows, width) in enumerate(result):
            label = name if len(result) == 1 else self._unique(f"{name}.{i}")
            outputs.append(ValueSpec(len(self._values), label, rows, width))
            self._values.append(outputs[-1])
        ids = tuple(spec.id for spec in outputs)
        self._ops.append(Op(kind, name, tuple(s.id for s in specs), ids, tuple(w.id for w in weights), attrs))
        return tuple(Value(spec) for spec in outputs)

    def _path(self, name: str) -> str:
        return ".".join([*self._scopes, name])

    def _unique(self, name: str) -> str:
        """The name, or name.2, name.3, … where it is taken."""
        unique, n = name, 1
        while unique in self._taken:
            n += 1
            unique = f"{name}.{n}"
        self._taken.add(unique)
        return unique
