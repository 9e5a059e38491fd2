from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from ramet.errors import CheckpointError
from ramet.models import ModelConfig, architectures, build_plan
from ramet.models.rope import Rope

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
GEMMA: dict[str, Any] = {**LLAMA, "model_type": "gemma3_text", "num_hidden_layers": 7, "head_dim": 8}


def test_defaults() -> None:
    cfg = ModelConfig.from_hf({**LLAMA, "head_dim": None, "eos_token_id": [2, 3], "bos_token_id": 1})
    assert (cfg.num_kv_heads, cfg.head_dim, cfg.rotary_dim, cfg.context_length) == (4, 4, 4, 128)
    assert (cfg.norm_eps, cfg.rope, cfg.local_rope, cfg.windows) == (1e-6, Rope(1e4), None, (0, 0, 0))
    assert (cfg.activation, cfg.query_scale, cfg.embed_scale, cfg.norm_offset) == ("silu", 0.5, 1.0, 0.0)
    assert (cfg.qkv_bias, cfg.output_bias, cfg.mlp_bias, cfg.tie_word_embeddings) == (False,) * 4
    assert (cfg.bos_token_id, cfg.eos_token_ids) == (1, (2, 3))
    assert ModelConfig.from_hf(LLAMA).bos_token_id is None


def test_biases() -> None:
    both = ModelConfig.from_hf({**LLAMA, "attention_bias": True, "mlp_bias": True})
    assert (both.qkv_bias, both.output_bias, both.mlp_bias) == (True, True, True)
    qwen = ModelConfig.from_hf({**LLAMA, "model_type": "qwen2"})
    assert (qwen.qkv_bias, qwen.output_bias, qwen.mlp_bias) == (True, False, False)


@pytest.mark.parametrize("newer", [False, True])
def test_rope_scaling_in_both_generations(newer: bool) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    told = (
        {"rope_parameters": {**scaling, "rope_theta": 5e5}} if newer else {"rope_scaling": scaling, "rope_theta": 5e5}
    )
    assert ModelConfig.from_hf({**LLAMA, **told}).rope == Rope(5e5, "llama3", 8.0, 32)
    linear = ModelConfig.from_hf({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2}})
    assert linear.rope == Rope(1e4, "linear", 2.0)


def test_yarn_stretches_the_context() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 0.9}
    cfg = ModelConfig.from_hf({**LLAMA, "rope_scaling": yarn})
    assert cfg.rope == Rope(1e4, "yarn", 4.0, 128, attention_factor=0.9)
    assert cfg.context_length == 512


def test_windows() -> None:
    def windows(**more: Any) -> tuple[int, ...]:
        return ModelConfig.from_hf({**LLAMA, **more}).windows

    assert windows(sliding_window=9) == (0, 0, 0)  # llama has none
    assert windows(model_type="mistral", sliding_window=9) == (9, 9, 9)
    assert windows(model_type="mistral", sliding_window=None) == (0, 0, 0)
    qwen = {"model_type": "qwen2", "sliding_window": 9, "max_window_layers": 2}
    assert windows(**qwen) == (0, 0, 0)
    assert windows(**qwen, use_sliding_window=True) == (0, 0, 9)
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows(**qwen, use_sliding_window=True, layer_types=types) == (9, 0, 9)


def test_gemma() -> None:
    cfg = ModelConfig.from_hf({**GEMMA, "sliding_window": 5, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert cfg.windows == (5, 5, 5, 5, 5, 0, 5)
    assert (cfg.rope, cfg.local_rope) == (Rope(1e6, "linear", 8.0), Rope(1e4))
    assert (cfg.norm_offset, cfg.embed_scale, cfg.activation) == (1.0, math.sqrt(16), "gelu_tanh")
    assert cfg.query_scale == 1 / 16
    assert cfg.tie_word_embeddings
    assert ModelConfig.from_hf({**GEMMA, "query_pre_attn_scalar": 4}).query_scale == 0.5


def test_gemma_rope_of_the_newer_generation() -> None:
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }
    cfg = ModelConfig.from_hf({**GEMMA, "rope_parameters": ropes})
    assert (cfg.rope, cfg.local_rope) == (Rope(2e6, "linear", 8.0), Rope(3e4))


def test_gemma_beside_a_vision_tower() -> None:
    """Gemma 3 4B's config.json leaves out whatever is the default of its class."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = {"model_type": "gemma3", "eos_token_id": [1, 106], "vision_config": {}, "text_config": text}
    cfg = ModelConfig.from_hf(config)
    assert (cfg.model_type, cfg.eos_token_ids, cfg.vocab_size) == ("gemma3_text", (1, 106), 262_208)
    assert (cfg.num_heads, cfg.num_kv_heads, cfg.head_dim, cfg.query_scale) == (8, 4, 256, 1 / 16)
    assert cfg.windows[:7] == (1024, 1024, 1024, 1024, 1024, 0, 1024)
    with pytest.raises(CheckpointError, match="text_config must be an object"):
        ModelConfig.from_hf({"model_type": "gemma3"})


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no type": ({"model_type": None}, "config.json: model_type is missing"),
    "type of a wrong type": ({"model_type": 3}, "model_type is 3, but must be a text"),
    "missing": ({"hidden_size": None}, "config.json: hidden_size is missing"),
    "text for a number": ({"vocab_size": "64"}, "vocab_size is '64', but must be a whole number"),
    "fraction": ({"vocab_size": 64.5}, "vocab_size is 64.5, but must be a whole number"),
    "flag for a number": ({"rms_norm_eps": True}, "rms_norm_eps is True, but must be a number"),
    "number for a flag": ({"attention_bias": 1}, "attention_bias is 1, but must be true or false"),
    "long value": ({"vocab_size": "x" * 500}, r"vocab_size is 'x+\.\.\., but"),
    "no heads": ({"num_attention_heads": 0}, "num_attention_heads is 0, but must be positive"),
    "heads": ({"num_key_value_heads": 3}, "num_kv_heads is 3, but must be a divisor of num_heads"),
    "layers": ({"num_hidden_layers": 10**12}, "num_layers is 1000000000000, but must be between 1 and 1024"),
    "negative": ({"num_hidden_layers": -1}, "num_layers is -1"),
    "hidden": ({"hidden_size": 1 << 40, "head_dim": 4}, "hidden_size is 1099511627776, but must be between"),
    "eps": ({"rms_norm_eps": 0.0}, "norm_eps is 0.0, but must be between 0 and 1"),
    "odd rotary": ({"head_dim": 5}, "rotary_dim is 5, but must be even and at most head_dim"),
    "eps nan": ({"rms_norm_eps": math.nan}, "norm_eps is nan"),
    "cap": ({"final_logit_softcapping": -1.0}, "final_soft_cap is -1.0"),
    "base": ({"rope_theta": 0.0}, "rope.base is 0.0, but must be positive"),
    "base 1": ({"rope_theta": 1.0}, "rope.base is 1.0, but must be above 1"),
    "activation": ({"hidden_act": "mish"}, "hidden_act is 'mish', but must be one of silu"),
    "quantised": ({"quantization_config": {"quant_method": "awq"}}, "quantization_config is .* but must be absent"),
    "eos": ({"eos_token_id": [1, -2]}, "eos_token_id is .* but must be a token id or a list of them"),
    "eos text": ({"eos_token_id": "two"}, "eos_token_id is 'two'"),
    "window": ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0, but must be positive"),
    "layer types": (
        {"model_type": "mistral", "sliding_window": 4, "layer_types": ["chunked_attention"]},
        "layer_types is .* but must be a list of",
    ),
    "layer types count": (
        {"model_type": "mistral", "sliding_window": 4, "layer_types": ["full_attention"]},
        "windows is 1, but must be one per layer",
    ),
    "pattern": ({"model_type": "gemma3_text", "sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
    "query scalar": ({"model_type": "gemma3_text", "query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
    "rope list": ({"rope_scaling": [1]}, "rope_scaling must be an object"),
    "rope kind": ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope type 'dynamic' is not supported"),
    "rope factor": ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
    "rope factor 0": ({"rope_scaling": {"type": "linear", "factor": 0.0}}, "rope.factor is 0.0"),
    "rope extra": (
        {"rope_scaling": {"type": "linear", "factor": 2.0, "mscale": 1.0}},
        r"rope_scaling: \['mscale'\] cannot be honoured for type 'linear'",
    ),
    "rope partial": (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "partial_rotary_factor is 0.5, but must be as in the config itself",
    ),
    "yarn context": (
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 0}},
        "rope.original_context is 0, but must be positive",
    ),
    "llama3 order": (
        {"rope_scaling": {"type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
        "high_freq_factor is 4.0, but must be above low_freq_factor",
    ),
    "yarn attention": (
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "attention_factor": -1.0}},
        "rope.attention_factor is -1.0",
    ),
}


@pytest.mark.parametrize(("change", "complaint"), BAD.values(), ids=BAD.keys())
def test_bad_config_names_the_key(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        ModelConfig.from_hf({**LLAMA, **change})


def test_unknown_architecture_lists_what_exists() -> None:
    cfg = dataclasses.replace(ModelConfig.from_hf(LLAMA), model_type="mamba")
    with pytest.raises(CheckpointError, match="unknown architecture 'mamba'; there are bert, gemma3_text, llama"):
        build_plan(cfg)
    with pytest.raises(CheckpointError, match="unknown architecture 'blocks'"):
        ModelConfig.from_hf({**LLAMA, "model_type": "blocks"})
    encoders = {"bert", "roberta", "xlm_roberta"}
    assert set(architectures()) == {"gemma3_text", "llama", "mistral", "qwen2", "qwen3"} | encoders


def test_options_reach_the_plan() -> None:
    base = {**LLAMA, "head_dim": 4, "partial_rotary_factor": 0.5, "attention_bias": True, "mlp_bias": True}
    plan = build_plan(ModelConfig.from_hf({**base, "final_logit_softcapping": 5.0}))
    assert {op.attrs["rotary_dim"] for op in plan.ops if op.kind == "rope"} == {2}
    names = {weight.name for weight in plan.weights}
    assert {"layers.0.self_attn.o_proj.bias", "layers.2.mlp.down_proj.bias", "lm_head"} <= names
    assert plan.ops[-1].kind == "soft_cap"
    tied = build_plan(ModelConfig.from_hf({**LLAMA, "tie_word_embeddings": True}))
    assert "lm_head" not in {weight.name for weight in tied.weights}


def test_another_architecture_is_named_before_keys_that_it_spells_otherwise() -> None:
    with pytest.raises(CheckpointError, match="unknown architecture 'gpt2'"):
        ModelConfig.from_hf({"model_type": "gpt2", "n_layer": 12, "n_embd": 768})
