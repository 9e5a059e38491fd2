"""A checkpoint file mapped into memory, read-only."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ramet.errors import CheckpointError

_EDGE_BYTES = 1 << 16  # of each end of a file go into its fingerprint: 64 KiB, a few pages to read
_LFS_POINTER = b"version https://git-lfs"


class MappedFile:
    """The whole file, whose real size bounds every number read from it."""

    def __init__(self, path: Path, *, at_least: int) -> None:
        """Raises `CheckpointError` if the file cannot be opened, is a Git LFS pointer or is shorter than `at_least`."""
        self.path = path
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            raise CheckpointError(f"{path}: cannot be opened: it is not a regular file")
        try:
            with path.open("rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                start = file.read(len(_LFS_POINTER))
                if start == _LFS_POINTER:
                    raise CheckpointError(f"{path}: is a Git LFS pointer, not the file itself; run `git lfs pull`")
                if self.size < max(at_least, 1):
                    raise self.damaged(self.size, f"the file ends, before its header of at least {at_least} bytes does")
                self._map: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: the file shrank to nothing in between
            raise CheckpointError(f"{path}: cannot be opened: {error}") from error

    @property
    def buffer(self) -> mmap.mmap:
        if self._map is None:
            raise CheckpointError(f"{self.path}: was released; open the checkpoint again to read more")
        return self._map

    def view(self, start: int, size: int) -> NDArray[np.uint8]:
        """Bytes start … start + size, which the caller has checked to lie in the file; keeps the map alive."""
        if size == 0:  # numpy refuses an empty view at the very end
            return np.empty(0, np.uint8)
        return np.frombuffer(self.buffer, np.uint8, size, start)

    def damaged(self, offset: int, why: str) -> CheckpointError:
        """The error for something wrong at byte `offset`."""
        return CheckpointError(f"{self.path}: at byte {offset}: {why}")

    def fingerprint(self) -> bytes:
        """A digest of the size and both ends of the file."""
        edge = min(_EDGE_BYTES, self.size)
        buffer = self.buffer
        return hashlib.sha256(b"%d:" % self.size + buffer[:edge] + buffer[self.size - edge :]).digest()

    def release(self) -> None:
        """Drop the resident pages and this object's hold on the map, which ends with the last view of it."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
        self._map = None
