"""Weights of models for embeddings: heads that are not wanted, old names, dense modules in directories of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from ramet.errors import CheckpointError
from ramet.models import build_plan
from ramet.models.encoder import read_encoder_config
from ramet.models.pooling import read_pooling
from ramet.weights.modules import with_modules
from ramet.weights.names import hf_name
from ramet.weights.recipe import bind_weights
from ramet.weights.sources import open_checkpoint

CHECKPOINTS = Path(__file__).parents[2] / "reference" / "embeddings"


def bind(folder: Path) -> set[str]:
    checkpoint = open_checkpoint(str(folder))
    pooling = read_pooling(checkpoint, is_embedding=False)
    assert pooling is not None
    checkpoint = with_modules(checkpoint, [dense.name for dense in pooling.dense])
    cfg = read_encoder_config(checkpoint.config)
    weights = bind_weights(build_plan(cfg, pooling), checkpoint, cfg)
    return set(weights)


@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        ("bert.encoder.layer.0.attention.self.query.weight", "encoder.layer.0.attention.self.query"),
        ("roberta.embeddings.LayerNorm.bias", "embeddings.LayerNorm.bias"),
        ("bert.embeddings.LayerNorm.gamma", "embeddings.LayerNorm"),
        ("embeddings.LayerNorm.beta", "embeddings.LayerNorm.bias"),
        ("bert.embeddings.position_ids", None),
    ],
)
def test_names(tensor: str, name: str | None) -> None:
    assert hf_name(tensor) == name


def test_heads_are_left_and_anything_else_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    shutil.copytree(CHECKPOINTS / "bert", folder)
    path = folder / "model.safetensors"
    infos = open_checkpoint(str(folder)).tensors
    tensors = {name: np.zeros(info.shape, np.float32) for name, info in infos.items()}
    assert any(name.startswith("pooler.") for name in tensors)
    assert not any(name.startswith("pooler") for name in bind(folder))
    for head in ("cls.predictions.bias", "lm_head.bias"):
        safetensors.numpy.save_file({**tensors, head: np.zeros(3, np.float32)}, path)
        bind(folder)
    safetensors.numpy.save_file({**tensors, "encoder.extra.weight": np.zeros(3, np.float32)}, path)
    with pytest.raises(CheckpointError, match=r"1 left over: encoder\.extra\.weight"):
        bind(folder)


def test_dense_modules_bring_their_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "dense"
    shutil.copytree(CHECKPOINTS / "bert-dense", folder)
    assert {"2_Dense.linear", "2_Dense.linear.bias"} <= bind(folder)
    checkpoint = open_checkpoint(str(folder))
    joined = with_modules(checkpoint, ["2_Dense"])
    assert joined.total_bytes == checkpoint.total_bytes + 4 * (24 * 48 + 24)
    assert joined.content_id() == checkpoint.content_id()
    assert with_modules(checkpoint, []) is checkpoint
    config = json.loads((folder / "2_Dense" / "config.json").read_text())
    (folder / "2_Dense" / "config.json").write_text(json.dumps({**config, "out_features": 25}))
    with pytest.raises(CheckpointError, match=r"2_Dense\.linear"):
        bind(folder)
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"2_Dense/model\.safetensors is not there"):
        bind(folder)
