"""How text is cut into words before byte-level BPE, by the name that GGUF stores in `tokenizer.ggml.pre`.

A row is the list of patterns of the model's own tokenizer.json, applied one after the other: each cuts every piece so
far into matches and what lies between them. The merges were learnt inside such pieces, so another cut gives other
ids.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from ramet.errors import CheckpointError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_REST}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_REST}"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_CASED_REST}"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`whole_words`: a piece that is itself in the vocabulary becomes that token, whatever the merges say.
    `add_bos`: whether BOS starts a prompt when the file does not say."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_GPT2_ROW = PreTokenizer((_GPT2,))
_DIGITS_ROW = PreTokenizer((_DIGIT, _GPT2))
_LLAMA3_ROW = PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN2_ROW = PreTokenizer((_QWEN2,))
_GPT4O_ROW = PreTokenizer((_GPT4O,))

#: What `tokenizer.ggml.pre` may say. `default` is what files made before the key existed amount to: GPT-2's pattern.
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _GPT2_ROW,
    "gpt-2": _GPT2_ROW,
    "olmo": _GPT2_ROW,
    "phi-2": _GPT2_ROW,
    "smollm": _DIGITS_ROW,
    "starcoder": _DIGITS_ROW,
    "refact": _DIGITS_ROW,
    "command-r": _DIGITS_ROW,
    "exaone": _DIGITS_ROW,
    "llama-bpe": _LLAMA3_ROW,
    "llama3": _LLAMA3_ROW,
    "llama-v3": _LLAMA3_ROW,
    "falcon3": _LLAMA3_ROW,
    "dbrx": PreTokenizer((_LLAMA3,)),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "qwen2": _QWEN2_ROW,
    "deepseek-r1-qwen": _QWEN2_ROW,
    "megrez": _QWEN2_ROW,
    "qwen35": PreTokenizer((_QWEN35,)),
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True),
    "gpt-4o": _GPT4O_ROW,
    "llama4": _GPT4O_ROW,
    "deepseek-v3": PreTokenizer(_DEEPSEEK3),
}


def find(name: str) -> PreTokenizer:
    """The row called `name`. Raises `CheckpointError` with the list of names when there is none."""
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        raise CheckpointError(
            f"tokenizer.ggml.pre is {name!r}, a way to cut text that ramet does not know; "
            f"known: {', '.join(sorted(PRE_TOKENIZERS))}. A tokenizer.json given with --tokenizer-path works instead.",
            field="tokenizer.ggml.pre",
        ) from None


def build(row: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """`row` as an object of the `tokenizers` library, ending in the map from bytes to printable characters."""
    *before, last = row.patterns
    steps = [_split(pattern) for pattern in before]
    if last == _GPT2:  # the library has this pattern built in
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    else:
        steps.append(_split(last))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    if pattern == _DIGIT:  # hand-written in the library: no regular expression per digit
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")
