"""From a client's mapping to `SamplingParams`: exact types, every range, all that is wrong in one message."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import msgspec

from ramet.errors import RequestError
from ramet.types import SamplingParams

MAX_STOPS = 32
MAX_STOP_REGEX_BYTES = 256

#: At most one of these may be set; an empty string counts as unset.
GRAMMAR_FIELDS = ("json_schema", "regex", "ebnf", "structural_tag")

#: What SGLang's users may send and this version cannot honour. Null is harmless.
UNSUPPORTED_FIELDS = ("beam_width", "choice", "watermark")

_INT64 = range(-(2**63), 2**63)
_NO_NAMES: Mapping[str, str] = {}


class _Bad(Exception):
    """What a value should have been; `parse` adds the field and the value."""


def parse(
    mapping: Mapping[str, Any],
    *,
    defaults: SamplingParams = SamplingParams(),
    names: Mapping[str, str] = _NO_NAMES,
) -> SamplingParams:
    """`SamplingParams` from field names and plain JSON values.

    A missing field, or null, takes its value from `defaults`; but `max_new_tokens: null` means no limit. `names` gives
    the client's spelling of fields whose dialect calls them otherwise (`{"max_new_tokens": "max_tokens"}`).

    Raises `RequestError` whose message lists every field at fault and whose `field` is the first of them. What depends
    on the model, `check` finds.
    """
    values: dict[str, Any] = {}
    problems: list[tuple[str, str]] = []
    for name, value in mapping.items():
        if name in _RULES:
            if value is None:
                if name == "max_new_tokens":
                    values[name] = None
                continue
            try:
                values[name] = _RULES[name](value)
            except _Bad as bad:
                problems.append((name, f"must be {bad}, got {_show(value)}"))
        elif name in UNSUPPORTED_FIELDS:
            if value is not None:
                problems.append((name, "is not supported"))
        else:
            problems.append((_show(name).strip("'"), f"is not a sampling parameter; there are {', '.join(_RULES)}"))
    _raise(problems, names)
    params = msgspec.structs.replace(defaults, **values)
    _raise(list(_contradictions(params)), names)
    return params


def check(params: SamplingParams, *, vocab_size: int, names: Mapping[str, str] = _NO_NAMES) -> None:
    """Everything `parse` checks, for an instance built directly, and that token ids lie inside the vocabulary.

    Raises `RequestError` as `parse` does.
    """
    problems: list[tuple[str, str]] = []
    for name, rule in _RULES.items():
        value = getattr(params, name)
        if value is not None or name not in _OPTIONAL:
            try:
                rule(value)
            except _Bad as bad:
                problems.append((name, f"must be {bad}, got {_show(value)}"))
    _raise(problems, names)
    problems.extend(_contradictions(params))
    for name, ids in (("stop_token_ids", params.stop_token_ids), ("logit_bias", params.logit_bias)):
        outside = [i for i in ids if i >= vocab_size]
        if outside:
            problems.append((name, f"has token ids outside the vocabulary of {vocab_size}: {_show(outside)}"))
    _raise(problems, names)


def _contradictions(params: SamplingParams) -> Iterator[tuple[str, str]]:
    if params.max_new_tokens is not None and params.min_new_tokens > params.max_new_tokens:
        yield "min_new_tokens", f"({params.min_new_tokens}) must not exceed max_new_tokens ({params.max_new_tokens})"
    grammars = [name for name in GRAMMAR_FIELDS if getattr(params, name) is not None]
    if len(grammars) > 1:
        yield grammars[1], "contradicts another: Only one of json_schema, regex, ebnf, or structural_tag can be set."


def _raise(problems: Sequence[tuple[str, str]], names: Mapping[str, str]) -> None:
    if problems:
        text = "; ".join(f"{names.get(name, name)} {problem}" for name, problem in problems)
        first = problems[0][0]
        raise RequestError(text, field=names.get(first, first))


def _show(value: object) -> str:
    """The value for a message: ASCII (a lone surrogate or a NaN must not break the answer), at most 80 characters."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _integer(low: int, what: str) -> Callable[[Any], int]:
    def rule(value: Any) -> int:
        # bool is an Integral to Python; numpy's integers are ones too and are welcome.
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) not in _INT64 or int(value) < low:
            raise _Bad(what)
        return int(value)

    return rule


def _number(accept: Callable[[float], bool], what: str) -> Callable[[Any], float]:
    def rule(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise _Bad(what)
        try:
            number = float(value)
        except OverflowError:  # an integer beyond the largest float
            raise _Bad(what) from None
        if not math.isfinite(number) or not accept(number):
            raise _Bad(what)
        return number

    return rule


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Bad("true or false")
    return value


def _grammar(value: Any) -> str | None:
    if not isinstance(value, str) or not _is_unicode(value):
        raise _Bad("a string")
    return value or None


def _is_unicode(text: str) -> bool:
    """No lone surrogates, which JSON can spell and UTF-8 cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _strings(what: str, accept: Callable[[str], bool]) -> Callable[[Any], tuple[str, ...]]:
    def rule(value: Any) -> tuple[str, ...]:
        strings = (value,) if isinstance(value, str) else value
        if not isinstance(strings, (list, tuple)) or len(strings) > MAX_STOPS:
            raise _Bad(what)
        if not all(isinstance(s, str) and s and _is_unicode(s) and accept(s) for s in strings):
            raise _Bad(what)
        return tuple(strings)

    return rule


def _is_regex(pattern: str) -> bool:
    if len(pattern.encode()) > MAX_STOP_REGEX_BYTES:
        return False
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


_token_id = _integer(0, "a token id")


def _token_ids(value: Any) -> tuple[int, ...]:
    what = "a list of token ids"
    if not isinstance(value, (list, tuple)):
        raise _Bad(what)
    try:
        return tuple(_token_id(item) for item in value)
    except _Bad:
        raise _Bad(what) from None


def _logit_bias(value: Any) -> dict[int, float]:
    what = "an object of token ids, each once, and finite numbers"
    if not isinstance(value, Mapping):
        raise _Bad(what)
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if isinstance(key, str) and re.fullmatch(r"[0-9]{1,19}", key):
            key = int(key)
        try:
            token = _token_id(key)
            number = _finite(bias)
        except _Bad:
            raise _Bad(what) from None
        if token in biases:
            raise _Bad(what)
        biases[token] = number
    return biases


_finite = _number(lambda x: True, "a finite number")
_penalty = _number(lambda x: -2 <= x <= 2, "a number from -2 to 2")
_count = _integer(0, "an integer >= 0")


def _top_k(value: Any) -> int:
    k = _integer(-1, what := "-1 (the whole vocabulary) or an integer >= 1")(value)
    if k == 0:
        raise _Bad(what)
    return k


_RULES: dict[str, Callable[[Any], Any]] = {
    "max_new_tokens": _count,
    "min_new_tokens": _count,
    "temperature": _number(lambda x: x >= 0, "a finite number >= 0"),
    "top_p": _number(lambda x: 0 < x <= 1, "a number above 0 and at most 1"),
    "top_k": _top_k,
    "min_p": _number(lambda x: 0 <= x <= 1, "a number from 0 to 1"),
    "frequency_penalty": _penalty,
    "presence_penalty": _penalty,
    "repetition_penalty": _number(lambda x: 0 < x <= 2, "a number above 0 and at most 2"),
    "logit_bias": _logit_bias,
    "sampling_seed": _integer(_INT64.start, "a 64-bit integer"),
    "stop": _strings(f"a non-empty string or a list of at most {MAX_STOPS} of them", lambda s: True),
    "stop_token_ids": _token_ids,
    "stop_regex": _strings(
        f"a regular expression of at most {MAX_STOP_REGEX_BYTES} bytes or a list of at most {MAX_STOPS} of them",
        _is_regex,
    ),
    "ignore_eos": _flag,
    "no_stop_trim": _flag,
    "skip_special_tokens": _flag,
    "spaces_between_special_tokens": _flag,
    "n": _integer(1, "an integer >= 1"),
    **dict.fromkeys(GRAMMAR_FIELDS, _grammar),
}

#: Fields that may be None in an instance.
_OPTIONAL = {"max_new_tokens", "sampling_seed", *GRAMMAR_FIELDS}
