"""JSON Schemas before llguidance sees them: what would be ignored or could never end is refused with a JSON pointer.

llguidance refuses most of what it does not enforce, but names no place, passes over a few things silently (found by
feeding it each keyword) and takes endless references. Only schema positions are looked at, and only those that can be
reached: the word `uniqueItems` inside an `enum`, or an unused definition, is no reason to refuse.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NoReturn
from urllib.parse import unquote

from ramet.errors import RequestError

#: Accepted as "any JSON value" (xgrammar's word for it).
ANY_JSON = "$$ANY$$"

#: A schema of this many places compiles in about half a second; far more could exhaust the compiler's stack.
MAX_PLACES = 4000

#: `multipleOf: n` costs an automaton of n states: 65,537 took 0.4 s and 25 MB, 999,983 took 10 s and 400 MB.
MAX_MULTIPLE = 1 << 16

_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_SCALARS = _TYPES - {"object", "array"}
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)  # those that llguidance enforces


def _never(value: Any) -> bool:
    return False


#: Keywords that no mask enforces, each with the test whether its value demands nothing.
_UNENFORCED: dict[str, Callable[[Any], bool]] = {
    "uniqueItems": lambda value: value is False,
    "contains": _never,
    "minContains": _never,
    "maxContains": _never,
    "propertyNames": lambda value: value in (True, {}),
    "not": lambda value: value is False,
    "if": _never,
    "dependentRequired": lambda value: value == {},
    "dependentSchemas": lambda value: value == {},
    "dependencies": lambda value: value == {},
    "unevaluatedProperties": lambda value: value in (True, {}),
    "unevaluatedItems": lambda value: value in (True, {}),
    "$dynamicRef": _never,
    "$recursiveRef": _never,
    "extends": _never,
    "disallow": _never,
    "divisibleBy": _never,
    "x-guidance": _never,
}

#: Keywords whose value is one schema, a list of schemas, or an object of schemas.
_ONE = ("additionalProperties", "items", "additionalItems")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties")

# Characters that JSON can only write as \u00XX. That escape is switched off, because with it a key could be spelled in
# a second way and so escape its property's schema.
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_UNWRITABLE_PATTERN = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]|(?<!\\)(?:\\\\)*\\(?:x[01]|u00[01]|c[A-Za-z]|[av0])")


def prepare(text: str, whitespace: str | None, field: str = "json_schema") -> str:
    """The schema as llguidance is to get it, as JSON text.

    Raises `RequestError` with a JSON pointer to what cannot be enforced, is not a schema, or can never be completed.
    """
    if text.strip() in (ANY_JSON, f'"{ANY_JSON}"'):
        return prepare_tree({}, whitespace, field)
    try:
        tree = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{field} is not valid JSON: {error}", field=field) from error
    return prepare_tree(tree, whitespace, field)


def prepare_tree(tree: Any, whitespace: str | None, field: str) -> str:
    """As `prepare`, for a parsed schema, which is edited."""
    if tree is True:
        tree = {}
    _Check(tree, field).run()
    options: dict[str, Any] = {"json_allowed_escapes": 'nrbtf\\"'}
    options |= {"whitespace_flexible": False} if whitespace is None else {"whitespace_pattern": whitespace}
    return json.dumps({**tree, "x-guidance": options})


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class _Check:
    """One walk over the reachable places of a schema, by pointer; then the question which of them can be completed."""

    def __init__(self, root: Any, field: str) -> None:
        self._root = root
        self._field = field
        self._places: dict[str, Any] = {}
        self._parents: dict[str, list[str]] = {}  # of each place, those that apply it
        self._intersects = False
        self._multiples: list[tuple[str, Fraction]] = []

    def run(self) -> None:
        if self._root is False:
            self._refuse("#", "matches nothing")
        todo = [("#", self._root)]
        while todo:
            pointer, schema = todo.pop()
            if pointer in self._places:
                continue
            self._places[pointer] = schema
            if len(self._places) > MAX_PLACES:
                self._refuse(pointer, f"the schema has more than {MAX_PLACES} places")
            if isinstance(schema, bool):
                continue
            if not isinstance(schema, dict):
                self._refuse(pointer, "a schema is an object, true or false")
            self._keywords(pointer, schema)
            children = list(self._children(pointer, schema))
            for child, _ in children:
                self._parents.setdefault(child, []).append(pointer)
            todo += reversed(children)
        self._check_multiples()
        self._check_completable()

    def _refuse(self, pointer: str, message: str) -> NoReturn:
        raise RequestError(f"{self._field}: {pointer}: {message}", field=self._field)

    # -- keywords -----------------------------------------------------------------------------------------------------

    def _keywords(self, pointer: str, schema: dict[str, Any]) -> None:
        for keyword in list(schema):
            harmless = _UNENFORCED.get(keyword)
            if harmless is None:
                continue
            if not harmless(schema[keyword]):
                self._refuse(f"{pointer}/{_escape(keyword)}", f"{keyword} cannot be enforced while generating")
            del schema[keyword]
        types = self._types(pointer, schema)
        self._identity(pointer, schema)
        self._values(pointer, schema)
        self._string(pointer, schema, types)
        self._object(pointer, schema)
        if types != {"integer"}:
            self._bounds(pointer, schema)
        if "multipleOf" in schema:
            self._multiples.append((f"{pointer}/multipleOf", self._multiple(pointer, schema["multipleOf"])))
        self._intersects = self._intersects or "allOf" in schema or ("$ref" in schema and len(schema) > 1)
        if isinstance(schema.get("oneOf"), list) and "anyOf" not in schema and _disjoint_values(schema["oneOf"]):
            schema["anyOf"] = schema.pop("oneOf")

    def _types(self, pointer: str, schema: dict[str, Any]) -> frozenset[str]:
        """The types that `type` lists, all without it."""
        if "type" not in schema:
            return _TYPES
        value = schema["type"]
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            self._refuse(f"{pointer}/type", "must be a type's name or a non-empty list of them")
        for name in names:
            if name not in _TYPES:
                self._refuse(f"{pointer}/type", f"{name!r} is not a JSON type; there are {', '.join(sorted(_TYPES))}")
        return frozenset(names)

    def _identity(self, pointer: str, schema: dict[str, Any]) -> None:
        """Nested `$id`s would move what "#/…" means. Those that only name their place (generators write them) go."""
        for keyword in ("$id", "id"):
            value = schema.get(keyword)
            if isinstance(value, str):
                if pointer != "#" and not value.startswith("#"):
                    self._refuse(f"{pointer}/{_escape(keyword)}", "schemas with an id of their own cannot be nested")
                del schema[keyword]

    def _values(self, pointer: str, schema: dict[str, Any]) -> None:
        if "enum" in schema:
            if not isinstance(schema["enum"], list) or not schema["enum"]:
                self._refuse(f"{pointer}/enum", "must be a non-empty list: nothing could match")
            for i, value in enumerate(schema["enum"]):
                self._writable(f"{pointer}/enum/{i}", value)
        if "const" in schema:
            self._writable(f"{pointer}/const", schema["const"])

    def _writable(self, pointer: str, value: Any) -> None:
        todo = [value]
        while todo:
            value = todo.pop()
            if isinstance(value, dict):
                todo += [*value, *value.values()]
            elif isinstance(value, list):
                todo += value
            elif isinstance(value, str) and _UNWRITABLE.search(value):
                self._refuse(pointer, "control characters that JSON writes as \\u00XX are not supported")

    def _string(self, pointer: str, schema: dict[str, Any], types: frozenset[str]) -> None:
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and _UNWRITABLE_PATTERN.search(pattern):
            self._refuse(f"{pointer}/pattern", "control characters that JSON writes as \\u00XX are not supported")
        if "format" in schema:
            if "string" not in types:
                del schema["format"]  # says nothing of other types; OpenAPI writes int32, double, …
            elif schema["format"] not in _FORMATS:
                self._refuse(f"{pointer}/format", f"unknown format; there are {', '.join(sorted(_FORMATS))}")

    def _object(self, pointer: str, schema: dict[str, Any]) -> None:
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            self._refuse(f"{pointer}/required", "must be a list of property names")
        properties = schema.get("properties", {})
        for name in [*required, *(properties if isinstance(properties, dict) else ())]:
            self._writable(f"{pointer}/properties/{_escape(name)}", name)
        least = schema.get("minProperties", 0)
        # Undeclared keys may repeat, so more than one of them cannot be counted on.
        if isinstance(least, int) and least > len(set(required)) + 1:
            self._refuse(f"{pointer}/minProperties", "only one more than the required properties can be enforced")

    # -- numbers ------------------------------------------------------------------------------------------------------

    def _bounds(self, pointer: str, schema: dict[str, Any]) -> None:
        """llguidance lets an exclusive bound itself through in two cases, found by trying values around bounds."""
        for exclusive, others in (
            ("exclusiveMinimum", ("maximum", "exclusiveMaximum")),
            ("exclusiveMaximum", ("minimum", "exclusiveMinimum")),
        ):
            if not _is_number(schema.get(exclusive)):
                continue
            bound = schema[exclusive]
            place = f"{pointer}/{exclusive}"
            if len(re.sub(r"\D", "", repr(bound)).lstrip("0")) > 15:
                self._refuse(place, "an exclusive bound can have at most 15 digits")
            for other in others:
                if _is_number(schema.get(other)) and int(schema[other]) == int(bound):
                    self._refuse(place, f"cannot be enforced beside {other} with the same integer part")

    def _multiple(self, pointer: str, value: Any) -> Fraction:
        if not _is_number(value) or not 0 < value < math.inf:
            self._refuse(f"{pointer}/multipleOf", "must be a number above 0")
        return Fraction(str(value))

    def _check_multiples(self) -> None:
        together = 1
        for pointer, multiple in self._multiples:
            if _states(multiple) > MAX_MULTIPLE:
                self._refuse(pointer, f"{float(multiple):g} has too many digits; at most {MAX_MULTIPLE} steps")
            together = math.lcm(together, _states(multiple))
            if self._intersects and together > MAX_MULTIPLE:
                self._refuse(pointer, f"its common multiple with the others exceeds {MAX_MULTIPLE}")

    # -- structure ----------------------------------------------------------------------------------------------------

    def _children(self, pointer: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """(pointer, schema) of each schema that this one applies, `$ref`'s target among them."""
        if "$ref" in schema:
            yield self._target(pointer, schema["$ref"])
        for keyword in _ONE:
            if keyword in schema and not (keyword == "items" and isinstance(schema["items"], list)):
                yield f"{pointer}/{keyword}", schema[keyword]
        for keyword in _LISTS:
            if keyword not in schema or (keyword == "items" and not isinstance(schema["items"], list)):
                continue
            if not isinstance(schema[keyword], list):
                self._refuse(f"{pointer}/{keyword}", "must be a list of schemas")
            for i, child in enumerate(schema[keyword]):
                yield f"{pointer}/{keyword}/{i}", child
        for keyword in _MAPS:
            if keyword not in schema:
                continue
            if not isinstance(schema[keyword], dict):
                self._refuse(f"{pointer}/{keyword}", "must be an object of schemas")
            for name, child in schema[keyword].items():
                yield f"{pointer}/{keyword}/{_escape(name)}", child

    def _target(self, pointer: str, ref: Any) -> tuple[str, Any]:
        where = f"{pointer}/$ref"
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            self._refuse(where, "must be a pointer into this schema: #/…")
        schema, canonical = self._root, "#"
        for part in unquote(ref).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and name in schema:
                schema = schema[name]
            elif isinstance(schema, list) and re.fullmatch("[0-9]{1,6}", name) and int(name) < len(schema):
                schema = schema[int(name)]
            else:
                self._refuse(where, f"{ref} does not exist")
            canonical += "/" + _escape(name)
        return canonical, schema

    # -- can it end? --------------------------------------------------------------------------------------------------

    def _check_completable(self) -> None:
        """Refuse places of which no finite value exists: the model would be led in and could never come out.

        Least fixed point: a place is looked at again when one that it applies has proved finite.
        """
        finite: dict[str, bool] = dict.fromkeys(self._places, False)
        todo = list(self._places)
        while todo:
            pointer = todo.pop()
            if not finite[pointer] and self._is_finite(pointer, finite):
                finite[pointer] = True
                todo += self._parents.get(pointer, ())
        for pointer, ends in finite.items():
            if not ends:
                self._refuse(pointer, "refers to itself without end; no finite value matches")

    def _is_finite(self, pointer: str, finite: dict[str, bool]) -> bool:
        schema = self._places[pointer]
        if isinstance(schema, bool):
            return True
        if "$ref" in schema and not finite[self._target(pointer, schema["$ref"])[0]]:
            return False
        for keyword, enough in (("allOf", all), ("anyOf", any), ("oneOf", any)):
            count = len(schema.get(keyword, ()))
            if count and not enough(finite[f"{pointer}/{keyword}/{i}"] for i in range(count)):
                return False
        types = self._types(pointer, schema)
        if "enum" in schema or "const" in schema or types & _SCALARS:
            return True
        return ("object" in types and self._object_is_finite(pointer, schema, finite)) or (
            "array" in types and self._array_is_finite(pointer, schema, finite)
        )

    def _object_is_finite(self, pointer: str, schema: dict[str, Any], finite: dict[str, bool]) -> bool:
        for name in schema.get("required", ()):
            place = f"{pointer}/properties/{_escape(name)}"
            if not finite.get(place, finite.get(f"{pointer}/additionalProperties", True)):
                return False
        return True

    def _array_is_finite(self, pointer: str, schema: dict[str, Any], finite: dict[str, bool]) -> bool:
        least = schema.get("minItems", 0)
        least = least if isinstance(least, int) else 0
        heads = "items" if isinstance(schema.get("items"), list) else "prefixItems"
        prefix = len(schema.get(heads, ()))
        if not all(finite[f"{pointer}/{heads}/{i}"] for i in range(min(prefix, least))):
            return False
        rest = "additionalItems" if heads == "items" else "items"
        return least <= prefix or finite.get(f"{pointer}/{rest}", True)


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _states(multiple: Fraction) -> int:
    """Size of the automaton for multiples: the number without its decimal point."""
    scale = 1
    while (multiple * scale).denominator != 1:
        scale *= 10
    return int(multiple * scale)


def _disjoint_values(branches: list[Any]) -> bool:
    """Whether each branch lists its values and no value is in two: then exactly one matching means any matching.

    llguidance proves this for strings only.
    """
    seen: set[str] = set()
    for branch in branches:
        if not isinstance(branch, dict) or set(branch) - {"const", "enum", "type", "title", "description"}:
            return False
        values = branch["enum"] if "enum" in branch else [branch["const"]] if "const" in branch else None
        if not isinstance(values, list) or ("enum" in branch and "const" in branch):
            return False
        texts = {json.dumps(_whole(value), sort_keys=True) for value in values}
        if texts & seen:
            return False
        seen |= texts
    return bool(branches)


def _whole(value: Any) -> Any:
    """1.0 is the integer 1 to JSON Schema."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return value
