"""pythonic: the whole message is a Python list of calls, `[f(a=1, b="x"), g()]`, as Llama 4 writes it.

The calls go out together when the closing bracket has come.
"""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any

from ramet.text.scanner import Scanner, Steps
from ramet.text.tools.base import ToolParser

START, END = "<|python_start|>", "<|python_end|>"
_NAMES = {"true": True, "false": False, "null": None}


class Pythonic(ToolParser):
    def parse(self, text: Scanner) -> Steps[None]:
        text.mark()
        yield from text.space()
        yield from text.literal(START)
        yield from text.space()
        calls = None
        if (yield from text.peek()) == "[":
            parts: list[str] = []
            if (yield from _bracketed(text, parts)):
                calls = calls_in("".join(parts))
        if calls is None:
            self.content(text.since_mark())
        else:
            for name, arguments in calls:
                self.start(name)
                self.arguments(json.dumps(arguments, ensure_ascii=False))
                self.end()
            yield from text.space()
            yield from text.literal(END)
        yield from text.until([], self.content)
        self.end_of_text()


def calls_in(source: str) -> list[tuple[str, dict[str, Any]]] | None:
    """Names and arguments of the calls in a Python list, or None when it is not a list of calls by keyword."""
    try:
        with warnings.catch_warnings():  # about escapes that Python does not know
            warnings.simplefilter("ignore")
            tree = ast.parse(source.strip(), mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        calls = [_call(node) for node in tree.elts]
        json.dumps([arguments for _, arguments in calls], allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return calls


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call by keyword")
    return ast.unparse(node.func), {_keyword(each): _value(each.value) for each in node.keywords}


def _keyword(node: ast.keyword) -> str:
    if node.arg is None:
        raise ValueError("** in a call")
    return node.arg


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if key is not None]
        return {str(ast.literal_eval(key)): _value(value) for key, value in zip(keys, node.values, strict=True)}
    return ast.literal_eval(node)


def _bracketed(text: Scanner, parts: list[str]) -> Steps[bool]:
    """Take from `[` to its closing bracket, strings of either quote skipped over. False when the text ends before."""
    depth, quote = 0, ""
    while character := (yield from text.take()):
        parts.append(character)
        if quote:
            if character == "\\":
                parts.append((yield from text.take()))
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character in "[({":
            depth += 1
        elif character in "])}":
            depth -= 1
            if depth == 0:
                return True
    return False
