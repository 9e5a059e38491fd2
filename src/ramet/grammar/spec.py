"""What a grammar is asked for: its kind, its text and how JSON's whitespace is bounded. Keys the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ramet.types import SamplingParams

GrammarKind = Literal["json_schema", "regex", "ebnf", "structural_tag"]

#: In the order in which SGLang's engine prefers them; `SamplingParams` holds at most one.
KINDS: tuple[GrammarKind, ...] = ("json_schema", "regex", "ebnf", "structural_tag")

#: Whitespace wherever JSON allows it: one space, or a line break and an indentation of at most 16. Pretty-printed JSON
#: fits, and a model that likes blanks best still has to go on after one.
FLEXIBLE_WHITESPACE = r"(\x20|\x0D?\x0A[\x20\x09]{0,16})"


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """`text` in the language of `kind`. `whitespace` is a regex matched at most once per place; None: compact JSON."""

    kind: GrammarKind
    text: str
    whitespace: str | None = FLEXIBLE_WHITESPACE


def grammar_of(sampling: SamplingParams, whitespace: str | None = FLEXIBLE_WHITESPACE) -> GrammarSpec | None:
    """The grammar that a request asks for, if any; empty texts count as unset."""
    for kind in KINDS:
        text: str | None = getattr(sampling, kind)
        if text:
            return GrammarSpec(kind, text, whitespace)
    return None
