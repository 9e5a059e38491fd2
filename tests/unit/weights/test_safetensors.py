"""Our safetensors reader against the `safetensors` package, and on damaged files."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

from ramet.errors import CheckpointError
from ramet.weights.safetensors import SafetensorsFiles, find_files

RNG = np.random.default_rng(5)


def _tensors() -> dict[str, Any]:
    return {
        "a.weight": RNG.standard_normal((4, 6)).astype(np.float32),
        "b.weight": RNG.standard_normal((3, 5)).astype(np.float16),
        "c": np.arange(7, dtype=np.int64),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }


def _file(tmp_path: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def _entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_reads_what_the_reference_wrote(tmp_path: Path) -> None:
    tensors = _tensors()
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    ours = SafetensorsFiles([path])
    assert ours.tensors.keys() == tensors.keys()
    with safetensors.safe_open(path, "numpy") as reference:
        for name in reference.keys():  # noqa: SIM118 - not a mapping
            format, shape, data = ours.read(name)
            expected = reference.get_tensor(name)
            assert shape == expected.shape
            assert data.tobytes() == expected.tobytes()
            assert format == {"float32": "f32", "float16": "f16", "int64": "i64"}[str(expected.dtype)]
    assert ours.total_bytes == sum(tensor.nbytes for tensor in tensors.values())


def test_bf16_is_read_as_its_bits(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)
    ours = SafetensorsFiles([_file(tmp_path, {"w": _entry("BF16", (2,), (0, 4))}, bits.tobytes())])
    assert ours.read("w").format == "bf16"
    assert ours.read("w").data.view(np.uint16).tolist() == bits.tolist()


def test_views_are_read_only_and_outlive_release(tmp_path: Path) -> None:
    ours = SafetensorsFiles([_file(tmp_path, {"w": _entry()}, b"\1" * 8)])
    data = ours.read("w").data
    assert not data.flags.writeable
    ours.release()
    assert data.tolist() == [1] * 8
    with pytest.raises(CheckpointError, match="was released"):
        ours.read("w")


def test_sharded_directory_is_one_mapping(tmp_path: Path) -> None:
    save_file({"x": np.ones(3, np.float32)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"y": np.zeros(2, np.float16)}, tmp_path / "model-00002-of-00002.safetensors")
    weight_map = {"x": "model-00001-of-00002.safetensors", "y": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    ours = SafetensorsFiles(find_files(tmp_path))
    assert {name: info.shape for name, info in ours.tensors.items()} == {"x": (3,), "y": (2,)}
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 2 shards are missing: model-00002-of-00002\.safetensors"):
        find_files(tmp_path)


@pytest.mark.parametrize("shard", ["../other.safetensors", "/etc/passwd", "sub/x.safetensors", "weights.bin", 3])
def test_an_index_cannot_reach_other_files(tmp_path: Path, shard: object) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": shard}}))
    with pytest.raises(CheckpointError, match=r"not to a \.safetensors file beside it"):
        find_files(tmp_path)


def test_two_shards_with_the_same_tensor_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    for path in paths:
        save_file({"x": np.ones(3, np.float32)}, path)
    with pytest.raises(CheckpointError, match=r"tensor x is also in .*one\.safetensors"):
        SafetensorsFiles(paths)


def test_directory_without_safetensors_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors file$"):
        find_files(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle"):
        find_files(tmp_path)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"", b"", "ends, before its header"),
        (b"{]", b"", "at byte 9: the JSON text is broken"),
        (b"[]", b"", "at byte 8: the JSON text is not an object"),
        (b'{"a\xff":1}', b"", "at byte 11: the JSON text is not UTF-8"),
        (b"[" * 100_000, b"", "at byte 8: the JSON text is not readable"),
        (b'{"w": ' + b"9" * 5000 + b"}", b"", "at byte 8: the JSON text is not readable"),
        (b'{"w": {}, "w": {}}', b"", "has the key 'w' twice"),
        ({"w": 3}, b"", "is not an object of dtype"),
        ({"w": {"dtype": "F32"}}, b"", "is not an object of dtype"),
        ({"w": {**_entry(), "more": 1}}, bytes(8), "is not an object of dtype"),
        ({"w": _entry("F4")}, bytes(8), "dtype 'F4' is not supported"),
        ({"w": _entry(shape=(-2,))}, bytes(8), "not a list of at most 32 whole numbers"),
        ({"w": _entry(shape=(2.0,))}, bytes(8), "not a list of at most 32 whole numbers"),
        ({"w": _entry(shape=(True, 2))}, bytes(8), "not a list of at most 32 whole numbers"),
        ({"w": _entry(shape=(1,) * 33)}, bytes(8), "not a list of at most 32 whole numbers"),
        ({"w": _entry(offsets=(8, 0))}, bytes(8), "not \\[begin, end\\]"),
        ({"w": _entry(offsets=(0, 4, 8))}, bytes(8), "not \\[begin, end\\]"),
        ({"w": _entry(offsets=(0, 1 << 70))}, bytes(8), "cut short"),
        ({"w": _entry()}, bytes(7), "cut short"),
        ({"w": _entry(shape=(1 << 32, 1 << 32, 1 << 62))}, bytes(8), "but data_offsets span 8"),
        ({"w": _entry(shape=(3,))}, bytes(8), "takes 12 bytes, but data_offsets span 8"),
        ({"w": _entry()}, bytes(9), "1 bytes after the last tensor belong to none"),
        ({"w": _entry(offsets=(4, 12))}, bytes(12), "tensor w leaves 4 bytes unused"),
        ({"v": _entry(), "w": _entry(offsets=(4, 12))}, bytes(12), "tensor w overlaps the tensor before it"),
    ],
)
def test_damaged_files_are_refused_with_the_place(tmp_path: Path, header: Any, data: bytes, message: str) -> None:
    path = _file(tmp_path, header, data)
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsFiles([path])
    assert str(path) in caught.value.message


@pytest.mark.parametrize("length", [1 << 20, 100_000_001, (1 << 64) - 1])
def test_header_length_is_bounded_by_the_file(tmp_path: Path, length: int) -> None:
    with pytest.raises(CheckpointError, match="at byte 0: a header of"):
        SafetensorsFiles([_file(tmp_path, {"w": _entry()}, bytes(8), length=length)])


def test_missing_empty_and_pointer_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(CheckpointError, match="cannot be opened"):
        SafetensorsFiles([path])
    path.touch()
    with pytest.raises(CheckpointError, match="at byte 0: the file ends"):
        SafetensorsFiles([path])
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(CheckpointError, match="Git LFS pointer"):
        SafetensorsFiles([path])
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.safetensors")  # opening it would wait for a writer
        with pytest.raises(CheckpointError, match="not a regular file"):
            SafetensorsFiles([tmp_path / "pipe.safetensors"])
