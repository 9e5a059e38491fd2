"""What a checkpoint offers, whatever its file format. `sources.open_checkpoint` makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`format` is a row of `formats.FORMATS`, or the lower-case name of a type ramet can size but not read (i64 …)."""

    format: str
    shape: tuple[int, ...]  # last dimension contiguous


class TensorData(NamedTuple):
    """A tensor's bytes: a read-only, flat uint8 view of the file's memory map. It may start at any alignment."""

    format: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


class Checkpoint(Protocol):
    """Configuration and tensors of one model, opened but not read: opening touches headers only."""

    @property
    def kind(self) -> Literal["hf", "gguf"]:
        """Whose vocabulary `config` and the tensor names use: Hugging Face's or GGUF's."""

    @property
    def path(self) -> Path:
        """Directory (HF layout) or first `.gguf` file."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The parsed config.json, or the GGUF metadata (`general.architecture`, `tokenizer.ggml.tokens`, …)."""

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """The parsed generation_config.json; empty where there is none."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by its name in the file."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors together."""

    def read(self, name: str) -> TensorData:
        """A tensor's bytes, zero-copy. Raises `CheckpointError` if there is none of that name, or after `release`."""

    def file(self, name: str) -> Path | None:
        """A file that came with the model (tokenizer.json, chat_template.jinja …), or None."""

    def content_id(self) -> str:
        """16 hex digits that change when headers, sizes or edges of the files do; cheap, for benchmark records."""

    def release(self) -> None:
        """Give the pages of the maps back to the system; no `read` after it. Views handed out stay valid."""
