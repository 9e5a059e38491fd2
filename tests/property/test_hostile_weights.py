"""Cut and altered checkpoint files: nothing but `CheckpointError` may come out, quickly and in little memory."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from ramet.errors import CheckpointError
from ramet.weights.checkpoint import TensorData
from ramet.weights.formats import FORMATS, dequantize
from ramet.weights.gguf import GgufFiles
from ramet.weights.safetensors import SafetensorsFiles
from ramet.weights.tensor import Weight

_MEMORY_BYTES = 2 << 20  # a file of 1 kB must not make the reader allocate more, whatever its numbers say


def _gguf_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_uint32("llama.block_count", 1)
        writer.add_array("tokenizer.ggml.tokens", ["a", "bc", "字"])
        writer.add_array("tokenizer.ggml.scores", [0.5, 0.25, 0.0])
        writer.add_tensor("token_embd.weight", np.ones((2, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor("output_norm.weight", np.ones(8, np.float32))  # 32 bytes: no padding after it
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def _safetensors_file() -> bytes:
    return bytes(save({"a": np.ones((2, 3), np.float32), "b": np.arange(4, dtype=np.float16)}, {"format": "pt"}))


def _read_everything(tensors: Iterable[str], read: Callable[[str], TensorData]) -> None:
    for name in tensors:
        format, shape, data = read(name)
        if format in FORMATS:
            dequantize(Weight(name, format, shape, data))


def _read_gguf(path: Path) -> None:
    files = GgufFiles(path)
    for value in files.metadata.values():
        if not isinstance(value, str | int | float):
            list(value)
    _read_everything(files.tensors, files.read)


def _read_safetensors(path: Path) -> None:
    files = SafetensorsFiles([path])
    _read_everything(files.tensors, files.read)


def _attempt(read: Callable[[Path], None], content: bytes, path: Path) -> str:
    """What reading complains about; empty if it reads."""
    path.write_bytes(content)
    try:
        read(path)
    except CheckpointError as error:
        return error.message
    return ""


_KINDS = {"gguf": (_gguf_file(), _read_gguf), "safetensors": (_safetensors_file(), _read_safetensors)}


@pytest.mark.parametrize("kind", _KINDS)
def test_a_file_cut_anywhere_is_refused(kind: str, tmp_path: Path) -> None:
    content, read = _KINDS[kind]
    path = tmp_path / "cut"
    assert _attempt(read, content, path) == ""
    tracemalloc.start()
    for length in range(len(content)):
        assert str(path) in _attempt(read, content[:length], path), length
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < _MEMORY_BYTES


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("value", [0x00, 0x01, 0x7F, 0xFF])
def test_any_byte_replaced_reads_or_is_refused(kind: str, value: int, tmp_path: Path) -> None:
    content, read = _KINDS[kind]
    path = tmp_path / "flipped"
    tracemalloc.start()
    for at in range(len(content)):
        complaint = _attempt(read, content[:at] + bytes([value]) + content[at + 1 :], path)
        assert not complaint or str(path) in complaint
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < _MEMORY_BYTES


@pytest.mark.parametrize("kind", _KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_several_changes_read_or_are_refused(kind: str, data: st.DataObject) -> None:
    content, read = _KINDS[kind]
    changed = bytearray(content)
    places = st.tuples(st.integers(0, len(content) - 9), st.sampled_from([1, 2, 4, 8]), st.integers(0, (1 << 64) - 1))
    for at, size, value in data.draw(st.lists(places, min_size=1, max_size=4)):
        changed[at : at + size] = (value % (1 << (8 * size))).to_bytes(size, "little")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changed"
        complaint = _attempt(read, bytes(changed), path)
        assert not complaint or str(path) in complaint


@given(name=st.sampled_from(sorted(FORMATS)), seed=st.integers(0, 1 << 32), rows=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_any_bytes_dequantize_without_warnings(name: str, seed: int, rows: int) -> None:
    data = np.random.default_rng(seed).integers(0, 256, rows * FORMATS[name].row_bytes(512), dtype=np.uint8)
    assert dequantize(Weight("w", name, (rows, 512), data)).shape == (rows, 512)
