"""From a checkpoint's tensors to a plan's weights: names, rows, and proof that nothing is missing or left over."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ramet.errors import CheckpointError
from ramet.models.config import ModelConfig
from ramet.models.encoder import EncoderConfig
from ramet.plan.plan import Plan, WeightSpec
from ramet.weights.checkpoint import Checkpoint
from ramet.weights.dummy import DummyCheckpoint
from ramet.weights.formats import dequantize, get_format
from ramet.weights.names import plan_names
from ramet.weights.tensor import Weight

# Weights that some checkpoints store joined, rows of one after rows of the other.
_FUSED: Final = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_FUSED_IN: Final = {part: (whole, parts) for whole, parts in _FUSED.items() for part in parts}
_HEADS: Final = ("lm_head", "cls.", "pooler.")
_LISTED = 10


def bind_weights(plan: Plan, checkpoint: Checkpoint, cfg: ModelConfig | EncoderConfig) -> dict[str, Weight]:
    """The plan's weights by name, in the plan's order, as views of the checkpoint's memory maps.

    Raises `CheckpointError` listing what is missing, left over or of another shape than the plan asks for, or naming a
    tensor whose format is not supported.
    """
    _refuse_quantized(checkpoint)
    if isinstance(checkpoint, DummyCheckpoint):
        return {spec.name: checkpoint.weight(spec) for spec in plan.weights}

    wanted = {spec.name: spec for spec in plan.weights}
    stored = _stored_names(checkpoint)
    permuted = checkpoint.kind == "gguf" and checkpoint.config.get("general.architecture") == "llama"
    weights: dict[str, Weight] = {}
    used: set[str] = set()
    missing: list[str] = []
    misshapen: list[str] = []
    for name, spec in wanted.items():
        found = _locate(spec, wanted, stored)
        if found is None:
            missing.append(name)
            continue
        source, first_row, shape = found
        used.add(source)
        tensor = stored[source]
        actual = checkpoint.tensors[tensor].shape
        if actual != shape:
            misshapen.append(f"{tensor} is {list(actual)}, not {list(shape)}")
            continue
        row_order = _interleaved_rows(spec, cfg) if permuted else None
        weights[name] = _view(checkpoint, tensor, spec, first_row, row_order)

    left_over = [tensor for source, tensor in stored.items() if source not in used]
    if cfg.tie_word_embeddings and "lm_head" not in wanted:  # a copy of the embeddings
        left_over = [tensor for tensor in left_over if tensor != stored.get("lm_head")]
    if plan.embedding_size:
        left_over = [tensor for source, tensor in stored.items() if tensor in left_over and not _is_head(source)]
    complaints = (("missing", missing), ("left over", left_over), ("of the wrong shape", misshapen))
    found_bad = [f"{len(names)} {what}: {_listing(names)}" for what, names in complaints if names]
    if found_bad:
        raise CheckpointError(f"{checkpoint.path}: the weights do not fit {cfg.model_type}: {'; '.join(found_bad)}")
    return weights


def read_vector(checkpoint: Checkpoint, name: str) -> list[float]:
    """A small tensor as floats: what `ModelConfig.from_gguf` needs of rope_freqs.weight."""
    format, shape, data = checkpoint.read(name)
    return [float(value) for value in dequantize(Weight(name, format, shape, data)).reshape(-1)]


def _is_head(source: str) -> bool:
    """Whether a tensor belongs to what stands behind the hidden states, which a plan for embeddings may leave out."""
    return source.startswith(_HEADS)


def _refuse_quantized(checkpoint: Checkpoint) -> None:
    for config in (checkpoint.config, checkpoint.config.get("text_config") or {}):
        found = config.get("quantization_config") if checkpoint.kind == "hf" else None
        if found:
            method = found.get("quant_method", "an unnamed method") if isinstance(found, dict) else found
            raise CheckpointError(
                f"{checkpoint.path}: is quantised by {method} (quantization_config), which ramet does not read; "
                "take a GGUF file of the model, or the unquantised checkpoint with --quantization",
                field="quantization_config",
            )


def _stored_names(checkpoint: Checkpoint) -> dict[str, str]:
    """Plan name -> tensor, without what is known to be no weight of a text plan."""
    stored: dict[str, str] = {}
    for name, tensor in plan_names(list(checkpoint.tensors), checkpoint.kind):
        if name in stored:
            raise CheckpointError(f"{checkpoint.path}: both {stored[name]} and {tensor} would be {name}")
        stored[name] = tensor
    return stored


def _locate(
    spec: WeightSpec, wanted: dict[str, WeightSpec], stored: dict[str, str]
) -> tuple[str, int, tuple[int, ...]] | None:
    """Where a weight is: a name in `stored`, its first row there, and the shape that the whole tensor must have."""
    if spec.name in stored:
        return spec.name, 0, spec.shape
    path, _, leaf = spec.name.removesuffix(".bias").rpartition(".")
    bias = ".bias" if spec.name.endswith(".bias") else ""
    if leaf not in _FUSED_IN:
        return None
    whole, parts = _FUSED_IN[leaf]
    source = f"{path}.{whole}{bias}"
    siblings = [wanted.get(f"{path}.{part}{bias}") for part in parts]
    if source not in stored or None in siblings:
        return None
    rows = [sibling.shape[0] for sibling in siblings if sibling is not None]
    return source, sum(rows[: parts.index(leaf)]), (sum(rows), *spec.shape[1:])


def _view(
    checkpoint: Checkpoint, tensor: str, spec: WeightSpec, first_row: int, row_order: NDArray[np.int32] | None
) -> Weight:
    format, shape, data = checkpoint.read(tensor)
    try:
        fmt = get_format(format)
        if shape != spec.shape:  # rows of a joined tensor
            row_bytes = fmt.row_bytes(shape[-1] if len(shape) > 1 else 1)
            data = data[first_row * row_bytes : (first_row + spec.shape[0]) * row_bytes]
    except CheckpointError as error:
        raise CheckpointError(f"{checkpoint.path}: {tensor}: {error.message}") from error
    return Weight(spec.name, format, spec.shape, data, row_order)


def _interleaved_rows(spec: WeightSpec, cfg: ModelConfig | EncoderConfig) -> NDArray[np.int32] | None:
    """Row order of a query or key projection in a GGUF file of architecture llama; None for other weights.

    There the two halves of each head are interleaved, (0, d/2, 1, d/2 + 1, …), to suit a rope over neighbours. Our rope
    is over halves, so row (head, half, i) of the weight is row (head, i, half) of the file.
    """
    leaf = spec.name.removesuffix(".bias").rpartition(".")[2]
    heads = {"q_proj": cfg.num_heads, "k_proj": cfg.num_kv_heads}.get(leaf)
    return None if heads is None else _halves_from_pairs(heads, spec.shape[0])


@lru_cache(maxsize=8)
def _halves_from_pairs(heads: int, rows: int) -> NDArray[np.int32]:
    order: NDArray[np.int32] = np.arange(rows, dtype=np.int32).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    order.flags.writeable = False  # shared by all layers
    return order


def _listing(names: Iterable[str]) -> str:
    shown = list(names)
    rest = len(shown) - _LISTED
    return ", ".join(shown[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")
