"""Checkpoints on this disk: a directory in Hugging Face layout, or a GGUF file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from ramet.errors import CheckpointError
from ramet.weights.checkpoint import TensorData, TensorInfo
from ramet.weights.gguf import GgufFiles
from ramet.weights.safetensors import SafetensorsFiles, find_files, parse_json

CONFIG_NAME: Final = "config.json"
GENERATION_CONFIG_NAME: Final = "generation_config.json"
_MAX_JSON_BYTES: Final = 16 << 20


class HfCheckpoint:
    """config.json, safetensors files and what lies beside them."""

    kind: Literal["hf"] = "hf"

    def __init__(self, directory: Path) -> None:
        """Raises `CheckpointError` if config or tensors are missing or damaged."""
        self.path = directory
        self.config = read_json(directory / CONFIG_NAME)
        self.generation_config = read_generation_config(directory)
        self._files = SafetensorsFiles(find_files(directory))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(self._files.tensors)
        self.total_bytes = self._files.total_bytes

    def read(self, name: str) -> TensorData:
        return self._files.read(name)

    def file(self, name: str) -> Path | None:
        return sidecar(self.path, name)

    def content_id(self) -> str:
        config = (self.path / CONFIG_NAME).read_bytes()
        return digest([hashlib.sha256(config).digest(), *self._files.fingerprints()])

    def release(self) -> None:
        self._files.release()


class GgufCheckpoint:
    """One GGUF file or all parts of a split one; the tokenizer is in the metadata, so there are no other files."""

    kind: Literal["gguf"] = "gguf"

    def __init__(self, path: Path) -> None:
        """Raises `CheckpointError` if a file is damaged, incomplete or without tensors."""
        self._files = GgufFiles(path)
        self.path = self._files.path
        self.config = self._files.metadata
        self.generation_config: Mapping[str, Any] = MappingProxyType({})
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(self._files.tensors)
        self.total_bytes = self._files.total_bytes

    def read(self, name: str) -> TensorData:
        return self._files.read(name)

    def file(self, name: str) -> Path | None:
        return None

    def content_id(self) -> str:
        return digest(self._files.fingerprints())

    def release(self) -> None:
        self._files.release()


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object of a model directory. Raises `CheckpointError` if the file is missing, huge or broken."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: is larger than {_MAX_JSON_BYTES} bytes")
        text = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    return MappingProxyType(parse_json(text, path, 0))


def read_generation_config(directory: Path) -> Mapping[str, Any]:
    """The parsed generation_config.json; empty where there is none."""
    path = directory / GENERATION_CONFIG_NAME
    return read_json(path) if path.is_file() else MappingProxyType({})


def sidecar(directory: Path, name: str) -> Path | None:
    """The file `name` of a model directory, or None."""
    path = directory / name
    return path if path.is_file() else None


def digest(parts: Iterable[bytes]) -> str:
    """16 hex digits."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]
