"""`ModelConfig` from GGUF metadata, whose keys begin with the architecture's name.

Conversion to GGUF already adds 1 to gemma's norm weights and leaves some constants out, which are restored here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ramet.errors import CheckpointError
from ramet.models.config import ModelConfig
from ramet.models.keys import Keys
from ramet.models.rope import Rope

SOURCE = "GGUF metadata"

#: general.architecture → model_type. Mistral's files say llama.
ARCHITECTURES: Mapping[str, str] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}

#: Gemma 3 with this many layers (27B) scales queries by the width per head instead of the head's size.
GEMMA3_27B_LAYERS = 62

ROPE_DIVISORS = "rope_freqs.weight"


def read_gguf_config(
    metadata: Mapping[str, Any],
    tensor_names: Collection[str],
    read_vector: Callable[[str], Sequence[float]] | None = None,
) -> ModelConfig:
    """See `ModelConfig.from_gguf`."""
    general = Keys(metadata, SOURCE)
    arch = general.text("general.architecture")
    if arch not in ARCHITECTURES:
        raise general.wrong("general.architecture", f"one of {', '.join(ARCHITECTURES)}")
    keys = Keys(metadata, SOURCE, f"{arch}.")
    if keys.integer("expert_count", 0) != 0:
        raise keys.wrong("expert_count", "0: mixtures of experts are not supported")
    num_heads, hidden_size = keys.integer("attention.head_count"), keys.integer("embedding_length")
    if num_heads < 1:
        raise keys.wrong("attention.head_count", "positive")
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads)
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise keys.wrong("attention.value_length", f"as attention.key_length ({head_dim})")
    names = set(tensor_names)
    num_layers, context_length = keys.integer("block_count"), keys.integer("context_length")
    gemma = arch == "gemma3"
    rope = _rope(keys, context_length, names, read_vector, 1e6 if gemma else 1e4)
    windows = _windows(keys, num_layers, gemma)
    return ModelConfig(
        model_type=ARCHITECTURES[arch],
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        vocab_size=_vocab_size(general, keys),
        context_length=context_length,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        local_rope=Rope(keys.number("rope.freq_base_swa", 1e4)) if gemma else None,
        rotary_dim=keys.integer("rope.dimension_count", head_dim),
        windows=windows,
        activation="gelu_tanh" if gemma else "silu",
        query_scale=_query_scale(gemma, num_layers, hidden_size, num_heads, head_dim),
        attention_soft_cap=keys.number("attn_logit_softcapping", 0.0),
        final_soft_cap=keys.number("final_logit_softcapping", 0.0),
        embed_scale=math.sqrt(max(hidden_size, 1)) if gemma else 1.0,
        qkv_bias="blk.0.attn_q.bias" in names,
        output_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_gate.bias" in names,
        tie_word_embeddings="output.weight" not in names,
        bos_token_id=next(iter(general.ids("tokenizer.ggml.bos_token_id")), None),
        eos_token_ids=_eos(general),
    )


def _vocab_size(general: Keys, keys: Keys) -> int:
    """Said, or one row of the embedding per token of the vocabulary."""
    if "vocab_size" in keys:
        return keys.integer("vocab_size")
    tokens = general.get("tokenizer.ggml.tokens")
    if tokens is None:
        raise CheckpointError(f"{SOURCE}: neither vocab_size nor tokenizer.ggml.tokens is there", field="vocab_size")
    return len(tokens)


def _eos(general: Keys) -> tuple[int, ...]:
    """End of sequence, and of turn where that is another token."""
    found = [i for key in ("eos", "eot") for i in general.ids(f"tokenizer.ggml.{key}_token_id")]
    return tuple(dict.fromkeys(found))


def _query_scale(gemma: bool, num_layers: int, hidden_size: int, num_heads: int, head_dim: int) -> float:
    size = hidden_size / num_heads if gemma and num_layers == GEMMA3_27B_LAYERS else head_dim
    return 1.0 / math.sqrt(max(size, 1.0))


def _windows(keys: Keys, num_layers: int, gemma: bool) -> tuple[int, ...]:
    """Window of each layer. The pattern is a period whose last layer sees all, or a flag per layer."""
    layers = range(max(0, min(num_layers, 1 << 16)))
    window = keys.integer("attention.sliding_window", 0)
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, (Sequence, np.ndarray)) and not isinstance(pattern, str):
        if len(pattern) != len(layers):
            raise keys.wrong("attention.sliding_window_pattern", "a period, or a flag per layer")
        return tuple(window if flag else 0 for flag in pattern)
    period = keys.integer("attention.sliding_window_pattern", 6 if gemma else 0)
    if window < 0 or period < 0:
        raise keys.wrong("attention.sliding_window", "positive")
    return tuple(window if period == 0 or (i + 1) % period else 0 for i in layers)


def _rope(
    keys: Keys,
    context_length: int,
    names: set[str],
    read_vector: Callable[[str], Sequence[float]] | None,
    default_base: float,
) -> Rope:
    base = keys.number("rope.freq_base", default_base)
    divisors: tuple[float, ...] | None = None
    if ROPE_DIVISORS in names:
        if read_vector is None:
            raise CheckpointError(f"the file has {ROPE_DIVISORS}, but no way to read it was given", field=ROPE_DIVISORS)
        divisors = tuple(float(x) for x in read_vector(ROPE_DIVISORS))
    kind = keys.text("rope.scaling.type", "none")
    if kind == "none":
        return Rope(base, divisors=divisors)
    if kind == "linear":
        return Rope(base, "linear", keys.number("rope.scaling.factor"), divisors=divisors)
    if kind != "yarn":
        raise keys.wrong("rope.scaling.type", "none, linear or yarn: no other is supported")
    return Rope(
        base,
        "yarn",
        keys.number("rope.scaling.factor"),
        keys.integer("rope.scaling.original_context_length", context_length),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        divisors=divisors,
    )
