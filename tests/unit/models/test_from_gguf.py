from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ramet.errors import CheckpointError
from ramet.models import ModelConfig
from ramet.models.rope import Rope


def metadata(arch: str, **more: Any) -> dict[str, Any]:
    keys = {
        "block_count": 3,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "embedding_length": 16,
        "feed_forward_length": 24,
        "context_length": 128,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": 64,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    general = {"general.architecture": arch, "tokenizer.ggml.bos_token_id": np.uint32(1)}
    return {**general, **{f"{arch}.{key}": value for key, value in keys.items() if value is not None}}


def test_llama() -> None:
    cfg = ModelConfig.from_gguf(metadata("llama", rope__freq_base=np.float32(5e5)), ["output.weight"])
    assert (cfg.model_type, cfg.num_layers, cfg.num_kv_heads, cfg.head_dim, cfg.rotary_dim) == ("llama", 3, 2, 4, 4)
    assert (cfg.rope, cfg.windows, cfg.norm_offset, cfg.query_scale) == (Rope(5e5), (0, 0, 0), 0.0, 0.5)
    assert (cfg.tie_word_embeddings, cfg.qkv_bias, cfg.bos_token_id, cfg.eos_token_ids) == (False, False, 1, ())


def test_what_tensor_names_tell() -> None:
    names = ["blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_gate.bias"]
    cfg = ModelConfig.from_gguf(metadata("qwen2"), names)
    assert (cfg.model_type, cfg.qkv_bias, cfg.output_bias, cfg.mlp_bias) == ("qwen2", True, True, True)
    assert cfg.tie_word_embeddings


def test_rope_divisors_are_read_from_their_tensor() -> None:
    asked = []

    def read(name: str) -> list[float]:
        asked.append(name)
        return [1.0, 8.0]

    cfg = ModelConfig.from_gguf(metadata("llama"), ["rope_freqs.weight"], read)
    assert cfg.rope == Rope(1e4, divisors=(1.0, 8.0))
    assert asked == ["rope_freqs.weight"]
    with pytest.raises(CheckpointError, match="no way to read it"):
        ModelConfig.from_gguf(metadata("llama"), ["rope_freqs.weight"])
    with pytest.raises(CheckpointError, match=r"rope.divisors is 0.0, but must be positive"):
        ModelConfig.from_gguf(metadata("llama"), ["rope_freqs.weight"], lambda _: [0.0])


def test_scaling() -> None:
    linear = metadata("qwen2", rope__scaling__type="linear", rope__scaling__factor=4.0)
    assert ModelConfig.from_gguf(linear, []).rope == Rope(1e4, "linear", 4.0)
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
    assert ModelConfig.from_gguf(metadata("qwen3", **yarn), []).rope == Rope(1e4, "yarn", 4.0, 32)


def test_gemma() -> None:
    more = {"attention.sliding_window": 5, "attention.key_length": 8, "attention.value_length": 8}
    cfg = ModelConfig.from_gguf(metadata("gemma3", block_count=7, **more), [])
    assert cfg.model_type == "gemma3_text"
    assert cfg.windows == (5, 5, 5, 5, 5, 0, 5)
    assert (cfg.rope, cfg.local_rope) == (Rope(1e6), Rope(1e4))
    assert (cfg.norm_offset, cfg.embed_scale, cfg.activation) == (0.0, 4.0, "gelu_tanh")
    assert cfg.query_scale == pytest.approx(1 / math.sqrt(8))
    big = ModelConfig.from_gguf(metadata("gemma3", block_count=62, **more), [])
    assert big.query_scale == 0.5  # 27B: by hidden size per head, 16 / 4


def test_window_patterns() -> None:
    def windows(pattern: Any) -> tuple[int, ...]:
        keys = {"attention.sliding_window": 5, "attention.sliding_window_pattern": pattern}
        return ModelConfig.from_gguf(metadata("gemma3", **keys), []).windows

    assert windows([True, False, True]) == (5, 0, 5)
    assert windows(2) == (5, 0, 5)
    assert windows(None) == (5, 5, 5)
    assert ModelConfig.from_gguf(metadata("llama", attention__sliding_window=7), []).windows == (7, 7, 7)


def test_vocabulary_size_and_end_tokens() -> None:
    data = metadata("llama", vocab_size=None)
    data |= {
        "tokenizer.ggml.tokens": ["a"] * 50,
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.eot_token_id": 4,
    }
    cfg = ModelConfig.from_gguf(data, [])
    assert (cfg.vocab_size, cfg.eos_token_ids) == (50, (3, 4))
    data["tokenizer.ggml.eot_token_id"] = 3
    assert ModelConfig.from_gguf(data, []).eos_token_ids == (3,)


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "architecture": ("mamba", {}, "general.architecture is 'mamba', but must be one of llama, qwen2, qwen3, gemma3"),
    "missing": ("llama", {"block_count": None}, "GGUF metadata: llama.block_count is missing"),
    "per layer": ("llama", {"feed_forward_length": [1, 2]}, "llama.feed_forward_length is .* must be a whole number"),
    "experts": ("llama", {"expert_count": 8}, "llama.expert_count is 8, but must be 0"),
    "heads": ("llama", {"attention.head_count": 0}, "llama.attention.head_count is 0, but must be positive"),
    "value length": ("llama", {"attention.value_length": 3}, "llama.attention.value_length is 3, but must be as"),
    "vocabulary": ("llama", {"vocab_size": None}, "neither vocab_size nor tokenizer.ggml.tokens"),
    "rotary": ("llama", {"rope.dimension_count": 6}, "rotary_dim is 6, but must be even and at most head_dim"),
    "scaling": ("llama", {"rope.scaling.type": "longrope"}, "llama.rope.scaling.type is 'longrope', but must be none"),
    "window": ("llama", {"attention.sliding_window": -1}, "attention.sliding_window is -1, but must be positive"),
    "pattern": ("gemma3", {"attention.sliding_window_pattern": [True]}, "must be a period, or a flag per layer"),
}


@pytest.mark.parametrize(("arch", "change", "complaint"), BAD.values(), ids=BAD.keys())
def test_bad_metadata_names_the_key(arch: str, change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        ModelConfig.from_gguf(metadata(arch, **change), [])
