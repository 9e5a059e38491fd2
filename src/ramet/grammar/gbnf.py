"""GBNF (`root ::= …`, as llama.cpp and xgrammar write it) to llguidance's Lark dialect.

A grammar without recursion becomes one regular expression: exactly its language, and quick masks. In a recursive one
the rules that do not recur become lexemes, which match as much as they can (as everywhere in Lark).

Not llguidance's own translator: that one breaks `\\u0041` in literals, takes `fooBar` and `foo_bar` for one rule, has
no rule named `start`, and lets `.` exclude line breaks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from ramet.errors import RequestError

_SKIP = re.compile(r"(?:\s+|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_0-9-]+")
_RULE = re.compile(r"([A-Za-z_0-9-]+)(?:\s+|#[^\n]*)*::=")
_COUNTS = re.compile(r"\{\s*([0-9]{1,9})\s*(,\s*([0-9]{1,9})?\s*)?\}")
_SIMPLE_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}
_MAX_DEPTH = 100  # of parentheses


@dataclass(frozen=True, slots=True)
class _Reference:
    rule: str


#: A rule's body: Lark text with references between.
_Body = list["str | _Reference"]


def to_lark(text: str, field: str) -> str:
    """Lark text with the rule `start`. Raises `RequestError` saying where the grammar is wrong."""
    rules = _Parser(text, field).rules()
    if "root" not in rules:
        raise RequestError(f"{field}: there is no rule named root", field=field)
    for name, body in rules.items():
        for part in body:
            if isinstance(part, _Reference) and part.rule not in rules:
                raise RequestError(f"{field}: rule {name} uses {part.rule}, which is not defined", field=field)
    recursive = _recursive(rules)
    names = {name: f"r{i}" if name in recursive else f"T{i}" for i, name in enumerate(rules)}
    lines = [f"start: {names['root']}"]
    for name, body in rules.items():
        lines.append(names[name] + ": " + "".join(p if isinstance(p, str) else names[p.rule] for p in body))
    return "\n".join(lines) + "\n"


def _recursive(rules: dict[str, _Body]) -> set[str]:
    """Rules from which a rule that uses itself can be reached: what is left when the others are taken away."""
    uses = {name: {part.rule for part in body if isinstance(part, _Reference)} for name, body in rules.items()}
    used_by: dict[str, list[str]] = {name: [] for name in rules}
    for name, used in uses.items():
        for other in used:
            used_by[other].append(name)
    plain = [name for name, used in uses.items() if not used]
    left = set(rules)
    while plain:
        done = plain.pop()
        left.discard(done)
        for name in used_by[done]:
            uses[name].discard(done)
            if not uses[name]:
                plain.append(name)
    return left


class _Parser:
    """Recursive descent over the text; a rule ends where the next one (`name ::=`) begins."""

    def __init__(self, text: str, field: str) -> None:
        self._text = text
        self._field = field
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, _Body]:
        rules: dict[str, _Body] = {}
        self._skip()
        while self._at < len(self._text):
            match = _RULE.match(self._text, self._at)
            if match is None:
                self._fail("expected a rule: name ::= …")
            if match[1] in rules:
                self._fail(f"rule {match[1]} is defined twice")
            self._at = match.end()
            rules[match[1]] = self._alternatives()
            if self._peek() == ")":
                self._fail("nothing is open here")
        return rules

    def _fail(self, message: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        near = self._text[self._at : self._at + 20]
        raise RequestError(f"{self._field}: line {line}, at {near!r}: {message}", field=self._field)

    def _skip(self) -> None:
        match = _SKIP.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _alternatives(self) -> _Body:
        body: _Body = self._sequence()
        while self._peek() == "|":
            self._at += 1
            body += [" | ", *self._sequence()]
        return body

    def _sequence(self) -> _Body:
        body: _Body = []
        while True:
            self._skip()
            if self._peek() in ("", "|", ")") or _RULE.match(self._text, self._at):
                return body or ['""']
            body += [" ", *self._item(), self._repetition()]

    def _item(self) -> _Body:
        first = self._peek()
        if first == "(":
            return self._group()
        if first in "\"'":
            return [self._literal(first)]
        if first == "[":
            return [self._class()]
        if first == ".":
            self._at += 1
            return ["/(?s:.)/"]
        name = _NAME.match(self._text, self._at)
        if name is None:
            self._fail("expected a literal, a character class, a group or a rule's name")
        self._at = name.end()
        return [_Reference(name[0])]

    def _group(self) -> _Body:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(f"more than {_MAX_DEPTH} parentheses inside each other")
        self._at += 1
        body = self._alternatives()
        if self._peek() != ")":
            self._fail("expected )")
        self._at += 1
        self._depth -= 1
        return ["(", *body, ")"]

    def _repetition(self) -> str:
        start = self._at
        self._skip()
        sign = self._peek()
        if sign and sign in "*+?":
            self._at += 1
            return sign
        if sign == "{":
            counts = _COUNTS.match(self._text, self._at)
            if counts is None:
                self._fail("expected {m}, {m,} or {m,n}")
            least, comma, most = counts.groups()
            if most is not None and int(most) < int(least):
                self._fail("the first count exceeds the second")
            self._at = counts.end()
            return f"{{{int(least)},{int(most) if most else ''}}}" if comma else f"{{{int(least)}}}"
        self._at = start
        return ""

    def _literal(self, quote: str) -> str:
        self._at += 1
        codes = []
        while self._peek() != quote:
            codes.append(self._character())
        self._at += 1
        return "/" + "".join(map(_code, codes)) + "/" if codes else '""'

    def _class(self) -> str:
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges = ""
        while self._peek() != "]":
            first = last = self._character()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._character()
                if last < first:
                    self._fail("the range ends before it begins")
            ranges += f"{_code(first)}-{_code(last)}"
        self._at += 1
        if not ranges and not negated:
            self._fail("an empty character class matches nothing")
        return f"/[{'^' if negated else ''}{ranges}]/" if ranges else "/(?s:.)/"

    def _character(self) -> int:
        """The next character's code point, escapes resolved."""
        character = self._peek()
        if not character:
            self._fail("the text ends inside a literal or a character class")
        self._at += 1
        if character != "\\":
            return ord(character)
        escape = self._peek()
        self._at += 1
        digits = _HEX_ESCAPES.get(escape)
        if digits is None:
            if not escape or (escape.isalnum() and escape not in _SIMPLE_ESCAPES):
                self._fail(f"unknown escape \\{escape}")
            return ord(_SIMPLE_ESCAPES.get(escape, escape))
        number = self._text[self._at : self._at + digits]
        if not re.fullmatch(f"[0-9A-Fa-f]{{{digits}}}", number):
            self._fail(f"\\{escape} needs {digits} hexadecimal digits")
        self._at += digits
        code = int(number, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            self._fail(f"\\{escape}{number} is not a character")
        return code


def _code(code: int) -> str:
    return f"\\x{{{code:x}}}"
