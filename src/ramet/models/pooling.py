"""How hidden states become one vector per prompt: what sentence-transformers' files, the config and flags say.

`modules.json` lists the steps behind the transformer: `1_Pooling/config.json`, dense layers with weights of their own,
normalisation. A checkpoint for sequence classification has a head of classes instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ramet.errors import CheckpointError
from ramet.models.encoder import ENCODERS, model_type_of
from ramet.models.keys import Keys
from ramet.weights.checkpoint import Checkpoint

Method = Literal["cls", "last", "mean"]

MODULES = "modules.json"

#: Flags of 1_Pooling/config.json → method. At most one may be set: joined vectors are not supported.
_METHODS: Mapping[str, Method] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}
#: `pooling_mode`, as later versions write it → method; and GGUF's number.
_NAMED_METHODS: Mapping[str, Method] = {"cls": "cls", "lasttoken": "last", "mean": "mean"}
_GGUF_METHODS: Mapping[int, Method] = {1: "mean", 2: "cls", 3: "last"}

_ACTIVATIONS = {"Identity": "", "Tanh": "tanh", "Sigmoid": "sigmoid", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer behind the pooling, with weights `NAME.linear`."""

    name: str  # its directory
    out: int
    bias: bool
    activation: str  # a function of `plan.ops`, or "" for none


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """The steps from hidden states to a prompt's vector; with `labels` the vector is their logits."""

    method: Method
    normalize: bool = False
    dense: tuple[Dense, ...] = ()
    labels: tuple[str, ...] = ()
    activation: str = ""  # of the logits, where the checkpoint says so
    matryoshka: bool = False  # vectors may be cut to their first numbers
    dimensions: tuple[int, ...] = ()  # and then only to so many; empty: to any
    max_tokens: int | None = None  # of a prompt, where the checkpoint says so


def read_pooling(
    checkpoint: Checkpoint, *, is_embedding: bool, method: Method | None = None, matryoshka: bool = False
) -> Pooling | None:
    """What the model gives for a prompt, or None for one that generates.

    `is_embedding`, `method`, `matryoshka`: the user's flags. A decoder is taken for a model of embeddings if they, or a
    modules.json beside it, say so.

    Raises:
        CheckpointError: a step that is not supported.
    """
    config = checkpoint.config
    if checkpoint.kind == "gguf":
        if not is_embedding:
            return None
        told = config.get(f"{config.get('general.architecture')}.pooling_type")
        return Pooling(method=method or _GGUF_METHODS.get(told, "last"), normalize=True, matryoshka=matryoshka)  # type: ignore[arg-type]
    encoder = model_type_of(config) in ENCODERS
    labels = _labels(config)
    if labels:
        activation = _class_activation(config)
        return Pooling(method="cls" if encoder else "last", labels=labels, activation=activation)
    modules = checkpoint.file(MODULES)
    if not encoder and not is_embedding and modules is None:
        return None
    keys = Keys(config, "config.json")
    dimensions = keys.ids("matryoshka_dimensions")
    cuts = matryoshka or bool(dimensions) or keys.flag("is_matryoshka", False)
    if modules is None:
        return Pooling(
            method=method or ("cls" if encoder else "last"), normalize=True, matryoshka=cuts, dimensions=dimensions
        )
    found, normalize, dense = _steps(checkpoint, modules)
    return Pooling(
        method=method or found,
        normalize=normalize,
        dense=dense,
        matryoshka=cuts,
        dimensions=dimensions,
        max_tokens=_max_tokens(checkpoint),
    )


def _steps(checkpoint: Checkpoint, modules: Path) -> tuple[Method, bool, tuple[Dense, ...]]:
    """Pooling method, whether normalised, dense layers: the modules in the one order that is supported."""
    method: Method | None = None
    normalize, dense = False, []
    for step in _list(modules):
        kind, path = str(step.get("type", "")).rpartition(".")[2], str(step.get("path", ""))
        if kind == "Transformer" and method is None:
            continue
        if kind == "Pooling" and method is None:
            method = _method(checkpoint, path)
        elif kind == "Dense" and method is not None and not normalize:
            dense.append(_dense(checkpoint, path))
        elif kind == "Normalize" and method is not None:
            normalize = True
        else:
            raise CheckpointError(f"{modules}: module {kind!r} in this place is not supported", field=MODULES)
    if method is None:
        raise CheckpointError(f"{modules}: has no Pooling module", field=MODULES)
    return method, normalize, tuple(dense)


def _method(checkpoint: Checkpoint, path: str) -> Method:
    file = _module_file(checkpoint, path, "config.json")
    told = _object(file)
    named = told.get("pooling_mode")
    if named is not None:
        names = [named] if isinstance(named, str) else named
        if isinstance(names, list) and len(names) == 1 and names[0] in _NAMED_METHODS:
            return _NAMED_METHODS[names[0]]
        raise CheckpointError(f"{file}: pooling_mode {named!r} is not one of {', '.join(_NAMED_METHODS)}")
    modes = [name for name, value in told.items() if name.startswith("pooling_mode_") and value]
    if len(modes) != 1 or modes[0] not in _METHODS:
        raise CheckpointError(f"{file}: must set one of {', '.join(_METHODS)}, not {', '.join(modes) or 'none'}")
    return _METHODS[modes[0]]


def _dense(checkpoint: Checkpoint, path: str) -> Dense:
    file = _module_file(checkpoint, path, "config.json")
    keys = Keys(_object(file), str(file))
    function = keys.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if function not in _ACTIVATIONS:
        raise keys.wrong("activation_function", f"one of {', '.join(_ACTIVATIONS)}")
    return Dense(path, keys.integer("out_features"), keys.flag("bias", True), _ACTIVATIONS[function])


def _max_tokens(checkpoint: Checkpoint) -> int | None:
    file = checkpoint.file("sentence_bert_config.json")
    if file is None:
        return None
    keys = Keys(_object(file), str(file))
    return max(keys.integer("max_seq_length"), 1) if "max_seq_length" in keys else None


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the classes of a checkpoint for sequence classification; of others none."""
    kinds = config.get("architectures")
    if not isinstance(kinds, Sequence) or not any(str(kind).endswith("ForSequenceClassification") for kind in kinds):
        return ()
    named = config.get("id2label")
    keys = Keys(config, "config.json")
    if isinstance(named, Mapping):
        count = len(named)
    else:
        named, count = {}, keys.integer("num_labels", 2)  # config.json leaves the two default classes out
    if not 1 <= count <= 1 << 16:
        raise keys.wrong("num_labels", "between 1 and 65536")
    return tuple(str(named.get(str(i), f"LABEL_{i}")) for i in range(count))


def _class_activation(config: Mapping[str, Any]) -> str:
    """What a cross-encoder's checkpoint wants done to its logits; nothing where it is silent."""
    trained = config.get("sentence_transformers")
    told = trained.get("activation_fn") if isinstance(trained, Mapping) else None
    told = told or config.get("sbert_ce_default_activation_function")
    if told is None:
        return ""
    name = str(told).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise CheckpointError(
            f"config.json: activation {told!r} is not one of {', '.join(_ACTIVATIONS)}", field="sentence_transformers"
        )
    return _ACTIVATIONS[name]


def _module_file(checkpoint: Checkpoint, path: str, name: str) -> Path:
    if not path or Path(path).name != path:  # a plain directory beside the model: no other file may be reached
        raise CheckpointError(f"{MODULES}: path {path!r} is not a directory's name", field=MODULES)
    file = checkpoint.file(f"{path}/{name}")
    if file is None:
        raise CheckpointError(f"{checkpoint.path}: {MODULES} names {path}/{name}, which is not there", field=MODULES)
    return file


def _list(path: Path) -> list[Mapping[str, Any]]:
    content = _json(path)
    if not isinstance(content, list) or not all(isinstance(item, Mapping) for item in content):
        raise CheckpointError(f"{path}: must hold a list of modules", field=MODULES)
    return content


def _object(path: Path) -> Mapping[str, Any]:
    content = _json(path)
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path}: must hold a JSON object")
    return content


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
