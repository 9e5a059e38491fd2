"""What modules.json, the config and flags say of pooling: the forms there are, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.errors import CheckpointError
from ramet.models.pooling import Dense, Pooling, read_pooling
from ramet.weights.checkpoint import Checkpoint
from ramet.weights.dummy import DummyCheckpoint
from ramet.weights.local import GgufCheckpoint

TRANSFORMER, POOLING, NORMALIZE = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False, "word_embedding_dimension": 8}


def checkpoint(folder: Path, config: dict[str, Any], **files: Any) -> Checkpoint:
    """`files`: contents by path with dots for slashes and without .json."""
    for name, content in {"config": config, **files}.items():
        path = folder / (name.replace(".", "/") + ".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return DummyCheckpoint(folder, 0)


def steps(*modules: tuple[str, str], prefix: str = "sentence_transformers.models.") -> list[dict[str, Any]]:
    return [{"idx": i, "path": path, "type": prefix + kind} for i, (path, kind) in enumerate(modules)]


def read(found: Checkpoint, **flags: Any) -> Pooling | None:
    return read_pooling(found, **{"is_embedding": False, **flags})


BERT, LLAMA = {"model_type": "bert"}, {"model_type": "llama"}


def test_decoders_generate_unless_told_otherwise(tmp_path: Path) -> None:
    assert read(checkpoint(tmp_path, LLAMA)) is None
    assert read(checkpoint(tmp_path, LLAMA), is_embedding=True) == Pooling(method="last", normalize=True)
    assert read(checkpoint(tmp_path, LLAMA), is_embedding=True, method="mean") == Pooling(method="mean", normalize=True)
    found = checkpoint(tmp_path, LLAMA, modules=steps(TRANSFORMER, POOLING), **{"1_Pooling.config": MEAN})
    assert read(found) == Pooling(method="mean")


def test_encoders_never_generate(tmp_path: Path) -> None:
    for kind in ("bert", "roberta", "xlm-roberta", "xlm_roberta"):
        assert read(checkpoint(tmp_path, {"model_type": kind})) == Pooling(method="cls", normalize=True)


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        (MEAN, "mean"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_cls_token": False, "include_prompt": True}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
def test_methods(tmp_path: Path, config: dict[str, Any], method: Any) -> None:
    modules = steps(TRANSFORMER, POOLING, NORMALIZE)
    found = checkpoint(tmp_path, BERT, modules=modules, **{"1_Pooling.config": config})
    assert read(found) == Pooling(method=method, normalize=True)
    assert read(found, method="cls") == Pooling(method="cls", normalize=True)


def test_dense_layers_stand_between(tmp_path: Path) -> None:
    found = checkpoint(
        tmp_path,
        BERT,
        modules=steps(TRANSFORMER, POOLING, ("2_Dense", "Dense"), ("3_Dense", "Dense"), ("4_Normalize", "Normalize")),
        sentence_bert_config={"max_seq_length": 128},
        **{
            "1_Pooling.config": MEAN,
            "2_Dense.config": {"in_features": 8, "out_features": 4},
            "3_Dense.config": {
                "in_features": 4,
                "out_features": 2,
                "bias": False,
                "activation_function": "torch.nn.modules.linear.Identity",
            },
        },
    )
    dense = (Dense("2_Dense", 4, True, "tanh"), Dense("3_Dense", 2, False, ""))
    assert read(found) == Pooling(method="mean", normalize=True, dense=dense, max_tokens=128)


def test_matryoshka_is_said_by_the_config_or_the_user(tmp_path: Path) -> None:
    for config, flag, cuts, dimensions in (
        ({}, False, False, ()),
        ({}, True, True, ()),
        ({"is_matryoshka": True}, False, True, ()),
        ({"matryoshka_dimensions": [32, 64]}, False, True, (32, 64)),
    ):
        found = read(checkpoint(tmp_path, {**BERT, **config}), matryoshka=flag)
        assert found == Pooling(method="cls", normalize=True, matryoshka=cuts, dimensions=dimensions)


@pytest.mark.parametrize(
    ("config", "labels", "activation"),
    [
        ({"id2label": {"0": "LABEL_0"}}, ("LABEL_0",), ""),
        ({}, ("LABEL_0", "LABEL_1"), ""),
        ({"num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2"), ""),
        ({"id2label": {"0": "no", "1": "yes"}}, ("no", "yes"), ""),
        (
            {"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}},
            ("LABEL_0",),
            "sigmoid",
        ),
        ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.Identity"}, ("LABEL_0",), ""),
    ],
)
def test_classes(tmp_path: Path, config: dict[str, Any], labels: tuple[str, ...], activation: str) -> None:
    for model_type, method in (("bert", "cls"), ("qwen3", "last")):
        heads = ["SomeForSequenceClassification"]
        found = checkpoint(tmp_path, {"model_type": model_type, "architectures": heads, **config})
        assert read(found) == Pooling(method=method, labels=labels, activation=activation)  # type: ignore[arg-type]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "broken": ({"modules": "[1"}, "cannot be read as JSON"),
    "no list": ({"modules": {}}, "list of modules"),
    "no pooling": ({"modules": steps(TRANSFORMER)}, "has no Pooling"),
    "unknown": ({"modules": steps(TRANSFORMER, POOLING, ("2_CNN", "CNN"))}, "'CNN'"),
    "twice": ({"modules": steps(TRANSFORMER, POOLING, POOLING)}, "'Pooling' in this place"),
    "dense after norm": ({"modules": steps(TRANSFORMER, POOLING, NORMALIZE, ("3_Dense", "Dense"))}, "'Dense' in this"),
    "escaping": ({"modules": steps(TRANSFORMER, ("../x", "Pooling"))}, "'../x' is not a directory's name"),
    "absolute": ({"modules": steps(TRANSFORMER, ("/etc", "Pooling"))}, "'/etc' is not a directory's name"),
    "missing": ({"modules": steps(TRANSFORMER, ("9_Pooling", "Pooling"))}, "9_Pooling/config.json, which is not there"),
    "two methods": ({"1_Pooling.config": {**MEAN, "pooling_mode_cls_token": True}}, "must set one of"),
    "no method": ({"1_Pooling.config": {}}, "not none"),
    "max": ({"1_Pooling.config": {"pooling_mode_max_tokens": True}}, "pooling_mode_max_tokens"),
    "weighted": ({"1_Pooling.config": {"pooling_mode": "weightedmean"}}, "weightedmean"),
    "object": ({"1_Pooling.config": []}, "JSON object"),
    "activation": (
        {
            "modules": steps(TRANSFORMER, POOLING, ("2_Dense", "Dense")),
            "2_Dense.config": {"out_features": 2, "activation_function": "torch.nn.Softplus"},
        },
        "activation_function",
    ),
    "length": ({"sentence_bert_config": {"max_seq_length": "long"}}, "max_seq_length"),
    "classes": ({"config": {**BERT, "architectures": ["XForSequenceClassification"], "num_labels": 0}}, "num_labels"),
    "classifier's activation": (
        {
            "config": {
                **BERT,
                "architectures": ["XForSequenceClassification"],
                "sbert_ce_default_activation_function": "a.Softplus",
            }
        },
        "Softplus",
    ),
}


@pytest.mark.parametrize(("files", "complaint"), BAD.values(), ids=BAD.keys())
def test_what_is_refused(tmp_path: Path, files: dict[str, Any], complaint: str) -> None:
    given = {"modules": steps(TRANSFORMER, POOLING), "1_Pooling.config": MEAN, **files}
    config = given.pop("config", BERT)
    with pytest.raises(CheckpointError, match=complaint):
        read(checkpoint(tmp_path, config, **given))


def test_a_gguf_file_embeds_when_told() -> None:
    found = GgufCheckpoint(Path(__file__).parents[2] / "reference" / "checkpoints" / "qwen3-f16.gguf")
    assert read(found) is None
    assert read(found, is_embedding=True) == Pooling(method="last", normalize=True)
    assert read(found, is_embedding=True, method="mean", matryoshka=True) == Pooling(
        method="mean", normalize=True, matryoshka=True
    )
