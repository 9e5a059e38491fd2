"""Makes the files beside it: small vocabularies of every kind and the ids that llama.cpp gives for the texts in them.

    python tests/unit/text/llama_cpp_ids/make.py [SmolLM2.gguf]

Needs `tokenizers`, `gguf` and `llama-cpp-python` (0.3.36 made the stored files). Byte-level vocabularies are trained on
the texts below with the pre-tokenizer under test; the SentencePiece ones take their scores from the order of merges.
With the default model's file as the argument, `smollm2.json` is made too (ids only; the file itself is not stored).
"""

from __future__ import annotations

import json
import sys
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from ramet.text import pretokenizers

HERE = Path(__file__).parent
SPACE_MARK = "\u2581"
#: llama.cpp simplifies the patterns of these: it takes combining marks for no part of a word, the models' own
#: patterns do.
SIMPLIFIED = ("tekken", "gpt-4o")
PRES = ("gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "tekken", "gpt-4o", "deepseek-v3")

TEXTS = [
    "Hello world! The capital of France is Paris, isn't it?",
    "I'M SURE WE'LL SEE; they'd've said: don't.",
    "1 12 123 1234 12345 3.14159 0x1F ½ ² ٣٤٥",
    "  two  three   spaces\n\n\nnewlines\r\n\ttabs \t mixed \n  end   ",
    "def f(x):\n    return x ** 2  # über\n\n\nclass A: pass",
    "říz 떡볶이 🧭 कि नमस्ते สวัสดี 你好，世界。 ひらがな カタカナ",
    "e\u0301 combining, ﬁ ligature, Ǆ titlecase, \u00a0nbsp\u2003em",
    "👩‍👩‍👧‍👦🇨🇿 emoji; €100 £5 ¥7 ∑∞",
    "CamelCaseWords and ALLCAPS and lowerUPPER mixedÉcole",
    'punct!!! ... ??? --- *** /// </tag> {"k": [1, 2]}',
    "",
    " ",
    "\n",
    "a",
    " leading and trailing ",
    "<|end|>special<|end|> text<|end|>",
    "user<tool>defined</tool>",
]


def byte_level(pre: str) -> dict[str, Any]:
    """A vocabulary of about 700 tokens trained on TEXTS with `pre`'s cut."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pretokenizers.build(pretokenizers.find(pre))
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([text for text in TEXTS if "<|end|>" not in text] * 2, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    types = [1] * len(tokens) + [3, 4, 4]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, "<|end|>", "<tool>", "</tool>"],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens),
        "tokenizer.ggml.add_bos_token": pre == "llama-bpe",
    }


def sentencepiece(*, add_space_prefix: bool) -> dict[str, Any]:
    """A vocabulary with byte tokens and scores; with the prefix it is Llama 2's kind, without it Gemma's."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if add_space_prefix else "never")
    trainer = trainers.BpeTrainer(vocab_size=400, min_frequency=1, limit_alphabet=80, show_progress=False)
    backend.train_from_iterator([text for text in TEXTS if "<|end|>" not in text] * 2, trainer)
    model = json.loads(backend.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    runs = [SPACE_MARK * count for count in range(2, 5)]
    defined = ["<tool>", "</tool>"] + ([] if add_space_prefix else ["\n\n", "    "])
    pieces = [piece for piece in pieces if piece not in runs and piece not in defined]
    merged = [piece for piece in pieces if len(piece) > 1]
    ranks = {piece: -float(rank) for rank, piece in enumerate([*runs, *merged])}
    controls, bytes_ = ["<unk>", "<s>", "</s>", "<|end|>"], [f"<0x{value:02X}>" for value in range(256)]
    tokens = [*controls, *bytes_, *defined, *runs, *pieces]
    types = [2, 3, 3, 3] + [6] * 256 + [4] * len(defined) + [1] * (len(runs) + len(pieces))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * (260 + len(defined))
        + [ranks.get(piece, -1000.0) for piece in [*runs, *pieces]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }


def write_gguf(path: Path, metadata: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def ids(path: Path, texts: list[str]) -> list[dict[str, Any]]:
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)

    def encode(text: str, special: bool) -> list[int]:
        return list(model.tokenize(text.encode(), add_bos=True, special=special))

    return [{"text": text, "ids": encode(text, True), "plain_ids": encode(text, False)} for text in texts]


def has_marks(text: str) -> bool:
    return any(unicodedata.category(character).startswith("M") for character in text)


def store(name: str, content: dict[str, Any]) -> None:
    (HERE / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False, indent=None) + "\n", encoding="utf-8")


def main() -> None:
    kinds = {f"bpe-{pre}": byte_level(pre) for pre in PRES}
    kinds["sentencepiece"] = sentencepiece(add_space_prefix=True)
    kinds["sentencepiece-no-prefix"] = sentencepiece(add_space_prefix=False)
    with tempfile.TemporaryDirectory() as folder:
        for name, metadata in kinds.items():
            path = Path(folder) / f"{name}.gguf"
            write_gguf(path, metadata)
            simplified = metadata.get("tokenizer.ggml.pre") in SIMPLIFIED
            texts = [text for text in TEXTS if not (simplified and has_marks(text))]
            store(name, {"metadata": metadata, "cases": ids(path, texts)})
    if len(sys.argv) > 1:
        store("smollm2", {"cases": ids(Path(sys.argv[1]), TEXTS)})


if __name__ == "__main__":
    main()
