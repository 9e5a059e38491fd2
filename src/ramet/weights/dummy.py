"""Random weights for a config: what `--load-format dummy` loads, for tests and benchmarks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from ramet.errors import CheckpointError
from ramet.plan.plan import WeightSpec
from ramet.weights.checkpoint import TensorData, TensorInfo
from ramet.weights.formats import get_format, quantize
from ramet.weights.local import CONFIG_NAME, digest, read_generation_config, read_json, sidecar
from ramet.weights.tensor import Weight

_CONFIG_DTYPES: Final = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class DummyCheckpoint:
    """A config without tensors: the plan says which exist; `weight` makes each, the same for the same seed and name."""

    kind: Literal["hf"] = "hf"

    def __init__(self, directory: Path, seed: int, format: str | None = None) -> None:
        """`format`: a row of `FORMATS` that ramet can quantise to; None: the config's dtype, or f32."""
        self.path = directory
        self.config = read_json(directory / CONFIG_NAME)
        self.generation_config = read_generation_config(directory)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType({})
        self.total_bytes = 0  # of what `weight` has made
        self._seed = seed
        self._format = get_format(format or _config_format(self.config))

    def weight(self, spec: WeightSpec) -> Weight:
        """Uniform values that keep activations near one: matrices of variance 1 / in, norms around 1, small biases.

        In a quantised format, vectors are f32 and matrices whose rows are not whole blocks f16.
        """
        rng = np.random.default_rng([self._seed, zlib.crc32(spec.name.encode())])
        values = rng.random(spec.shape, np.float32) * np.float32(2) - np.float32(1)
        if len(spec.shape) > 1:
            values *= np.float32((3 / spec.shape[-1]) ** 0.5)
        elif spec.name.endswith(".bias"):
            values *= np.float32(0.02)
        else:
            values = np.float32(1) + values * np.float32(0.1)
        format = self._format.name
        if self._format.block_elements > 1:
            if len(spec.shape) == 1:
                format = "f32"
            elif spec.shape[-1] % self._format.block_elements:
                format = "f16"
        data = quantize(values, format)
        self.total_bytes += data.nbytes
        return Weight(spec.name, format, spec.shape, data)

    def read(self, name: str) -> TensorData:
        raise CheckpointError(f"{self.path}: dummy weights have no file to read {name} from")

    def file(self, name: str) -> Path | None:
        return sidecar(self.path, name)

    def content_id(self) -> str:
        key = f"dummy:{self._seed}:{self._format.name}:"
        return digest([key.encode(), (self.path / CONFIG_NAME).read_bytes()])

    def release(self) -> None:
        """Nothing is mapped."""


def _config_format(config: Mapping[str, Any]) -> str:
    text = config.get("text_config", config)
    dtype = text.get("dtype", text.get("torch_dtype", "float32"))
    found = _CONFIG_DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise CheckpointError(f"config.json: dtype {dtype!r} is not one of {', '.join(_CONFIG_DTYPES)}", field="dtype")
    return found
