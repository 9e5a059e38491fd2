"""What a checkpoint says about an encoder, whose tokens see each other both ways, and the layers of all encoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramet.errors import CheckpointError
from ramet.models.config import LIMITS
from ramet.models.from_hf import ACTIVATIONS, SOURCE
from ramet.models.keys import Keys
from ramet.plan.builder import PlanBuilder, Value

#: Types whose positions begin behind the padding token's id, as RoBERTa counted them.
_POSITIONS_BEHIND_PADDING = frozenset({"roberta", "xlm_roberta"})
ENCODERS = frozenset({"bert"}) | _POSITIONS_BEHIND_PADDING

#: model_type as config.json spells it, where that is no name of a module.
_SPELLINGS = {"xlm-roberta": "xlm_roberta"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """An encoder with learned positions. `model_type` names the file in `ramet.models` that builds its plan.

    Raises:
        CheckpointError: a number that cannot be, by name.
    """

    model_type: str
    num_layers: int
    num_heads: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_positions: int  # rows of the table of positions
    position_offset: int  # the row of position 0
    type_vocab_size: int  # rows of the table of token types
    context_length: int  # tokens
    norm_eps: float
    activation: str
    tie_word_embeddings: bool = False  # there is no head to tie
    eos_token_ids: tuple[int, ...] = ()  # nothing is generated

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "hidden_size", "intermediate_size", "vocab_size", "context_length"):
            _require(
                1 <= getattr(self, name) <= LIMITS[name], name, getattr(self, name), f"between 1 and {LIMITS[name]}"
            )
        _require(self.hidden_size % self.num_heads == 0, "num_heads", self.num_heads, "a divisor of hidden_size")
        _require(1 <= self.type_vocab_size <= 1 << 10, "type_vocab_size", self.type_vocab_size, "between 1 and 1024")
        _require(
            0 <= self.position_offset <= self.num_positions - self.context_length,
            "num_positions",
            self.num_positions,
            f"enough for {self.context_length} tokens from row {self.position_offset} on",
        )
        _require(0 < self.norm_eps < 1, "norm_eps", self.norm_eps, "between 0 and 1")

    @property
    def num_kv_heads(self) -> int:
        return self.num_heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


def _require(truth: bool, name: str, value: object, rule: str) -> None:
    if not truth:
        raise CheckpointError(f"model config: {name} is {value!r}, but must be {rule}", field=name)


def model_type_of(config: Mapping[str, Any]) -> str:
    """`model_type` of a config.json as the name of a module; "" where there is none."""
    found = config.get("model_type")
    return _SPELLINGS.get(found, found) if isinstance(found, str) else ""


def read_encoder_config(config: Mapping[str, Any], max_tokens: int | None = None) -> EncoderConfig:
    """From a Hugging Face config.json. `max_tokens`: fewer than there are positions, where the model is to get no more.

    Raises:
        CheckpointError: a key is missing, absurd, or asks for something unsupported; names the key.
    """
    keys = Keys(config, SOURCE)
    model_type = model_type_of(config)
    if "quantization_config" in keys:
        raise keys.wrong("quantization_config", "absent: checkpoints quantised this way are not supported")
    if keys.text("position_embedding_type", "absolute") != "absolute":
        raise keys.wrong("position_embedding_type", "absolute: no other is supported")
    if keys.flag("is_decoder", False):
        raise keys.wrong("is_decoder", "false: this architecture is run as an encoder")
    activation = keys.text("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise keys.wrong("hidden_act", f"one of {', '.join(ACTIVATIONS)}")
    num_positions = keys.integer("max_position_embeddings", 512)
    offset = keys.integer("pad_token_id", 1) + 1 if model_type in _POSITIONS_BEHIND_PADDING else 0
    room = num_positions - offset
    return EncoderConfig(
        model_type=model_type,
        num_layers=keys.integer("num_hidden_layers"),
        num_heads=keys.integer("num_attention_heads"),
        hidden_size=keys.integer("hidden_size"),
        intermediate_size=keys.integer("intermediate_size"),
        vocab_size=keys.integer("vocab_size"),
        num_positions=num_positions,
        position_offset=offset,
        type_vocab_size=keys.integer("type_vocab_size", 2),
        context_length=room if max_tokens is None else min(room, max_tokens),
        norm_eps=keys.number("layer_norm_eps", 1e-12),
        activation=ACTIVATIONS[activation],
    )


def embeddings(b: PlanBuilder, cfg: EncoderConfig) -> Value:
    """Words, positions and token types, summed and normed. [tokens, hidden_size]"""
    width, types = cfg.hidden_size, b.token_types
    with b.scope("embeddings"):
        x = b.embed(b.tokens, "word_embeddings", rows=cfg.vocab_size, width=width)
        x = b.add(x, b.embed(types, "token_type_embeddings", rows=cfg.type_vocab_size, width=width))
        places = b.embed_positions(
            "position_embeddings", rows=cfg.num_positions, width=width, offset=cfg.position_offset
        )
        return b.layer_norm(b.add(x, places), "LayerNorm", eps=cfg.norm_eps)


def layer(b: PlanBuilder, cfg: EncoderConfig, x: Value) -> Value:
    """One layer with its norms behind the residuals. [tokens, hidden_size]"""
    width = cfg.hidden_size
    with b.scope("attention"):
        q, k, v = (b.linear(x, f"self.{name}", out=width, bias=True) for name in ("query", "key", "value"))
        mixed = b.attention(
            q, k, v, heads=cfg.num_heads, kv_heads=cfg.num_heads, scale=cfg.head_dim**-0.5, causal=False
        )
        x = b.add(x, b.linear(mixed, "output.dense", out=width, bias=True))
        x = b.layer_norm(x, "output.LayerNorm", eps=cfg.norm_eps)
    h = b.activation(b.linear(x, "intermediate.dense", out=cfg.intermediate_size, bias=True), cfg.activation)
    x = b.add(x, b.linear(h, "output.dense", out=width, bias=True))
    return b.layer_norm(x, "output.LayerNorm", eps=cfg.norm_eps)
