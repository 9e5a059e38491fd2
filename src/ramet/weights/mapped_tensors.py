"""Tensors in mapped files, by name: what a safetensors and a GGUF model are once their headers have been read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ramet.errors import CheckpointError
from ramet.weights.checkpoint import TensorData, TensorInfo
from ramet.weights.mapped import MappedFile


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies; its reader has checked that this is inside the file."""

    file: MappedFile
    info: TensorInfo
    start: int  # in the file
    size: int


class MappedTensors:
    """The tensors of all files of a model. `path` stands for the model in messages."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: list[MappedFile] = []
        self._entries: dict[str, Entry] = {}

    def add(self, file: MappedFile, entries: Mapping[str, Entry]) -> None:
        """Raises `CheckpointError` if a tensor of the same name is there already."""
        for name, entry in entries.items():
            if name in self._entries:
                raise CheckpointError(f"{file.path}: tensor {name} is also in {self._entries[name].file.path}")
            self._entries[name] = entry
        self._files.append(file)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {name: entry.info for name, entry in self._entries.items()}

    @property
    def total_bytes(self) -> int:
        return sum(entry.size for entry in self._entries.values())

    def read(self, name: str) -> TensorData:
        entry = self._entries.get(name)
        if entry is None:
            raise CheckpointError(f"{self.path}: there is no tensor {name}")
        return TensorData(entry.info.format, entry.info.shape, entry.file.view(entry.start, entry.size))

    def fingerprints(self) -> list[bytes]:
        return [file.fingerprint() for file in self._files]

    def release(self) -> None:
        for file in self._files:
            file.release()
