"""Vocabularies from GGUF metadata: ids equal llama.cpp's, which stand in files beside the script that made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.errors import CheckpointError
from ramet.text import gguf_vocab
from ramet.text.pretokenizers import PRE_TOKENIZERS
from ramet.text.tokenizer import Tokenizer, load_tokenizer
from ramet.weights.sources import open_checkpoint

STORED = Path(__file__).parent / "llama_cpp_ids"
KINDS = sorted(path.stem for path in STORED.glob("*.json") if path.stem != "smollm2")


def stored(kind: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((STORED / f"{kind}.json").read_text(encoding="utf-8"))
    return content


def test_every_stored_kind_is_there() -> None:
    assert len(KINDS) == 10


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_llama_cpp(kind: str) -> None:
    content = stored(kind)
    tokenizer = Tokenizer(gguf_vocab.build(content["metadata"]))
    for case in content["cases"]:
        text = case["text"]
        assert tokenizer.encode(text) == case["ids"], text
        assert tokenizer.encode(text, parse_special=False) == case["plain_ids"], text


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_gives_the_text_back(kind: str) -> None:
    content = stored(kind)
    tokenizer = Tokenizer(gguf_vocab.build(content["metadata"]))
    for case in content["cases"]:
        if "<tool>" in case["text"] and tokenizer.strip_leading_space:
            continue  # the model's own encoder puts a space after a user-defined token, which no decoder can tell apart
        ids = tokenizer.encode(case["text"], parse_special=False)
        assert tokenizer.decode(ids) == case["text"]


@pytest.mark.slow
def test_ids_of_the_default_model_equal_llama_cpp() -> None:
    checkpoint = open_checkpoint(None)
    tokenizer = load_tokenizer(checkpoint)
    for case in stored("smollm2")["cases"]:
        assert tokenizer.encode(case["text"]) == case["ids"]
        assert tokenizer.encode(case["text"], parse_special=False) == case["plain_ids"]
        assert tokenizer.decode(case["plain_ids"]) == case["text"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.add_bos) == (1, (2, 0), False)
    assert tokenizer.vocab_size == 49152


def small(**changes: Any) -> dict[str, Any]:
    """The stored GPT-2 kind's metadata; `changes` are keys below tokenizer.ggml, None removes one."""
    metadata = dict(stored("bpe-gpt-2")["metadata"])
    for key, value in changes.items():
        metadata.pop(f"tokenizer.ggml.{key}", None)
        if value is not None:
            metadata[f"tokenizer.ggml.{key}"] = value
    return metadata


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "tokenizer.ggml.model is missing"),
        ({"model": "bert"}, "'bert'.*'gpt2'.*'llama'.*--tokenizer-path"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": ["ab"]}, r"merges\[0\] is 'ab'"),
        ({"merges": ["no such"]}, "do not fit the tokens"),
        ({"pre": "klingon"}, "'klingon'.*smollm.*--tokenizer-path"),
        ({"token_type": [1, 1]}, "2 entries for"),
        ({"bos_token_id": 10**6}, "bos_token_id is 1000000, outside"),
        ({"model": "llama"}, "0 scores for .*tokenizer.ggml.scores"),
        ({"tokens": ["a", "b", "a"], "token_type": None}, r"twice: \['a'\]"),
    ],
)
def test_what_is_missing_or_unknown_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        gguf_vocab.build(small(**changes))


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_can_be_built_and_cuts_without_loss(pre: str) -> None:
    tokenizer = Tokenizer(gguf_vocab.build(small(pre=pre)))
    text = "I'LL go: 12345 naïve\r\n\n  ありがとう 한국어 e\u0301 ½!!\t"
    assert tokenizer.decode(tokenizer.encode(text, False)) == text


def test_ends_of_text_come_from_every_key_and_from_known_turn_ends() -> None:
    metadata = small(eot_token_id=5, eom_token_id=6)
    tokens = [*metadata["tokenizer.ggml.tokens"], "<end_of_turn>", "<|im_end|>", "<|eot_id|>"]
    metadata["tokenizer.ggml.tokens"] = tokens
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 4, 3, 1]  # the last is ordinary
    eos = metadata["tokenizer.ggml.eos_token_id"]
    assert Tokenizer(gguf_vocab.build(metadata)).eos_token_ids[:3] == (eos, 5, 6)
    tokenizer = Tokenizer(gguf_vocab.build(metadata))
    assert set(tokenizer.eos_token_ids[3:]) >= {len(tokens) - 3, len(tokens) - 2}
    assert len(tokens) - 1 not in tokenizer.eos_token_ids
    assert len(tokens) - 3 in tokenizer.special_ids


def test_bos_and_eos_are_added_as_the_file_says() -> None:
    end = small()["tokenizer.ggml.eos_token_id"]
    plain = Tokenizer(gguf_vocab.build(small())).encode("a b")
    both = Tokenizer(gguf_vocab.build(small(add_bos_token=True, add_eos_token=True)))
    assert both.encode("a b") == [end, *plain, end]
    assert both.encode("a b", parse_special=False) == [end, *plain, end]
    assert both.encode("a b", False) == plain
    assert both.encode("") == [end, end]
    assert both.add_bos


def test_text_cannot_grow_into_a_control_token_of_a_sentencepiece_vocabulary() -> None:
    tokens = ["<unk>", "<s>", "</s>", "<", "s", ">", "<s", "s>", "\u2581"]
    merges = gguf_vocab.merges_from_scores(tokens, [2, 3, 3, 1, 1, 1, 1, 1, 1], [0.0] * len(tokens))
    assert merges == [("<", "s"), ("s", ">")]


def test_token_bytes_are_exact() -> None:
    tokenizer = Tokenizer(gguf_vocab.build(stored("sentencepiece")["metadata"]))
    table = tokenizer.token_bytes
    assert table[tokenizer.token_to_id("<0x0A>") or -1] == b"\n"
    assert table[tokenizer.token_to_id("\u2581\u2581") or -1] == b"  "
    assert table[tokenizer.token_to_id("<s>") or -1] == b"<s>"
    bytes_ = Tokenizer(gguf_vocab.build(small())).token_bytes
    assert {bytes([value]) for value in range(256)} <= set(bytes_)
    assert bytes_[-1] == b"</tool>"


def test_named_chat_templates_are_found() -> None:
    metadata = {**small(), "tokenizer.chat_template": "A", "tokenizer.chat_template.tool_use": "B"}
    assert Tokenizer(gguf_vocab.build(metadata)).chat_templates == {"default": "A", "tool_use": "B"}
