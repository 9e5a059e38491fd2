"""The Jinja environment of chat templates: what the model hubs' templates expect, inside a sandbox with bounds.

Templates come with checkpoints, so they are somebody else's programs. The sandbox keeps them away from Python's
objects; the bounds below keep them from running or growing without end.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

#: Turns of all loops of one rendering together. A chat of 1,000 messages through the largest template takes about
#: 20,000.
MAX_LOOP_TURNS = 1_000_000
#: Characters of the rendered text, and of any string that a template puts together on the way.
MAX_CHARS = 64_000_000

_BEYOND_ASCII = re.compile("[^\x00-\x7f\ufdd0-\ufdef]")

BUDGET_KEY = "ramet_loop_budget"


class Budget:
    """Loop turns left to one rendering."""

    def __init__(self, turns: int) -> None:
        self.limit = turns
        self.left = turns

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise jinja2.TemplateError(f"the template took more than {self.limit} loop turns")


class GenerationTag(Extension):
    """`{% generation %} … {% endgeneration %}` marks what an assistant said, for training; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bound(NodeTransformer):
    """Routes every loop and every `~` of a template through a filter that counts."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "bounded_loop", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "bounded_concat", [], [], None, None, lineno=node.lineno)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Sandboxed, with the settings, filters and functions that chat templates are written for."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag])
        self.filters["tojson"] = _tojson
        self.filters["bounded_loop"] = _bounded_loop
        self.filters["bounded_concat"] = _bounded_concat
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _Bound().visit(tree)
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise jinja2.TemplateError("powers are not allowed in a chat template")
        size = _size(left) + _size(right) if operator == "+" else max(_repeated(left, right), _repeated(right, left))
        if size > MAX_CHARS:
            raise jinja2.TemplateError(f"the template made a value of more than {MAX_CHARS} characters")
        return super().call_binop(context, operator, left, right)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _repeated(value: Any, count: Any) -> int:
    return _size(value) * count if isinstance(count, int) else 0


@jinja2.pass_context
def _bounded_loop(context: Context, items: Iterable[Any]) -> Iterator[Any]:
    budget: Budget = context[BUDGET_KEY]
    for item in items:
        budget.spend()
        yield item


@jinja2.pass_context
def _bounded_concat(context: Context, parts: list[Any]) -> str:
    texts = list(map(str, parts))
    if sum(map(len, texts)) > MAX_CHARS:
        raise jinja2.TemplateError(f"the template made a string of more than {MAX_CHARS} characters")
    return "".join(texts)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the hubs' templates expect it: characters beyond ASCII stay, and nothing is escaped for HTML.

    Even with `ensure_ascii` the noncharacters that fence special text stay, so that the fence can be found afterwards.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _BEYOND_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
