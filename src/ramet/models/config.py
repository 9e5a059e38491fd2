"""What a checkpoint says about its model, in one form for every source (`from_hf.py`, `from_gguf.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ramet.errors import CheckpointError
from ramet.models.rope import Rope

#: Largest numbers believed. They bound what is allocated from a hostile file, and are several times today's largest.
LIMITS: Mapping[str, int] = {
    "num_layers": 1 << 10,
    "num_heads": 1 << 10,
    "num_kv_heads": 1 << 10,
    "head_dim": 1 << 10,
    "rotary_dim": 1 << 10,
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 20,
    "vocab_size": 1 << 22,
    "context_length": 1 << 27,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only text model. `model_type` names the file in `ramet.models` that builds its plan.

    Raises:
        CheckpointError: a number that cannot be, by name.
    """

    model_type: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int  # rows of the embedding, which may be more than the tokenizer has
    context_length: int  # tokens
    norm_eps: float
    rope: Rope
    rotary_dim: int  # floats of each head that rotate
    windows: tuple[int, ...]  # of each layer; 0: the layer sees everything
    local_rope: Rope | None = None  # of layers with a window; None: as the others
    norm_offset: float = 0.0  # added to every norm weight; 1 where the checkpoint stores w - 1
    activation: str = "silu"  # of the gated MLP; a function of `plan.ops`
    query_scale: float  # multiplies q · k
    attention_soft_cap: float = 0.0  # 0: none
    final_soft_cap: float = 0.0
    embed_scale: float = 1.0
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            _require(1 <= getattr(self, name) <= limit, name, getattr(self, name), f"between 1 and {limit}")
        _require(self.num_heads % self.num_kv_heads == 0, "num_kv_heads", self.num_kv_heads, "a divisor of num_heads")
        _require(
            self.rotary_dim % 2 == 0 and self.rotary_dim <= self.head_dim,
            "rotary_dim",
            self.rotary_dim,
            f"even and at most head_dim ({self.head_dim})",
        )
        _require(0 < self.norm_eps < 1, "norm_eps", self.norm_eps, "between 0 and 1")
        _require(0 < self.query_scale < math.inf, "query_scale", self.query_scale, "positive")
        for name in ("attention_soft_cap", "final_soft_cap"):
            _require(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "positive, or absent")
        _require(0 < self.embed_scale < math.inf, "embed_scale", self.embed_scale, "positive")
        _require(len(self.windows) == self.num_layers, "windows", len(self.windows), "one per layer")
        _require(min(self.windows) >= 0, "windows", min(self.windows), "positive, or absent")
        for name, rope in (("rope", self.rope), ("local_rope", self.local_rope)):
            if rope is not None:
                _check_rope(name, rope)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """From a Hugging Face `config.json`.

        Raises:
            CheckpointError: a key is missing, absurd, or asks for something unsupported; names the key.
        """
        from ramet.models.from_hf import read_hf_config

        return read_hf_config(config)

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        tensor_names: Collection[str],
        read_vector: Callable[[str], Sequence[float]] | None = None,
    ) -> ModelConfig:
        """From a GGUF file's metadata and tensor names. `read_vector` reads the small f32 tensor of that name; it is
        only asked for `rope_freqs.weight`, where the file has one.

        Raises:
            CheckpointError: a key is missing, absurd, or asks for something unsupported; names the key.
        """
        from ramet.models.from_gguf import read_gguf_config

        return read_gguf_config(metadata, tensor_names, read_vector)


def _require(truth: bool, name: str, value: object, rule: str) -> None:
    if not truth:
        raise CheckpointError(f"model config: {name} is {value!r}, but must be {rule}", field=name)


def _check_rope(name: str, rope: Rope) -> None:
    for part in ("base", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"):
        number = getattr(rope, part)
        _require(0 < number < math.inf, f"{name}.{part}", number, "positive")
    _require(rope.base > 1, f"{name}.base", rope.base, "above 1")
    if rope.kind in ("llama3", "yarn"):
        _require(rope.original_context > 0, f"{name}.original_context", rope.original_context, "positive")
    _require(
        rope.kind != "llama3" or rope.high_freq_factor > rope.low_freq_factor,
        f"{name}.high_freq_factor",
        rope.high_freq_factor,
        "above low_freq_factor",
    )
    factor = rope.attention_factor
    _require(factor is None or 0 < factor < math.inf, f"{name}.attention_factor", factor, "positive")
    for divisor in rope.divisors or ():
        _require(0 < divisor < math.inf, f"{name}.divisors", divisor, "positive")
