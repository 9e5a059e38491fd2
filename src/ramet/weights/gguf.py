"""Reader of GGUF files, versions 2 and 3, little-endian; single or split (`name-00001-of-00003.gguf`).

    magic "GGUF" | version u32 | tensor count u64 | metadata count u64
    metadata: key, type u32, value          strings are a u64 length and UTF-8 bytes
    tensors:  name, rank u32, dimensions u64 (fastest first), type u32, offset u64 from the data's start
    padding to `general.alignment`, then the data

Every count and length is checked against the bytes left in the file before anything is made from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ramet.errors import CheckpointError
from ramet.weights.checkpoint import TensorInfo
from ramet.weights.formats import FORMATS
from ramet.weights.gguf_fields import Fields
from ramet.weights.mapped import MappedFile
from ramet.weights.mapped_tensors import Entry, MappedTensors

_BY_TYPE: Final = {fmt.gguf_type: fmt for fmt in FORMATS.values()}
# Types that exist and are not read, so that the refusal has a name. 4, 5, 31-33, 36-38 were removed from the format.
_UNREAD_NAMES: Final = (
    "4:Q4_2 5:Q4_3 9:Q8_1 15:Q8_K 16:IQ2_XXS 17:IQ2_XS 18:IQ3_XXS 19:IQ1_S 20:IQ4_NL 21:IQ3_S 22:IQ2_S 23:IQ4_XS 24:I8 "
    "25:I16 26:I32 27:I64 28:F64 29:IQ1_M 31:Q4_0_4_4 32:Q4_0_4_8 33:Q4_0_8_8 34:TQ1_0 35:TQ2_0 36:IQ4_NL_4_4 "
    "37:IQ4_NL_4_8 38:IQ4_NL_8_8 39:MXFP4 40:NVFP4 41:Q1_0"
)
_UNREAD_TYPES: Final = {int(code): name for code, name in (pair.split(":") for pair in _UNREAD_NAMES.split())}
_OLD_MAGICS: Final = {b"lmgg": "GGML", b"fmgg": "GGMF", b"tjgg": "GGJT", b"algg": "GGLA"}
_DEFAULT_ALIGNMENT: Final = 32
_MAX_RANK: Final = 4
_MIN_METADATA_BYTES: Final = 8 + 1 + 4 + 1  # key of one letter, type, smallest value
_MIN_TENSOR_BYTES: Final = 8 + 1 + 4 + 8 + 4 + 8
_SPLIT_NAME: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GgufFile:
    """One file: its metadata and tensors. A vocabulary-only file has no tensors, which is for the caller to judge."""

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path, at_least=4 + 4)
        fields = Fields(self.file)
        tensor_count, metadata_count = _header(fields)
        self.metadata: Mapping[str, Any] = MappingProxyType(_metadata(fields, metadata_count))
        self.entries = _tensors(fields, tensor_count, _alignment(self.file, self.metadata))


class GgufFiles(MappedTensors):
    """All parts of a model as one: metadata of the first part, tensors of all."""

    def __init__(self, path: Path) -> None:
        """`path` is the file, or any part of a split one.

        Raises `CheckpointError` if a part is damaged, missing or of another model, or if there are no tensors at all.
        """
        parts = [GgufFile(part) for part in _parts(path)]
        super().__init__(parts[0].file.path)
        self.metadata = parts[0].metadata
        for number, part in enumerate(parts):
            _check_part(part, number, len(parts))
            self.add(part.file, part.entries)
        count = len(self.tensors)
        if not count:
            raise CheckpointError(f"{self.path}: holds no tensors; it is a vocabulary-only file, not a model")
        promised = self.metadata.get("split.tensors.count", count)
        if promised != count:
            raise CheckpointError(f"{self.path}: its parts hold {count} tensors instead of {promised}")


def _parts(path: Path) -> Sequence[Path]:
    """All parts of the split file that `path` is a part of, in order; just `path` if its name is not that of a part."""
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    parts = [path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        listed = ", ".join(missing[:10])
        raise CheckpointError(
            f"{path.parent}: {len(missing)} of {count} parts of {match['stem']} are missing: {listed}"
        )
    if not parts:
        raise CheckpointError(f"{path}: the name speaks of part {match['number']} of none")
    return parts


def _check_part(part: GgufFile, number: int, parts: int) -> None:
    count = part.metadata.get("split.count", 1)
    if count <= 1 and parts == 1:
        return
    path = part.file.path
    if count != parts:
        hint = "" if parts > 1 else "; name the parts …-00001-of-0000N.gguf so that they can be found"
        raise CheckpointError(f"{path}: is one of {count} parts (split.count), but {parts} were found{hint}")
    if part.metadata.get("split.no") != number:
        raise CheckpointError(f"{path}: says that it is part {part.metadata.get('split.no')} (split.no), not {number}")


def _header(fields: Fields) -> tuple[int, int]:
    """Tensor and metadata counts, bounded by the size of the file."""
    file = fields.file
    magic = file.buffer[:4]
    if magic != b"GGUF":
        old = _OLD_MAGICS.get(magic)
        what = f"an old {old} file; convert it to GGUF" if old else f"not a GGUF file: it starts with {magic!r}"
        raise file.damaged(0, f"this is {what}")
    fields.at = 4
    version = fields.u32("the version")
    if version & 0xFFFF == 0 and version:
        raise file.damaged(4, "big-endian GGUF files are not supported")
    if version not in (2, 3):
        raise file.damaged(4, f"GGUF version {version} is not supported; ramet reads versions 2 and 3")
    tensor_count = fields.count("tensors", _MIN_TENSOR_BYTES)
    return tensor_count, fields.count("metadata entries", _MIN_METADATA_BYTES)


def _metadata(fields: Fields, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(count):
        start = fields.at
        key = fields.name("a metadata key")
        if key in metadata:
            raise fields.file.damaged(start, f"the metadata key {key} appears twice")
        metadata[key] = fields.value(key)
    return metadata


def _alignment(file: MappedFile, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise CheckpointError(f"{file.path}: general.alignment {alignment!r} is not a power of two up to 1048576")
    return alignment


def _tensors(fields: Fields, count: int, alignment: int) -> dict[str, Entry]:
    file = fields.file
    heads: dict[str, tuple[int, TensorInfo, int, int]] = {}  # where its header is, info, offset in the data, size
    for _ in range(count):
        at = fields.at
        name = fields.name("a tensor name")
        if name in heads:
            raise file.damaged(at, f"the tensor {name} appears twice")
        info, size = _tensor_info(fields, name)
        offset = fields.u64(f"the offset of tensor {name}")
        if offset % alignment:
            raise file.damaged(at, f"tensor {name}: its offset {offset} is not a multiple of the alignment {alignment}")
        heads[name] = (at, info, offset, size)
    data_start = -(-fields.at // alignment) * alignment

    entries: dict[str, Entry] = {}
    for name, (at, info, offset, size) in heads.items():
        start = data_start + offset
        if start + size > file.size:
            raise file.damaged(
                at, f"tensor {name} lies at bytes {start} to {start + size} of a file of {file.size} bytes (cut short?)"
            )
        entries[name] = Entry(file, info, start, size)
    end, before = data_start, ""
    for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
        if entry.start < end:
            raise file.damaged(heads[name][0], f"tensor {name} overlaps tensor {before}")
        end, before = entry.start + entry.size, name
    return entries


def _tensor_info(fields: Fields, name: str) -> tuple[TensorInfo, int]:
    """Format, shape and bytes of the tensor whose name was just read."""
    at = fields.at
    rank = fields.u32(f"the rank of tensor {name}")
    if not 1 <= rank <= _MAX_RANK:
        raise fields.file.damaged(at, f"tensor {name} has {rank} dimensions; 1 to {_MAX_RANK} are possible")
    shape = tuple(fields.u64(f"a dimension of tensor {name}") for _ in range(rank))[::-1]
    if 0 in shape:
        raise fields.file.damaged(at, f"tensor {name} has no elements: shape {list(shape)}")
    at = fields.at
    code = fields.u32(f"the type of tensor {name}")
    fmt = _BY_TYPE.get(code)
    if fmt is None:
        known = _UNREAD_TYPES.get(code)
        what = f"is {known}, which ramet does not read" if known else f"has the unknown type {code}"
        raise fields.file.damaged(at, f"tensor {name} {what}; it reads {', '.join(FORMATS)}")
    if shape[-1] % fmt.block_elements:
        raise fields.file.damaged(at, f"tensor {name}: rows of {shape[-1]} are not whole {fmt.name} blocks")
    return TensorInfo(fmt.name, shape), prod(shape[:-1]) * fmt.row_bytes(shape[-1])
