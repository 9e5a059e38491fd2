"""A toy model on disk: a tiny llama config without weights, and a byte-level tokenizer whose tokens tests can name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BOS, EOS, TURN = 256, 257, 258
SPECIALS = {BOS: "<bos>", EOS: "<eos>", TURN: "<turn>"}

#: Tokens of several characters, so that scripts can say `S("sun", "moon")` as cases.md does.
PIECES = (
    *("sun", "moon", "star", "dust", "ab", "cdef", "gh", " red", " green", " blue", " grey", " gold"),
    *("Hi", " there", "ok", " Where", "menu ", "word "),
)
FIRST_PIECE = 259
VOCAB_SIZE = 320
CONTEXT = 256

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<turn>{{ message.role }}:{{ message.content }}<eos>{% endfor %}"
    "{% if shout %}!!{% endif %}{% if add_generation_prompt %}<turn>assistant:{% endif %}"
)

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "torch_dtype": "float32",
}


def piece(text: str) -> int:
    """The id of one of `PIECES`, or of a single byte's character."""
    return FIRST_PIECE + PIECES.index(text) if text in PIECES else ord(text)


def ids(*texts: str) -> list[int]:
    """Ids of several pieces."""
    return [piece(text) for text in texts]


def write(directory: Path, **config: Any) -> Path:
    """The toy model's files; `config` overrides entries of config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    alphabet = _byte_characters()
    added = [
        {
            "id": id,
            "content": text,
            "special": True,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
        }
        for id, text in SPECIALS.items()
    ] + [
        {
            "id": FIRST_PIECE + n,
            "content": text,
            "special": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
        }
        for n, text in enumerate(PIECES)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {alphabet[byte]: byte for byte in range(256)},
            "merges": [],
        },
    }
    files: dict[str, Any] = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": TEMPLATE},
        "config.json": {**CONFIG, **config},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    return directory


def _byte_characters() -> list[str]:
    """The printable character that byte-level BPE writes for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
