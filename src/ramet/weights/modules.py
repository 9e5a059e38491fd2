"""A checkpoint with the weights of sentence-transformers' dense modules, which lie in directories of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from ramet.errors import CheckpointError
from ramet.weights.checkpoint import Checkpoint, TensorData, TensorInfo
from ramet.weights.dummy import DummyCheckpoint
from ramet.weights.safetensors import SINGLE_NAME, SafetensorsFiles


def with_modules(checkpoint: Checkpoint, names: Iterable[str]) -> Checkpoint:
    """`checkpoint` and the tensors of these modules, as `NAME.tensor`. Raises `CheckpointError` if one is missing."""
    names = list(names)
    return checkpoint if not names or isinstance(checkpoint, DummyCheckpoint) else _Joined(checkpoint, names)


class _Joined:
    def __init__(self, checkpoint: Checkpoint, names: list[str]) -> None:
        self._main = checkpoint
        self._modules: dict[str, SafetensorsFiles] = {}
        for name in names:
            path = checkpoint.file(f"{name}/{SINGLE_NAME}")
            if path is None:
                raise CheckpointError(
                    f"{checkpoint.path}: {name}/{SINGLE_NAME} is not there; weights in a pickle must be converted"
                )
            self._modules[name] = SafetensorsFiles([path])
        own = {
            f"{name}.{tensor}": info for name, files in self._modules.items() for tensor, info in files.tensors.items()
        }
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType({**checkpoint.tensors, **own})
        self.total_bytes = checkpoint.total_bytes + sum(files.total_bytes for files in self._modules.values())

    @property
    def kind(self) -> Literal["hf", "gguf"]:
        return self._main.kind

    @property
    def path(self) -> Path:
        return self._main.path

    @property
    def config(self) -> Mapping[str, Any]:
        return self._main.config

    @property
    def generation_config(self) -> Mapping[str, Any]:
        return self._main.generation_config

    def read(self, name: str) -> TensorData:
        module, _, tensor = name.partition(".")
        return self._modules[module].read(tensor) if module in self._modules else self._main.read(name)

    def file(self, name: str) -> Path | None:
        return self._main.file(name)

    def content_id(self) -> str:
        return self._main.content_id()

    def release(self) -> None:
        self._main.release()
        for files in self._modules.values():
            files.release()
