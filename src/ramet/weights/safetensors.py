"""Reader of safetensors files: a length, a JSON header, the tensors' bytes. Single files and sharded directories.

    0        8                8 + length                                  end of file
    | length | JSON header    | tensors, each [begin, end) from here …    |

Every number is checked against the file's real size before it is used, and the tensors must tile the data exactly: no
overlap, no hole, no tail.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any, Final

from ramet.errors import CheckpointError
from ramet.weights.checkpoint import TensorInfo
from ramet.weights.formats import FORMATS
from ramet.weights.mapped import MappedFile
from ramet.weights.mapped_tensors import Entry, MappedTensors

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"

_MAX_HEADER_BYTES: Final = 100_000_000  # the format's own limit
_MAX_INDEX_BYTES: Final = 100_000_000
_MAX_RANK: Final = 32

_READABLE: Final = {fmt.safetensors_dtype: name for name, fmt in FORMATS.items() if fmt.safetensors_dtype}
# Bytes an element of every whole-byte dtype, so that a file is checked whole although some of it is of no use to ramet.
_DTYPE_BYTES: Final[dict[str, int]] = (
    dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1)
    | dict.fromkeys(("U16", "I16", "F16", "BF16"), 2)
    | dict.fromkeys(("U32", "I32", "F32"), 4)
    | dict.fromkeys(("U64", "I64", "F64", "C64"), 8)
)


class SafetensorsFiles(MappedTensors):
    """The tensors of one or several safetensors files, as one mapping."""

    def __init__(self, paths: list[Path]) -> None:
        """Raises `CheckpointError` if a file is damaged or two of them hold a tensor of the same name."""
        super().__init__(paths[0].parent)
        for path in paths:
            file = MappedFile(path, at_least=8 + 2)
            self.add(file, _parse(file))


def find_files(directory: Path) -> list[Path]:
    """The safetensors files of a model directory: the shards of its index, or model.safetensors, or the only one there.

    Raises `CheckpointError` naming a missing shard, or what is there instead.
    """
    index = directory / INDEX_NAME
    if index.is_file():
        return _shards(index)
    if (directory / SINGLE_NAME).is_file():
        return [directory / SINGLE_NAME]
    found = sorted(directory.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        names = ", ".join(path.name for path in found[:10])
        raise CheckpointError(
            f"{directory}: has neither {INDEX_NAME} nor {SINGLE_NAME} but {len(found)} files: {names}"
        )
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern))
    hint = f"; {pickles[0]} is a pickle, which ramet does not load: convert it to safetensors" if pickles else ""
    raise CheckpointError(f"{directory}: holds no .safetensors file{hint}")


def _shards(index: Path) -> list[Path]:
    if index.stat().st_size > _MAX_INDEX_BYTES:
        raise CheckpointError(f"{index}: is larger than {_MAX_INDEX_BYTES} bytes")
    content = parse_json(index.read_bytes(), index, 0)
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: has no weight_map from tensors to files")
    names: dict[str, str] = {}  # shard -> one of its tensors
    for tensor, shard in weight_map.items():
        # A shard is a plain name beside the index: an index from the network must not reach other files.
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: tensor {tensor} is mapped to {shard!r}, not to a .safetensors file beside it"
            )
        names.setdefault(shard, tensor)
    missing = [shard for shard in sorted(names) if not (index.parent / shard).is_file()]
    if missing:
        listed = ", ".join(missing[:10])
        raise CheckpointError(f"{index.parent}: {len(missing)} of {len(names)} shards are missing: {listed}")
    return [index.parent / shard for shard in sorted(names)]


def parse_json(text: bytes, path: Path, offset: int) -> dict[str, Any]:
    """A JSON object without repeated keys. `CheckpointError` names the byte; `offset` is where the text starts."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise CheckpointError(f"{path}: at byte {offset}: the JSON text has the key {key!r} twice")
            result[key] = value
        return result

    try:
        content = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: at byte {offset + error.start}: the JSON text is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}: at byte {offset + error.pos}: the JSON text is broken: {error.msg}") from error
    except (RecursionError, ValueError) as error:  # nested without end; a number of thousands of digits
        raise CheckpointError(f"{path}: at byte {offset}: the JSON text is not readable: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: at byte {offset}: the JSON text is not an object")
    return content


def _parse(file: MappedFile) -> dict[str, Entry]:
    length = int.from_bytes(file.buffer[:8], "little")
    if length > _MAX_HEADER_BYTES:
        raise file.damaged(0, f"a header of {length} bytes; at most {_MAX_HEADER_BYTES} are allowed")
    if 8 + length > file.size:
        raise file.damaged(0, f"a header of {length} bytes in a file of {file.size} bytes (cut short?)")
    header = parse_json(file.buffer[8 : 8 + length], file.path, 8)
    header.pop("__metadata__", None)
    entries = {name: _entry(file, name, value, 8 + length) for name, value in header.items()}

    at = 8 + length  # the tensors tile the rest of the file
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].size)):
        if entry.start != at:
            what = "overlaps the tensor before it" if entry.start < at else f"leaves {entry.start - at} bytes unused"
            raise file.damaged(entry.start, f"tensor {name} {what}")
        at = entry.start + entry.size
    if at != file.size:
        raise file.damaged(at, f"{file.size - at} bytes after the last tensor belong to none")
    return entries


def _entry(file: MappedFile, name: str, value: Any, data_start: int) -> Entry:
    def wrong(why: str) -> CheckpointError:
        return file.damaged(8, f"header of tensor {name!r}: {why}")

    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise wrong("is not an object of dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPE_BYTES:
        raise wrong(f"dtype {dtype!r} is not supported; ramet reads {', '.join(_READABLE)}")
    if not _naturals(shape) or len(shape) > _MAX_RANK:
        raise wrong(f"shape {shape!r} is not a list of at most {_MAX_RANK} whole numbers")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f"data_offsets {offsets!r} is not [begin, end]")
    begin, end = offsets
    if data_start + end > file.size:
        raise wrong(f"ends at byte {data_start + end} of a file of {file.size} bytes (cut short?)")
    needed = prod(shape) * _DTYPE_BYTES[dtype]  # whole numbers do not overflow here
    if needed != end - begin:
        raise wrong(f"{dtype} {shape} takes {needed} bytes, but data_offsets span {end - begin}")
    info = TensorInfo(_READABLE.get(dtype, dtype.lower()), tuple(shape))
    return Entry(file, info, data_start + begin, end - begin)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
