"""A weight as it lies in a checkpoint file: raw bytes in a named format, not yet unpacked or packed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Weight:
    """`data` is a zero-copy uint8 view of the file's map: rows of `shape[-1]` elements, whole blocks of `format`."""

    name: str  # the plan's name
    format: str  # a row of `weights.formats.FORMATS`
    shape: tuple[int, ...]  # [out, in] or [n]
    data: NDArray[np.uint8]  # 1-D
    row_order: NDArray[np.int32] | None = None  # row r of the weight is row row_order[r] of `data`
