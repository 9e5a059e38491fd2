"""A `Vocabulary` from the metadata of a GGUF file: byte-level BPE ("gpt2") and SentencePiece BPE ("llama").

The objects of the `tokenizers` library are made directly from the lists in the file. For SmolLM2's 49,152 tokens that
takes 18 ms for the model and as much for the lists; writing a tokenizer.json in memory and parsing it takes about the
same and needs all of it twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from ramet.errors import CheckpointError
from ramet.text import pretokenizers, vocabulary
from ramet.text.vocabulary import SPACE_MARK, Vocabulary

# tokenizer.ggml.token_type
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6

#: Control tokens that end a turn even where the file names only one end: a chat model may emit any of them.
_TURN_ENDS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
)


def build(metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary in a GGUF file's metadata.

    Raises `CheckpointError` naming the key that is missing or that ramet cannot honour.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise CheckpointError("the GGUF file holds no tokenizer: the key tokenizer.ggml.model is missing")
    tokens = _tokens(metadata)
    types = _token_types(metadata, tokens)
    if model == "gpt2":
        return _byte_level(metadata, tokens, types)
    if model == "llama":
        return _sentencepiece(metadata, tokens, types)
    raise CheckpointError(
        f"tokenizer.ggml.model is {model!r}; ramet reads 'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) "
        "from GGUF. A tokenizer.json given with --tokenizer-path works instead.",
        field="tokenizer.ggml.model",
    )


def _byte_level(metadata: Mapping[str, Any], tokens: list[str], types: Sequence[int]) -> Vocabulary:
    pre = pretokenizers.find(str(metadata.get("tokenizer.ggml.pre", "default")))
    merges = metadata.get("tokenizer.ggml.merges")
    if not merges:
        raise CheckpointError(
            "the byte-level BPE vocabulary has no merges: the key tokenizer.ggml.merges is missing or empty, "
            "and without it text cannot be encoded as the model was trained",
            field="tokenizer.ggml.merges",
        )
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not space:
            raise CheckpointError(
                f"tokenizer.ggml.merges[{len(pairs)}] is {merge!r}, not two tokens with a space between"
            )
        pairs.append((left, right))
    vocab = {token: id for id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(_bpe(vocab, pairs, ignore_merges=pre.whole_words))
    backend.pre_tokenizer = pretokenizers.build(pre)
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, tokens, types)
    verbatim = frozenset(id for id, kind in enumerate(types) if kind in (_CONTROL, _USER_DEFINED))
    return _finish(
        metadata,
        backend,
        tokens,
        types,
        token_bytes=vocabulary.byte_level_bytes(tokens, verbatim),
        add_bos=pre.add_bos,
        default_bos=None,
        default_eos=None,
        strip_leading_space=False,
    )


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str], types: Sequence[int]) -> Vocabulary:
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) < len(tokens):
        raise CheckpointError(
            f"the SentencePiece vocabulary has {0 if scores is None else len(scores)} scores for {len(tokens)} tokens: "
            "the key tokenizer.ggml.scores is missing or short",
            field="tokenizer.ggml.scores",
        )
    vocab = {token: id for id, token in enumerate(tokens)}
    unknown = _token_id(metadata, "unknown_token_id", len(tokens), default=0)
    backend = tokenizers.Tokenizer(
        _bpe(
            vocab,
            merges_from_scores(tokens, types, scores),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    to_marks = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), to_marks]) if prefix else to_marks
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    _add_tokens(backend, tokens, types)
    special = frozenset(id for id, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN))
    return _finish(
        metadata,
        backend,
        tokens,
        types,
        token_bytes=vocabulary.sentencepiece_bytes(tokens, special),
        add_bos=True,
        default_bos=1,
        default_eos=2,
        strip_leading_space=prefix,
    )


def merges_from_scores(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merge list that stands for SentencePiece's rule "join the neighbours whose union has the best score".

    Every way to cut a token into two other tokens is a merge of that token's rank; best score first, and among the
    ways of one token the longer left part first. Only ordinary tokens take part, so text can never grow into a
    control token.
    """
    ordinary = {token for token, kind in zip(tokens, types, strict=True) if kind in (_NORMAL, _USER_DEFINED)}
    order = sorted((id for id, token in enumerate(tokens) if token in ordinary), key=lambda id: -scores[id])
    return [
        (token[:cut], token[cut:])
        for token in map(tokens.__getitem__, order)
        for cut in range(len(token) - 1, 0, -1)
        if token[:cut] in ordinary and token[cut:] in ordinary
    ]


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab, merges, **options)
    except Exception as error:
        raise CheckpointError(f"the merges in tokenizer.ggml.merges do not fit the tokens: {error}") from error


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not tokens:
        raise CheckpointError(
            "the GGUF file's tokenizer has no vocabulary: the key tokenizer.ggml.tokens is missing or empty"
        )
    names = [token or f"[EMPTY_{id}]" for id, token in enumerate(tokens)]
    if len(set(names)) != len(names):
        twice = [token for token, count in Counter(names).items() if count > 1][:5]
        raise CheckpointError(f"tokenizer.ggml.tokens names some tokens twice: {twice}")
    return names


def _token_types(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Sequence[int]:
    """By id. Some files call the end of a turn user-defined; it is a control token all the same."""
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise CheckpointError(f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens")
    kinds = list(map(int, types))
    for id, kind in enumerate(kinds):
        if kind == _USER_DEFINED and tokens[id] in _TURN_ENDS:
            kinds[id] = _CONTROL
    return kinds


def _token_id(metadata: Mapping[str, Any], name: str, count: int, default: int | None = None) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return default if default is not None and default < count else None
    if not 0 <= int(value) < count:
        raise CheckpointError(f"tokenizer.ggml.{name} is {value}, outside the vocabulary of {count} tokens")
    return int(value)


def _add_tokens(backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Make control and user-defined tokens whole units that text is searched for before anything else."""
    backend.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_CONTROL, _UNKNOWN)
        ]
    )
    backend.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _USER_DEFINED
        ]
    )


def _finish(
    metadata: Mapping[str, Any],
    backend: tokenizers.Tokenizer,
    tokens: list[str],
    types: Sequence[int],
    *,
    token_bytes: list[bytes],
    add_bos: bool,
    default_bos: int | None,
    default_eos: int | None,
    strip_leading_space: bool,
) -> Vocabulary:
    count = len(tokens)
    bos = _token_id(metadata, "bos_token_id", count, default_bos)
    eos = _token_id(metadata, "eos_token_id", count, default_eos)
    ends = [eos, _token_id(metadata, "eot_token_id", count), _token_id(metadata, "eom_token_id", count)]
    special = frozenset(id for id, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN))
    ends.extend(id for id in sorted(special) if tokens[id] in _TURN_ENDS)
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)) and bos is not None
    add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False)) and eos is not None
    vocabulary.set_affixes(
        backend,
        prefix=(tokens[bos], bos) if add_bos and bos is not None else None,
        suffix=(tokens[eos], eos) if add_eos and eos is not None else None,
    )
    return Vocabulary(
        backend=backend,
        tokens=tokens,
        token_bytes=token_bytes,
        special_ids=special,
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(id for id in ends if id is not None)),
        strip_leading_space=strip_leading_space,
        chat_templates=_chat_templates(metadata),
    )


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    stem = "tokenizer.chat_template"
    templates = {"default": str(metadata[stem])} if metadata.get(stem) else {}
    for key, value in metadata.items():
        if key.startswith(f"{stem}.") and isinstance(value, str):
            templates[key[len(stem) + 1 :]] = value
    return templates
