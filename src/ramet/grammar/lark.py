"""Pieces of llguidance's Lark dialect: literals, expressions for each kind of text, the frame around a grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from ramet.errors import RequestError
from ramet.grammar import gbnf

#: Without it a mask would allow only the first token of one way to cut forced text: here every token that fits is left.
HEADER = '%llguidance {"no_forcing": true}\n'

#: Any text, line breaks included; never a special token.
ANY_TEXT = "(?s:.)*"

_IS_LARK = re.compile(r"^\s*(?:%llguidance\b|start\s*(?:\[[^\]\n]*\])?\s*:(?!:=))", re.MULTILINE)


def escape(text: str) -> str:
    """`text` inside a regular expression."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def regex(pattern: str) -> str:
    """The Lark expression of a whole match of `pattern`, where `\\d` is an ASCII digit as in JSON Schema."""
    import llguidance  # 60 ms, which only servers that meet a grammar pay

    return f"/{llguidance.regex_to_lark(pattern, 'd')}/"


def ebnf(text: str, field: str) -> str:
    """Lark text of a grammar in either language: Lark if it has a rule `start:`, otherwise GBNF."""
    return text if _IS_LARK.search(text) else gbnf.to_lark(text, field)


def literal(text: str, specials: Mapping[str, int]) -> str:
    """The Lark expression of exactly `text`; where it spells a special token, that token."""
    return " ".join(
        f"<[{part}]>" if isinstance(part, int) else f"/{escape(part)}/" for part in split_specials(text, specials)
    )


def split_specials(text: str, specials: Mapping[str, int]) -> Iterator[str | int]:
    """`text` as runs of plain text and ids of the special tokens it spells, the longest first."""
    names = sorted((name for name in specials if name and name in text), key=len, reverse=True)
    if not names:
        if text:
            yield text
        return
    for part in re.split(f"({'|'.join(map(re.escape, names))})", text):
        if part:
            yield specials.get(part, part)


def grammars(main: str, others: Sequence[tuple[str, str]]) -> str:
    """What llguidance compiles: the main Lark text, and others that it names as `@name`."""
    parts = [("main", HEADER + main), *others]
    return json.dumps({"grammars": [{"name": name, "lark_grammar": text} for name, text in parts]})


def reason(error: str) -> str:
    """What is wrong, out of llguidance's message: without the places in text that the client did not write."""
    error = error.split("\n<state>")[0]
    error = re.sub(r"\n\s*\d+ \|(?s:.*)", "", error)
    found = re.search(r"^error: (?s:(.*))", error, re.MULTILINE)
    if found is not None:  # of the regex parser
        return found[1].strip()
    error = re.sub(r"^(?:at )?\d+\(\d+\): ", "", error)
    error = re.sub(r"^(?:failed to compile JSON schema|invalid regex \"(?:[^\"\\]|\\.)*\" \(in regex\)): ", "", error)
    if error.startswith("oneOf constraints"):
        return "oneOf can be enforced only where no value can match two of its schemas; use anyOf"
    return error.strip()[:500]


def refuse(field: str, message: str) -> RequestError:
    """The error of a grammar that cannot be had, in the words that SGLang's clients look for."""
    message = message.removeprefix(f"{field}: ")
    return RequestError(f"Failed to compile {field} grammar: {message}", field=field)
