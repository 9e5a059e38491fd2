"""Names, row orders, joined tensors, and the proof that a checkpoint and a plan fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from ramet.errors import CheckpointError
from ramet.models import ModelConfig, build_plan
from ramet.plan.plan import Plan
from ramet.weights.checkpoint import TensorData, TensorInfo
from ramet.weights.formats import dequantize, quantize
from ramet.weights.recipe import bind_weights, read_vector

HF_CONFIG: Mapping[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 48,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
GEMMA_CONFIG: Mapping[str, Any] = {**HF_CONFIG, "model_type": "gemma3_text", "head_dim": 8, "tie_word_embeddings": True}

Arrays = dict[str, NDArray[np.float32]]


class FakeCheckpoint:
    """Tensors in memory."""

    def __init__(
        self, kind: Literal["hf", "gguf"], config: Mapping[str, Any], arrays: Arrays, format: str = "f32"
    ) -> None:
        self.kind = kind
        self.path = Path("somewhere")
        self.config = config
        self.generation_config: Mapping[str, Any] = {}
        self._arrays = arrays
        self._format = format
        self.tensors = MappingProxyType({name: TensorInfo(format, array.shape) for name, array in arrays.items()})
        self.total_bytes = sum(array.nbytes for array in arrays.values())

    def read(self, name: str) -> TensorData:
        array = self._arrays[name]
        return TensorData(self._format, array.shape, quantize(array, self._format))

    def file(self, name: str) -> Path | None:
        return None

    def content_id(self) -> str:
        return "0" * 16

    def release(self) -> None:
        pass


def _model(config: Mapping[str, Any] = HF_CONFIG) -> tuple[ModelConfig, Plan, Arrays]:
    """Config, plan and a random array per weight of the plan, by the plan's names."""
    cfg = ModelConfig.from_hf(config)
    plan = build_plan(cfg)
    rng = np.random.default_rng(4)
    return cfg, plan, {spec.name: rng.standard_normal(spec.shape).astype(np.float32) for spec in plan.weights}


def _hf_names(arrays: Arrays, prefix: str = "model.") -> Arrays:
    """As in a checkpoint: only the head is outside of the model."""
    return {
        ("" if name == "lm_head" else prefix) + name + ("" if name.endswith(".bias") else ".weight"): array
        for name, array in arrays.items()
    }


_GGUF = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_GEMMA = _GGUF | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _gguf_names(arrays: Arrays, table: Mapping[str, str] = _GGUF) -> Arrays:
    renamed: Arrays = {}
    for name, array in arrays.items():
        kind = "bias" if name.endswith(".bias") else "weight"
        plain = name.removesuffix(".bias")
        layer, _, inner = plain.removeprefix("layers.").partition(".")
        renamed[f"blk.{layer}.{table[inner]}.{kind}" if plain.startswith("layers.") else f"{table[plain]}.{kind}"] = (
            array
        )
    return renamed


def _permuted(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """What conversion to GGUF does to query and key projections of llama."""
    halves: NDArray[np.float32] = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    pairs: NDArray[np.float32] = halves.swapaxes(1, 2).reshape(rows.shape)
    return pairs


def _assert_bound(plan: Plan, checkpoint: FakeCheckpoint, cfg: ModelConfig, expected: Arrays) -> None:
    weights = bind_weights(plan, checkpoint, cfg)
    assert list(weights) == [spec.name for spec in plan.weights]
    for spec in plan.weights:
        assert weights[spec.name].shape == spec.shape
        assert np.array_equal(dequantize(weights[spec.name]), expected[spec.name]), spec.name


@pytest.mark.parametrize("prefix", ["model.", "", "language_model.model.", "model.language_model."])
def test_hf_names_with_every_prefix(prefix: str) -> None:
    cfg, plan, arrays = _model()
    _assert_bound(plan, FakeCheckpoint("hf", HF_CONFIG, _hf_names(arrays, prefix)), cfg, arrays)


def test_gguf_llama_rows_are_put_back() -> None:
    config = {**HF_CONFIG, "attention_bias": True}
    cfg, plan, arrays = _model(config)
    stored = {}
    for name, array in arrays.items():
        leaf = name.removesuffix(".bias").rpartition(".")[2]
        heads = {"q_proj": cfg.num_heads, "k_proj": cfg.num_kv_heads}.get(leaf)
        stored[name] = array if heads is None else _permuted(array, heads)
    assert not np.array_equal(stored["layers.0.self_attn.k_proj"], arrays["layers.0.self_attn.k_proj"])
    checkpoint = FakeCheckpoint("gguf", {"general.architecture": "llama"}, _gguf_names(stored))
    _assert_bound(plan, checkpoint, cfg, arrays)
    orders = [weight.row_order for weight in bind_weights(plan, checkpoint, cfg).values()]
    assert sum(order is not None for order in orders) == 2 * 4  # q and k with their biases, twice
    assert all(order is None or order.dtype == np.int32 for order in orders)


def test_gguf_of_other_architectures_keeps_rows() -> None:
    cfg, plan, arrays = _model({**HF_CONFIG, "model_type": "qwen3", "head_dim": 8})
    _assert_bound(plan, FakeCheckpoint("gguf", {"general.architecture": "qwen3"}, _gguf_names(arrays)), cfg, arrays)


def test_gguf_gemma_has_norms_after_blocks() -> None:
    cfg, plan, arrays = _model(GEMMA_CONFIG)
    stored = _gguf_names(arrays, _GGUF_GEMMA)
    _assert_bound(plan, FakeCheckpoint("gguf", {"general.architecture": "gemma3"}, stored), cfg, arrays)


def test_multimodal_checkpoints_give_their_text_part() -> None:
    cfg, plan, arrays = _model(GEMMA_CONFIG)
    stored = _hf_names(arrays, "language_model.model.")
    stored["vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight"] = np.zeros((2, 2), np.float32)
    stored["multi_modal_projector.mm_input_projection_weight"] = np.zeros((2, 2), np.float32)
    stored["language_model.lm_head.weight"] = arrays["embed_tokens"]
    _assert_bound(plan, FakeCheckpoint("hf", GEMMA_CONFIG, stored), cfg, arrays)


@pytest.mark.parametrize("format", ["f32", "q8_0"])
def test_joined_projections_are_cut_into_rows(format: str) -> None:
    cfg, plan, arrays = _model()
    stored = dict(arrays)
    for layer in range(2):
        attn, mlp = f"layers.{layer}.self_attn.", f"layers.{layer}.mlp."
        stored[attn + "qkv_proj"] = np.concatenate([stored.pop(f"{attn}{part}_proj") for part in "qkv"])
        stored[mlp + "gate_up_proj"] = np.concatenate([stored.pop(f"{mlp}{part}_proj") for part in ("gate", "up")])
    checkpoint = FakeCheckpoint("hf", HF_CONFIG, _hf_names(stored), format)
    if format == "f32":
        _assert_bound(plan, checkpoint, cfg, arrays)
    else:
        weights = bind_weights(plan, checkpoint, cfg)
        key = "layers.1.self_attn.k_proj"
        assert weights[key].data.tobytes() == quantize(arrays[key], "q8_0").tobytes()


def test_buffers_are_no_weights() -> None:
    cfg, plan, arrays = _model()
    stored = _hf_names(arrays)
    stored["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
    _assert_bound(plan, FakeCheckpoint("hf", HF_CONFIG, stored), cfg, arrays)
    gguf = _gguf_names({name: array for name, array in arrays.items() if "_proj" not in name})
    gguf["rope_freqs.weight"] = np.array([1, 2], np.float32)
    checkpoint = FakeCheckpoint("gguf", {"general.architecture": "llama"}, gguf)
    assert read_vector(checkpoint, "rope_freqs.weight") == [1.0, 2.0]
    with pytest.raises(CheckpointError) as caught:
        bind_weights(plan, checkpoint, cfg)
    assert "left over" not in caught.value.message


def test_a_head_beside_tied_embeddings_needs_the_config_to_say_tied() -> None:
    tied = {**HF_CONFIG, "tie_word_embeddings": True}
    cfg, plan, arrays = _model(tied)
    stored = _hf_names(arrays)
    stored["lm_head.weight"] = arrays["embed_tokens"]
    _assert_bound(plan, FakeCheckpoint("hf", tied, stored), cfg, arrays)
    untied, plan, _ = _model()
    with pytest.raises(CheckpointError, match="1 missing: lm_head"):
        bind_weights(plan, FakeCheckpoint("hf", HF_CONFIG, _hf_names(arrays)), untied)


def test_missing_left_over_and_misshapen_are_listed_together() -> None:
    cfg, plan, arrays = _model()
    stored = _hf_names(arrays)
    del stored["model.norm.weight"]
    stored["model.layers.2.mlp.up_proj.weight"] = np.zeros((64, 32), np.float32)
    stored["model.embed_tokens.weight"] = np.zeros((47, 32), np.float32)
    with pytest.raises(CheckpointError) as caught:
        bind_weights(plan, FakeCheckpoint("hf", HF_CONFIG, stored), cfg)
    assert caught.value.message == (
        "somewhere: the weights do not fit llama: 1 missing: norm; 1 left over: model.layers.2.mlp.up_proj.weight; "
        "1 of the wrong shape: model.embed_tokens.weight is [47, 32], not [48, 32]"
    )


def test_long_lists_are_cut_to_ten_and_a_count() -> None:
    cfg, plan, _ = _model()
    with pytest.raises(CheckpointError, match=rf"{len(plan.weights)} missing: .* and {len(plan.weights) - 10} more"):
        bind_weights(plan, FakeCheckpoint("hf", HF_CONFIG, {}), cfg)


def test_two_tensors_of_one_name_are_refused() -> None:
    cfg, plan, arrays = _model()
    stored = _hf_names(arrays)
    stored["norm.weight"] = arrays["norm"]
    with pytest.raises(CheckpointError, match=r"both model\.norm\.weight and norm\.weight would be norm"):
        bind_weights(plan, FakeCheckpoint("hf", HF_CONFIG, stored), cfg)


def test_unread_types_are_named_with_their_tensor() -> None:
    cfg, plan, arrays = _model()
    checkpoint = FakeCheckpoint("hf", HF_CONFIG, _hf_names(arrays))
    infos = {**checkpoint.tensors, "model.norm.weight": TensorInfo("f64", (32,))}
    checkpoint.tensors = MappingProxyType(infos)
    read = checkpoint.read

    def read_f64(name: str) -> TensorData:
        return read(name) if name != "model.norm.weight" else TensorData("f64", (32,), np.zeros(256, np.uint8))

    checkpoint.read = read_f64  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: weight format f64 is not supported"):
        bind_weights(plan, checkpoint, cfg)


@pytest.mark.parametrize("nested", [False, True])
def test_quantised_hf_checkpoints_are_refused_by_name(nested: bool) -> None:
    cfg, plan, arrays = _model()
    quantization = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    config = {**HF_CONFIG, "text_config": quantization} if nested else {**HF_CONFIG, **quantization}
    with pytest.raises(CheckpointError, match="is quantised by awq"):
        bind_weights(plan, FakeCheckpoint("hf", config, _hf_names(arrays)), cfg)
