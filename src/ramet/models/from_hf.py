"""`ModelConfig` from a Hugging Face `config.json`, of either generation (rope_scaling or rope_parameters)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ramet.errors import CheckpointError
from ramet.models.config import ModelConfig
from ramet.models.keys import Keys
from ramet.models.rope import Rope

SOURCE = "config.json"

#: What a missing key means where the model's own class differs from the common default.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "qwen3": {"head_dim": 128},
    "gemma3_text": {
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
        "vocab_size": 262_208,
    },
}

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}

#: Keys of a rope description, per kind, beside rope_type / type and rope_theta. Another key would change the numbers.
ROPE_KEYS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset({"factor", "beta_fast", "beta_slow", "attention_factor", "original_max_position_embeddings"}),
}


def read_hf_config(config: Mapping[str, Any]) -> ModelConfig:
    """See `ModelConfig.from_hf`."""
    from ramet.models import require_architecture  # which imports encoders, and they this file

    config = _text_part(config)
    model_type = Keys(config, SOURCE).text("model_type")
    require_architecture(model_type)  # first: others spell their keys otherwise, and would seem to lack them
    given = {key: value for key, value in config.items() if value is not None}
    keys = Keys({**DEFAULTS.get(model_type, {}), **given}, SOURCE)
    if "quantization_config" in keys:
        raise keys.wrong("quantization_config", "absent: checkpoints quantised this way are not supported")
    if keys.flag("use_bidirectional_attention", False):
        raise keys.wrong("use_bidirectional_attention", "false: this architecture is run as a decoder")
    gemma = model_type == "gemma3_text"
    num_layers, num_heads = keys.integer("num_hidden_layers"), keys.integer("num_attention_heads")
    hidden_size = keys.integer("hidden_size")
    if num_heads < 1:
        raise keys.wrong("num_attention_heads", "positive")
    head_dim = keys.integer("head_dim", hidden_size // num_heads)
    rope = _rope(keys, "full_attention", keys.number("rope_theta", 10_000.0))
    attention_bias = keys.flag("attention_bias", False)
    context_length = keys.integer("max_position_embeddings")
    if rope.kind == "yarn":
        context_length = max(context_length, int(rope.original_context * rope.factor))
    return ModelConfig(
        model_type=model_type,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=keys.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        hidden_size=hidden_size,
        intermediate_size=keys.integer("intermediate_size"),
        vocab_size=keys.integer("vocab_size"),
        context_length=context_length,
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        norm_offset=1.0 if gemma else 0.0,
        rope=rope,
        local_rope=_rope(keys, "sliding_attention", keys.number("rope_local_base_freq")) if gemma else None,
        rotary_dim=int(head_dim * keys.number("partial_rotary_factor", 1.0)),
        windows=_windows(keys, model_type, num_layers),
        activation=_activation(keys, "hidden_activation" if gemma else "hidden_act"),
        query_scale=_power(keys, "query_pre_attn_scalar", -0.5) if gemma else max(head_dim, 1) ** -0.5,
        attention_soft_cap=keys.number("attn_logit_softcapping", 0.0),
        final_soft_cap=keys.number("final_logit_softcapping", 0.0),
        embed_scale=math.sqrt(max(hidden_size, 1)) if gemma else 1.0,
        qkv_bias=attention_bias or model_type == "qwen2",
        output_bias=attention_bias and model_type != "qwen2",
        mlp_bias=keys.flag("mlp_bias", False),
        tie_word_embeddings=keys.flag("tie_word_embeddings", False),
        bos_token_id=next(iter(keys.ids("bos_token_id")), None),
        eos_token_ids=keys.ids("eos_token_id"),
    )


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a vision-language Gemma 3 its language model, which is a gemma3_text; its end tokens stand outside."""
    if config.get("model_type") != "gemma3":
        return config
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        raise CheckpointError(
            f"{SOURCE}: text_config must be an object in a config of type gemma3", field="text_config"
        )
    outer = {key: config[key] for key in ("bos_token_id", "eos_token_id", "quantization_config") if key in config}
    return {**text, **outer, "model_type": "gemma3_text"}


def _power(keys: Keys, key: str, exponent: float) -> float:
    value = keys.number(key)
    if not 0 < value < math.inf:
        raise keys.wrong(key, "positive")
    return float(value**exponent)


def _activation(keys: Keys, key: str) -> str:
    name = keys.text(key, "silu")
    if name not in ACTIVATIONS:
        raise keys.wrong(key, f"one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _windows(keys: Keys, model_type: str, num_layers: int) -> tuple[int, ...]:
    """Window of each layer, by `layer_types` or by the rule of the model's type."""
    layers = range(max(0, min(num_layers, 1 << 16)))
    if "sliding_window" not in keys or not keys.flag("use_sliding_window", model_type in ("mistral", "gemma3_text")):
        return (0,) * len(layers)
    window = keys.integer("sliding_window")
    if window < 1:
        raise keys.wrong("sliding_window", "positive")
    types = keys.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or not set(types) <= {"sliding_attention", "full_attention"}:
            raise keys.wrong("layer_types", "a list of sliding_attention and full_attention")
        return tuple(window if kind == "sliding_attention" else 0 for kind in types)
    if model_type == "gemma3_text":
        pattern = keys.integer("sliding_window_pattern")
        if pattern < 1:
            raise keys.wrong("sliding_window_pattern", "positive")
        return tuple(window if (i + 1) % pattern else 0 for i in layers)
    first = keys.integer("max_window_layers", 0)
    return tuple(window if i >= first else 0 for i in layers)


def _rope(keys: Keys, section: str, base: float) -> Rope:
    """The rope of layers of this kind of attention. Only full attention stretches by the older `rope_scaling`."""
    told = keys.get("rope_parameters")
    name = "rope_parameters"
    if isinstance(told, Mapping) and section in told:
        told, name = told[section], f"rope_parameters.{section}"
    elif section == "sliding_attention":
        told = None
    elif told is None:
        told, name = keys.get("rope_scaling"), "rope_scaling"
    if told is None:
        told = {}
    if not isinstance(told, Mapping):
        raise CheckpointError(f"{SOURCE}: {name} must be an object", field=name)
    rope = Keys(told, f"{SOURCE}: {name}")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in ROPE_KEYS:
        raise CheckpointError(f"{SOURCE}: {name}: rope type {kind!r} is not supported", field=name)
    extra = set(told) - ROPE_KEYS[kind] - {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    extra = {key for key in extra if key in rope}
    if extra:
        raise CheckpointError(f"{SOURCE}: {name}: {sorted(extra)} cannot be honoured for type {kind!r}", field=name)
    if "partial_rotary_factor" in rope and rope.number("partial_rotary_factor") != keys.number(
        "partial_rotary_factor", 1
    ):
        raise rope.wrong("partial_rotary_factor", "as in the config itself")
    base = rope.number("rope_theta", base)
    if kind == "default":
        return Rope(base)
    if kind == "linear":
        return Rope(base, "linear", rope.number("factor"))
    context = rope.integer("original_max_position_embeddings", keys.integer("max_position_embeddings"))
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        return Rope(base, "llama3", rope.number("factor"), context, low_freq_factor=low, high_freq_factor=high)
    return Rope(
        base,
        "yarn",
        rope.number("factor"),
        context,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=rope.number("attention_factor") if "attention_factor" in rope else None,
    )
