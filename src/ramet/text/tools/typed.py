"""Arguments that a format writes as text between tags: their JSON, by the type that the function declares."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping
from typing import Any


def declared_type(schema: Any) -> str:
    """The JSON type that a parameter's schema names, lower case; "string" where it names none."""
    if not isinstance(schema, Mapping):
        return "string"
    kind = schema.get("type")
    if isinstance(kind, list):  # ["string", "null"]: the first that is not null
        kind = next((each for each in kind if each != "null"), None)
    if isinstance(kind, str):
        return kind.lower()
    for key in ("anyOf", "oneOf"):
        for option in schema.get(key) or ():
            if isinstance(option, Mapping) and option.get("type") not in (None, "null"):
                return declared_type(option)
    return "string"


def is_text(kind: str) -> bool:
    """Whether a value of this type is taken as it stands."""
    return kind in ("raw", "string", "str", "text", "varchar", "char", "enum")


def to_json(raw: str, kind: str) -> str:
    """JSON of a value written as `raw`. What does not fit its type is kept, as a string."""
    text = raw.strip()
    if text.lower() == "null":
        return "null"
    if is_text(kind):
        return quoted(raw)
    value: Any = raw
    try:
        if kind.startswith(("int", "uint", "long", "short", "unsigned")):
            value = int(text)
        elif kind.startswith(("num", "float", "double")):
            number = float(text)
            value = int(number) if number.is_integer() and "e" not in text.lower() else number
        elif kind.startswith("bool"):
            value = {"true": True, "false": False}.get(text.lower(), raw)
        else:
            value = literal(text)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, OverflowError, RecursionError, MemoryError):
        return quoted(raw)


def literal(text: str) -> Any:
    """A JSON value, or else a Python literal. Raises `ValueError` or `SyntaxError` when it is neither."""
    try:
        return json.loads(text)
    except ValueError:
        with warnings.catch_warnings():  # about escapes that Python does not know; the model's text is what it is
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """A part of a JSON string: the parts of a text join to the whole text's."""
    return quoted(text)[1:-1]
