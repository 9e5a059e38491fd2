"""Our GGUF reader against the `gguf` package, and on damaged, old, split and hostile files."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest

from ramet.errors import CheckpointError
from ramet.weights.formats import FORMATS, dequantize
from ramet.weights.gguf import GgufFile, GgufFiles
from ramet.weights.tensor import Weight


def _write(path: Path, tensors: int = 3, *, split: int = 0) -> Path:
    """A model with metadata of every type and some tensors; `split`: the most that a file may have."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split)
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -3)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -300)
    writer.add_uint32("t.u32", 4_000_000_000)
    writer.add_int32("t.i32", -70000)
    writer.add_uint64("t.u64", 1 << 63)
    writer.add_int64("t.i64", -(1 << 40))
    writer.add_float32("t.f32", 0.1)
    writer.add_float64("t.f64", 0.1)
    writer.add_bool("t.yes", True)
    writer.add_bool("t.no", False)
    writer.add_string("t.text", "naïve 🦊")
    writer.add_array("t.strings", ["", "a", "字", "x" * 255])
    writer.add_array("t.long_strings", ["b", "y" * 256, "z" * 70000])
    writer.add_array("t.ints", [1, -2, 3])
    writer.add_array("t.floats", [0.5, -1.5])
    writer.add_array("t.bools", [True, False, True])
    rng = np.random.default_rng(1)
    for index in range(tensors):
        writer.add_tensor(f"blk.{index}.attn_q.weight", rng.standard_normal((4 + index, 32)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _header(metadata: list[bytes] | None = None, tensors: list[bytes] | None = None, data: bytes = b"") -> bytes:
    """A file made by hand; a metadata entry is key, type, value; a tensor name, dimensions, type, offset."""
    metadata, tensors = metadata or [], tensors or []
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


def _u32(key: str, value: int) -> bytes:
    return _string(key.encode()) + struct.pack("<II", 4, value)


def _tensor(name: str = "w", shape: tuple[int, ...] = (8,), type: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _string(name.encode()) + dimensions + struct.pack("<IQ", type, offset)


def _refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        GgufFiles(path)
    assert str(path) in caught.value.message


def test_metadata_equals_the_reference(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.gguf")
    ours = GgufFiles(path).metadata
    reference = gguf.GGUFReader(path)
    theirs = {key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        found = list(ours[key]) if isinstance(value, list) else ours[key]
        assert found == value, key
        if not isinstance(value, list):
            assert type(found) is type(value), key


def test_string_arrays_are_sequences(tmp_path: Path) -> None:
    metadata = GgufFiles(_write(tmp_path / "m.gguf")).metadata
    strings = metadata["t.strings"]
    assert len(strings) == 4
    assert strings[2] == "字"
    assert strings[-1] == "x" * 255
    assert strings[1:3] == ["a", "字"]
    assert "a" in strings
    assert strings.raw(2) == "字".encode()
    with pytest.raises(IndexError):
        strings[4]
    assert [len(text) for text in metadata["t.long_strings"]] == [1, 256, 70000]


@pytest.mark.parametrize("name", FORMATS)
def test_tensors_equal_the_reference(tmp_path: Path, name: str) -> None:
    rows, columns = 6, 512
    kind = gguf.GGMLQuantizationType[name.upper()]
    raw = np.random.default_rng(2).integers(0, 256, (rows, FORMATS[name].row_bytes(columns)), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("first", np.ones(3, np.float32))  # 12 bytes, then padding
    writer.add_tensor("w", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    format, shape, data = GgufFiles(tmp_path / "m.gguf").read("w")
    assert (format, shape) == (name, (rows, columns))
    with np.errstate(all="ignore"):
        expected = np.ascontiguousarray(gguf.quants.dequantize(raw, kind))
    assert dequantize(Weight("w", format, shape, data)).tobytes() == expected.tobytes()


def test_version_2_is_read_and_others_are_named(tmp_path: Path) -> None:
    content = _header([_u32("a", 1)], [_tensor()], bytes(32))
    path = tmp_path / "two.gguf"
    path.write_bytes(content[:4] + struct.pack("<I", 2) + content[8:])
    assert GgufFiles(path).tensors.keys() == {"w"}
    _refused(tmp_path, content[:4] + struct.pack("<I", 1) + content[8:], "at byte 4: GGUF version 1 is not supported")
    _refused(tmp_path, content[:4] + struct.pack(">I", 3) + content[8:], "at byte 4: big-endian")
    _refused(tmp_path, content[:4] + struct.pack("<I", 0) + content[8:], "version 0 is not supported")
    _refused(tmp_path, b"PK\3\4" + content[4:], "at byte 0: this is not a GGUF file")
    _refused(tmp_path, b"tjgg" + content[4:], "an old GGJT file")
    _refused(tmp_path, b"", "at byte 0: the file ends")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_header([_u32("", 1)]), "at byte 24: a metadata key is empty"),
        (_header([_u32("a", 1), _u32("a", 2)]), "at byte 41: the metadata key a appears twice"),
        (_header([_string(b"\xff") + struct.pack("<II", 4, 1)]), "at byte 32: a metadata key is not UTF-8"),
        (_header([_string(b"a") + struct.pack("<II", 13, 1)]), "at byte 33: a has the unknown type 13"),
        (_header([_string(b"a") + struct.pack("<IIQ", 9, 9, 0)]), "array of arrays"),
        (_header([_string(b"a") + struct.pack("<IIQ", 9, 77, 0)]), "unknown type 77"),
        (_header([_string(b"a") + struct.pack("<IIQ", 9, 4, 1 << 60)]), "elements of a cannot fit"),
        (_header([_string(b"a") + struct.pack("<IIQ", 9, 8, 1 << 60)]), "elements of a cannot fit"),
        (_header([_string(b"a") + struct.pack("<IIQQ", 9, 8, 1, 1 << 62)]), "string 0 of a has"),
        (_header([_string(b"a") + struct.pack("<IQ", 8, 1 << 63)]), "at most 67108864 are allowed"),
        (_header([struct.pack("<Q", 1 << 40) + bytes(8)]), "at most 65535 are allowed"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "at byte 8: 1152921504606846976 tensors cannot fit"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 63), "at byte 16: 9223372036854775808 metadata entries cannot"),
        (_header([_u32("general.alignment", 0)], [_tensor()]), "general.alignment 0 is not a power of two"),
        (_header([_u32("general.alignment", 24)], [_tensor()]), "general.alignment 24 is not a power of two"),
        (_header([], [_tensor(""), _tensor("bb")], bytes(64)), "a tensor name is empty"),
        (_header([], [_tensor(), _tensor(offset=32)], bytes(64)), "the tensor w appears twice"),
        (_header([], [_tensor(shape=())], bytes(32)), "0 dimensions"),
        (_header([], [_tensor(shape=(1,) * 5)], bytes(32)), "5 dimensions"),
        (_header([], [_tensor(shape=(0,))], bytes(32)), "no elements"),
        (_header([], [_tensor(type=99)], bytes(32)), "has the unknown type 99"),
        (_header([], [_tensor(shape=(33,), type=8)], bytes(64)), "rows of 33 are not whole q8_0 blocks"),
        (_header([], [_tensor(offset=4)], bytes(64)), "not a multiple of the alignment 32"),
        (_header([], [_tensor(offset=1 << 63)], bytes(64)), "cut short"),
        (_header([], [_tensor(shape=(1 << 62, 1 << 62, 1 << 62))], bytes(64)), "cut short"),
        (_header([], [_tensor("a", (16,)), _tensor("b", offset=32)], bytes(64)), "tensor b overlaps tensor a"),
        (_header([], [_tensor()], bytes(31)), "cut short"),
    ],
)
def test_damaged_headers_are_refused_with_the_place(tmp_path: Path, content: bytes, message: str) -> None:
    _refused(tmp_path, content, message)


@pytest.mark.parametrize(("code", "name"), [(16, "IQ2_XXS"), (34, "TQ1_0"), (39, "MXFP4"), (24, "I8"), (28, "F64")])
def test_unread_types_are_refused_by_name(tmp_path: Path, code: int, name: str) -> None:
    _refused(tmp_path, _header([], [_tensor(shape=(256,), type=code)], bytes(1024)), f"tensor w is {name}, which")


def test_every_type_of_the_reference_has_a_name(tmp_path: Path) -> None:
    for kind in gguf.GGMLQuantizationType:
        if kind.name.lower() not in FORMATS and kind.value <= 41:  # a later package may know more
            _refused(tmp_path, _header([], [_tensor(shape=(256,), type=kind.value)], bytes(1024)), f"w is {kind.name},")


def test_vocabulary_only_files_are_refused_early(tmp_path: Path) -> None:
    _refused(tmp_path, _header([_u32("a", 1)]), "holds no tensors; it is a vocabulary-only file")


def test_split_files_are_one_model(tmp_path: Path) -> None:
    whole = GgufFiles(_write(tmp_path / "whole.gguf", tensors=5))
    _write(tmp_path / "m.gguf", tensors=5, split=2)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert [part.name for part in parts] == [f"m-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for part in parts:  # any part leads to all
        split = GgufFiles(part)
        assert split.tensors == whole.tensors
        assert split.path == parts[0]
        assert split.metadata["t.text"] == "naïve 🦊"
        for name in whole.tensors:
            assert split.read(name).data.tobytes() == whole.read(name).data.tobytes()


def test_missing_and_foreign_parts_are_named(tmp_path: Path) -> None:
    _write(tmp_path / "m.gguf", tensors=5, split=2)
    first, second, third = sorted(tmp_path.glob("m-*.gguf"))
    content = second.read_bytes()
    second.unlink()
    with pytest.raises(CheckpointError, match=r"1 of 3 parts of m are missing: m-00002-of-00003\.gguf"):
        GgufFiles(first)
    second.write_bytes(third.read_bytes())
    with pytest.raises(CheckpointError, match=r"says that it is part 2 \(split.no\), not 1"):
        GgufFiles(first)
    alone = tmp_path / "alone.gguf"
    alone.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"is one of 3 parts \(split.count\), but 1 were found; name the parts"):
        GgufFiles(alone)


def test_released_files_refuse_to_read(tmp_path: Path) -> None:
    files = GgufFiles(_write(tmp_path / "m.gguf"))
    data = files.read("blk.0.attn_q.weight").data
    before = data.tobytes()
    files.release()
    assert data.tobytes() == before
    assert list(files.metadata["t.strings"])[1] == "a"
    with pytest.raises(CheckpointError, match="was released"):
        files.read("blk.0.attn_q.weight")
    with pytest.raises(CheckpointError, match="there is no tensor nothing"):
        files.read("nothing")


def test_tokens_that_are_not_utf8_are_an_error_when_read(tmp_path: Path) -> None:
    strings = _string(b"a") + struct.pack("<IIQ", 9, 8, 2) + _string(b"ok") + _string(b"\xff\xfe")
    path = tmp_path / "m.gguf"
    path.write_bytes(_header([strings], [_tensor()], bytes(32)))
    tokens = GgufFile(path).metadata["a"]
    assert tokens[0] == "ok"
    assert tokens.raw(1) == b"\xff\xfe"
    with pytest.raises(CheckpointError, match="not UTF-8"):
        list(tokens)
