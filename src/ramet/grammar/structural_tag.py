"""Structural tags: free text in which certain pieces must have a given form. Both dialects that SGLang's clients send.

The older one has `structures` and `triggers`; the newer one has a `format` made of nested formats (xgrammar's).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ramet.errors import RequestError
from ramet.grammar import lark, schema

FIELD = "structural_tag"
_MAX_DEPTH = 50


def to_grammars(text: str, whitespace: str | None, specials: Mapping[str, int]) -> str:
    """What llguidance compiles. `specials`: text of each special token → its id.

    Raises `RequestError` with a JSON pointer to what is wrong or cannot be enforced.
    """
    try:
        tag = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{FIELD} is not valid JSON: {error}", field=FIELD) from error
    if not isinstance(tag, dict) or tag.get("type", FIELD) != FIELD:
        _refuse("#", 'must be an object with "type": "structural_tag"')
    builder = _Builder(whitespace, specials)
    if "format" in tag:
        start = builder.format(tag["format"], "#/format", 0)
    elif "structures" in tag:
        start = builder.triggered(_from_structures(tag), "#", 0)
    else:
        _refuse("#", "needs a format, or structures and triggers")
    return lark.grammars("\n".join([f"start: {start}", *builder.rules]) + "\n", builder.grammars)


def _refuse(pointer: str, message: str) -> NoReturn:
    raise RequestError(f"{FIELD}: {pointer}: {message}", field=FIELD)


def _from_structures(tag: dict[str, Any]) -> dict[str, Any]:
    """The older dialect in the newer one's words."""
    structures = _list(tag, "structures", "#")
    tags = []
    for i, structure in enumerate(structures):
        if not isinstance(structure, dict):
            _refuse(f"#/structures/{i}", "must be an object with begin, schema and end")
        content = {"type": "json_schema", "json_schema": structure.get("schema", {})}
        tags.append({"begin": structure.get("begin"), "content": content, "end": structure.get("end", "")})
    options: dict[str, Any] = {key: tag[key] for key in ("at_least_one", "stop_after_first") if key in tag}
    return {"triggers": tag.get("triggers"), "tags": tags, **options}


class _Builder:
    """Lark expressions for formats; `rules` and `grammars` are what the expressions name."""

    def __init__(self, whitespace: str | None, specials: Mapping[str, int]) -> None:
        self.rules: list[str] = []
        self.grammars: list[tuple[str, str]] = []
        self._whitespace = whitespace
        self._specials = specials
        self._formats: dict[str, Callable[[dict[str, Any], str, int], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "ebnf": self._grammar,
            "any_text": self._any_text,
            "tag": self._tag,
            "sequence": self._sequence,
            "or": self._or,
            "optional": lambda node, at, depth: self._repeated(node, at, depth, "?"),
            "star": lambda node, at, depth: self._repeated(node, at, depth, "*"),
            "plus": lambda node, at, depth: self._repeated(node, at, depth, "+"),
            "triggered_tags": self.triggered,
            "tags_with_separator": self._separated,
        }

    def format(self, node: Any, at: str, depth: int) -> str:
        """The expression of one format."""
        if depth > _MAX_DEPTH:
            _refuse(at, f"formats are nested deeper than {_MAX_DEPTH}")
        kind = node.get("type") if isinstance(node, dict) else None
        build = self._formats.get(kind) if isinstance(kind, str) else None
        if build is None:
            _refuse(at, f"its type must be one of {', '.join(self._formats)}")
        return build(node, at, depth + 1)

    # -- leaves -------------------------------------------------------------------------------------------------------

    def _const_string(self, node: dict[str, Any], at: str, depth: int) -> str:
        return self._literal(_string(node, "value", at))

    def _json_schema(self, node: dict[str, Any], at: str, depth: int) -> str:
        if node.get("style", "json") != "json":
            _refuse(f"{at}/style", "only json is supported")
        tree = node.get("json_schema")
        if isinstance(tree, str):
            return f"%json {schema.prepare(tree, self._whitespace, FIELD)}"
        # a copy, since checking a schema edits it
        return f"%json {schema.prepare_tree(json.loads(json.dumps(tree)), self._whitespace, FIELD)}"

    def _regex(self, node: dict[str, Any], at: str, depth: int) -> str:
        return lark.regex(_string(node, "pattern", at))

    def _grammar(self, node: dict[str, Any], at: str, depth: int) -> str:
        text = lark.ebnf(_string(node, "grammar" if "grammar" in node else "ebnf", at), FIELD)
        name = f"g{len(self.grammars)}"
        self.grammars.append((name, text))
        return f"@{name}"

    def _any_text(self, node: dict[str, Any], at: str, depth: int) -> str:
        return self._terminal(_free_text(node, at))

    # -- composition --------------------------------------------------------------------------------------------------

    def _tag(self, node: dict[str, Any], at: str, depth: int, cut: int = 0) -> str:
        """begin, content, end. The first `cut` characters of begin have been matched already."""
        begin = self._literal(_string(node, "begin", at)[cut:])
        ends = [_string(node, "end", at)] if isinstance(node.get("end", ""), str) else _strings(node, "end", at)
        content = node.get("content")
        if isinstance(content, dict) and content.get("type") == "any_text":
            return f"{begin} {self._text_until(_free_text(content, f'{at}/content'), ends)}"
        end = " | ".join(self._literal(end) for end in ends)
        return f"{begin} {self.format(content, f'{at}/content', depth)} ({end})"

    def _sequence(self, node: dict[str, Any], at: str, depth: int) -> str:
        elements = _list(node, "elements", at)
        parts = []
        free: str | None = None  # text that goes on until the next element's first literal
        for i, element in enumerate(elements):
            place = f"{at}/elements/{i}"
            if free is not None:
                kind = element.get("type") if isinstance(element, dict) else None
                if kind == "const_string":
                    parts.append(self._text_until(free, [_string(element, "value", place)]))
                elif kind == "tag" and _string(element, "begin", place):
                    begin = _string(element, "begin", place)
                    parts.append(self._text_until(free, [begin]))
                    parts.append(self._tag(element, place, depth + 1, cut=len(begin)))
                else:
                    _refuse(place, "after any_text only a const_string or a tag can tell where the text ends")
                free = None
            elif isinstance(element, dict) and element.get("type") == "any_text" and i + 1 < len(elements):
                free = _free_text(element, place)
            else:
                parts.append(self.format(element, place, depth))
        return f"({' '.join(parts)})" if parts else '""'

    def _or(self, node: dict[str, Any], at: str, depth: int) -> str:
        elements = _list(node, "elements", at)
        if not elements:
            _refuse(f"{at}/elements", "must not be empty")
        return f"({' | '.join(self.format(e, f'{at}/elements/{i}', depth) for i, e in enumerate(elements))})"

    def _repeated(self, node: dict[str, Any], at: str, depth: int, sign: str) -> str:
        return f"({self.format(node.get('content'), f'{at}/content', depth)}){sign}"

    def triggered(self, node: dict[str, Any], at: str, depth: int) -> str:
        """Free text; where a trigger appears, one of the tags that begin with it.

        With `at_least_one` the text begins with a tag.
        """
        triggers = _strings(node, "triggers", at)
        tags = _tags(node, at)
        first = " | ".join(self._tag(tag, f"{at}/tags/{i}", depth) for i, tag in enumerate(tags))
        later = []
        for trigger in triggers:
            begun = [
                self._tag(tag, f"{at}/tags/{i}", depth, cut=len(trigger))
                for i, tag in enumerate(tags)
                if tag["begin"].startswith(trigger)
            ]
            if begun:
                later.append(f"{self._text_until(_free_text(node, at), [trigger])} ({' | '.join(begun)})")
        for i, tag in enumerate(tags):
            if not any(tag["begin"].startswith(trigger) for trigger in triggers):
                _refuse(f"{at}/tags/{i}/begin", "must start with one of the triggers")
        text = self._terminal(_free_text(node, at))
        if _flag(node, "stop_after_first", at):
            return f"({first})" if _flag(node, "at_least_one", at) else f"({' | '.join(later)} | {text})"
        tail = f"({' | '.join(later)})* {text}"
        return f"(({first}) {tail})" if _flag(node, "at_least_one", at) else f"({tail})"

    def _separated(self, node: dict[str, Any], at: str, depth: int) -> str:
        tags = " | ".join(self._tag(tag, f"{at}/tags/{i}", depth) for i, tag in enumerate(_tags(node, at)))
        more = (
            ""
            if _flag(node, "stop_after_first", at)
            else f"({self._literal(_string(node, 'separator', at))} ({tags}))*"
        )
        return f"(({tags}) {more})" + ("" if _flag(node, "at_least_one", at) else "?")

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _literal(self, text: str) -> str:
        return lark.literal(text, self._specials) or '""'

    def _terminal(self, body: str) -> str:
        name = f"T{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def _text_until(self, free: str, ends: list[str]) -> str:
        """Free text up to and including the first of `ends`."""
        choices = []
        for end in ends:
            parts = list(lark.split_specials(end, self._specials))
            if not parts:
                choices.append(self._terminal(free))
            elif isinstance(parts[0], int):  # text never holds a special token, so this needs no lazy match
                choices.append(f"{self._terminal(free)} {self._literal(end)}")
            else:
                name = f"r{len(self.rules)}"
                self.rules.append(f"{name}[lazy]: {self._terminal(f'({free}) /{lark.escape(parts[0])}/')}")
                rest = self._literal(end[len(parts[0]) :]) if len(parts) > 1 else ""
                choices.append(f"{name} {rest}")
        return f"({' | '.join(choices)})"


def _free_text(node: dict[str, Any], at: str) -> str:
    """A terminal's body: any text without the strings that `excludes` lists."""
    excluded = _strings(node, "excludes", at) if node.get("excludes") else []
    if not excluded:
        return f"/{lark.ANY_TEXT}/"
    banned = "|".join(map(lark.escape, excluded))
    return f"/{lark.ANY_TEXT}/ & ~/{lark.ANY_TEXT}({banned}){lark.ANY_TEXT}/"


def _string(node: dict[str, Any], key: str, at: str) -> str:
    value = node.get(key, "" if key == "end" else None)
    if not isinstance(value, str):
        _refuse(f"{at}/{key}", "must be a string")
    return value


def _list(node: dict[str, Any], key: str, at: str) -> list[Any]:
    value = node.get(key)
    if not isinstance(value, list):
        _refuse(f"{at}/{key}", "must be a list")
    return value


def _strings(node: dict[str, Any], key: str, at: str) -> list[str]:
    value = _list(node, key, at)
    if not value or not all(isinstance(item, str) and item for item in value):
        _refuse(f"{at}/{key}", "must be a non-empty list of non-empty strings")
    return value


def _tags(node: dict[str, Any], at: str) -> list[dict[str, Any]]:
    tags = _list(node, "tags", at)
    if not tags:
        _refuse(f"{at}/tags", "must not be empty")
    for i, tag in enumerate(tags):
        if not isinstance(tag, dict) or not isinstance(tag.get("begin"), str) or not tag["begin"]:
            _refuse(f"{at}/tags/{i}", "must be an object with a non-empty begin")
    return tags


def _flag(node: dict[str, Any], key: str, at: str) -> bool:
    value = node.get(key, False)
    if not isinstance(value, bool):
        _refuse(f"{at}/{key}", "must be true or false")
    return value
