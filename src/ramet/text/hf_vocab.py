"""A `Vocabulary` from a Hugging Face directory: tokenizer.json and the small files around it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
import tokenizers

from ramet.errors import CheckpointError
from ramet.text import vocabulary
from ramet.text.vocabulary import Vocabulary


class Files(Protocol):
    """Where the files lie: a `Checkpoint`, or a `Directory`."""

    def file(self, name: str) -> Path | None: ...


class Directory:
    """The files of a local directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def file(self, name: str) -> Path | None:
        found = self._path / name
        return found if found.is_file() else None


def read(files: Files, *, configs: Iterable[Mapping[str, Any]] = ()) -> Vocabulary:
    """The vocabulary of `files`. `configs` (config.json, generation_config.json) add their `eos_token_id` to the ends.

    Raises `CheckpointError` when tokenizer.json is missing, unreadable, or of a kind whose tokens have no exact bytes.
    """
    path = files.file("tokenizer.json")
    if path is None:
        raise CheckpointError(
            "the model has no tokenizer.json; ramet reads no other tokenizer file of a Hugging Face directory. "
            "Give one with --tokenizer-path."
        )
    raw = path.read_bytes()
    try:
        backend = tokenizers.Tokenizer.from_buffer(raw)
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read as a tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    layout = msgspec.json.decode(raw, type=_Layout)
    config = _json(files, "tokenizer_config.json")
    named = {**_json(files, "special_tokens_map.json"), **config}

    vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(vocab.values(), default=-1) + 1)
    for token, id in vocab.items():
        tokens[id] = token
    special = frozenset(added.id for added in layout.added_tokens if added.special)
    added_ids = frozenset(added.id for added in layout.added_tokens)
    kinds = _decoder_kinds(layout.decoder)
    if "ByteLevel" in kinds:
        token_bytes = vocabulary.byte_level_bytes(tokens, added_ids)
    elif kinds & {"ByteFallback", "Metaspace", "Replace"}:
        token_bytes = vocabulary.sentencepiece_bytes(tokens, special, byte_tokens="ByteFallback" in kinds)
    elif kinds == {"WordPiece"}:
        token_bytes = vocabulary.wordpiece_bytes(tokens, added_ids, _prefix(layout.decoder))
    else:
        raise CheckpointError(
            f"{path} has a decoder of kind {' + '.join(sorted(kinds)) or 'none'}; ramet knows the exact bytes of "
            "tokens for ByteLevel (byte-level BPE), for ByteFallback, Metaspace or Replace (SentencePiece), and for "
            "WordPiece decoders."
        )

    bos = vocab.get(special_token(named, "bos_token") or "")
    eos = vocab.get(special_token(named, "eos_token") or "")
    ends = [] if eos is None else [eos]
    for other in configs:
        ends.extend(_ids(other.get("eos_token_id")))
        if bos is None:
            bos = next(iter(_ids(other.get("bos_token_id"))), None)
    _honour_affixes(backend, config, tokens, bos, eos)
    return Vocabulary(
        backend=backend,
        tokens=tokens,
        token_bytes=token_bytes,
        special_ids=special,
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(ends)),
        strip_leading_space=_strips(layout.decoder),
        chat_templates=_chat_templates(files, config),
    )


class _Added(msgspec.Struct):
    id: int
    special: bool = False


class _Layout(msgspec.Struct):
    """The two parts of tokenizer.json that the library does not show; parsing skips the rest."""

    added_tokens: list[_Added] = []
    decoder: dict[str, Any] | None = None


def _decoder_steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder["decoders"] for step in _decoder_steps(inner)]
    return [decoder]


def _decoder_kinds(decoder: dict[str, Any] | None) -> set[str]:
    return {str(step.get("type")) for step in _decoder_steps(decoder)}


def _prefix(decoder: dict[str, Any] | None) -> str:
    """What WordPiece writes before a piece that continues a word."""
    return str(_decoder_steps(decoder)[0].get("prefix", "##"))


def _strips(decoder: dict[str, Any] | None) -> bool:
    for step in _decoder_steps(decoder):
        if step.get("type") == "Strip" and step.get("content") == " " and step.get("start", 0) > 0:
            return True
        if step.get("type") == "WordPiece":
            return True
        if step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return bool(step.get("add_prefix_space", True))
    return False


def _json(files: Files, name: str) -> dict[str, Any]:
    path = files.file(name)
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a JSON {type(content).__name__}, not an object")
    return content


def special_token(config: Mapping[str, Any], key: str) -> str | None:
    """The text under `key` of tokenizer_config.json, which writes it as a string or as an object with `content`."""
    value = config.get(key)
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _ids(value: Any) -> list[int]:
    if isinstance(value, int):
        return [value]
    return [int(id) for id in value] if isinstance(value, list) else []


def _honour_affixes(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], tokens: list[str], bos: int | None, eos: int | None
) -> None:
    """Where tokenizer_config.json says `add_bos_token` or `add_eos_token`, it wins over the post-processor."""
    around = backend.encode("").ids
    starts, ends = bos is not None and around[:1] == [bos], eos is not None and around[-1:] == [eos]
    add_bos = starts if config.get("add_bos_token") is None else bool(config["add_bos_token"]) and bos is not None
    add_eos = ends if config.get("add_eos_token") is None else bool(config["add_eos_token"]) and eos is not None
    if (add_bos, add_eos) == (starts, ends):
        return
    vocabulary.set_affixes(
        backend,
        prefix=(tokens[bos], bos) if add_bos and bos is not None else None,
        suffix=(tokens[eos], eos) if add_eos and eos is not None else None,
    )


def _chat_templates(files: Files, config: Mapping[str, Any]) -> dict[str, str]:
    """By name; a chat_template.jinja beside the tokenizer wins, then chat_template.json, then tokenizer_config.json."""
    templates: dict[str, str] = {}
    for source in (config.get("chat_template"), _json(files, "chat_template.json").get("chat_template")):
        if isinstance(source, str):
            templates["default"] = source
        elif isinstance(source, list):
            templates.update({str(entry["name"]): str(entry["template"]) for entry in source})
        elif isinstance(source, Mapping):
            templates.update({str(name): str(template) for name, template in source.items()})
    path = files.file("chat_template.jinja")
    if path is not None:
        try:
            templates["default"] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path} cannot be read as a chat template: {error}") from None
    return templates
