"""What the tensors of each kind of checkpoint are called in a plan.

Plans use Hugging Face names without a leading "model." and a trailing ".weight".
"""

from __future__ import annotations

import re
from typing import Final, Literal

# The text model's place in a checkpoint, longest first; the first three are gemma3's multimodal layouts, new and old.
_HF_PREFIXES: Final = (
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
    "bert.",
    "roberta.",
)
# Of a multimodal checkpoint: not of the text plan.
_HF_OTHER_PARTS: Final = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)
# Buffers, recomputed from the config.
_HF_BUFFERS: Final = (".rotary_emb.inv_freq", "embeddings.position_ids")
# As the first BERT checkpoints spell them.
_HF_OLD_ENDINGS: Final = {".LayerNorm.gamma": ".LayerNorm", ".LayerNorm.beta": ".LayerNorm.bias"}

# Not a weight but the config's rope scaling as a vector of divisors: `ModelConfig.from_gguf` reads it.
_GGUF_BUFFERS: Final = ("rope_freqs.weight",)
_GGUF_WHOLE: Final = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
_GGUF_IN_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Where a layer has norms after its blocks too (gemma), GGUF's ffn_norm is the one before the feed-forward block.
_GGUF_AFTER_NORMS: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GGUF_NAME: Final = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")


def hf_name(tensor: str) -> str | None:
    """The plan's name of a Hugging Face tensor; None for a part that a text plan never has."""
    if tensor.startswith(_HF_OTHER_PARTS) or tensor.endswith(_HF_BUFFERS):
        return None
    for prefix in _HF_PREFIXES:
        if tensor.startswith(prefix):
            tensor = tensor[len(prefix) :]
            break
    for old, new in _HF_OLD_ENDINGS.items():
        if tensor.endswith(old):
            return tensor.removesuffix(old) + new
    return tensor.removesuffix(".weight")


def gguf_name(tensor: str, *, norms_after: bool) -> str | None:
    """The plan's name of a GGUF tensor, itself if unknown (so that it shows up as left over); None for a buffer.

    `norms_after`: layers have norms after their blocks too, which changes what ffn_norm is.
    """
    if tensor in _GGUF_BUFFERS:
        return None
    match = _GGUF_NAME.fullmatch(tensor)
    if match is None:
        return tensor
    layer, part = match["layer"], match["part"]
    suffix = ".bias" if match["kind"] == "bias" else ""
    if layer is None:
        return _GGUF_WHOLE[part] + suffix if part in _GGUF_WHOLE else tensor
    names = _GGUF_IN_LAYER | _GGUF_AFTER_NORMS if norms_after else _GGUF_IN_LAYER
    return f"layers.{int(layer)}.{names[part]}{suffix}" if part in names else tensor


def plan_names(tensors: list[str], kind: Literal["hf", "gguf"]) -> list[tuple[str, str]]:
    """(plan's name, tensor) of every tensor that may be a weight of a text plan."""
    if kind == "hf":
        pairs = [(hf_name(tensor), tensor) for tensor in tensors]
    else:
        norms_after = any(tensor.endswith(".post_ffw_norm.weight") for tensor in tensors)
        pairs = [(gguf_name(tensor, norms_after=norms_after), tensor) for tensor in tensors]
    return [(name, tensor) for name, tensor in pairs if name is not None]
