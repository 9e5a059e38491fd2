"""Hashes of what the gguf package makes of fixed bytes; prints the rows of kGolden in formats_test.cc."""

from __future__ import annotations

import gguf.quants
import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

NAMES = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K".split()
SCALES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
MADE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
ELEMENTS = 2048


def random_bytes(count: int, seed: int) -> npt.NDArray[np.uint8]:
    """The bytes of `Random` in random_weights.h."""
    out, state = np.empty(count, np.uint8), seed
    for i in range(count):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        out[i] = state >> 24
    return out


def random_weights(name: str, elements: int, seed: int) -> npt.NDArray[np.uint8]:
    per_block, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = random_bytes(elements // per_block * size, seed).reshape(-1, size)
    for first in SCALES.get(name, (0,) if per_block > 1 else (size - 2,)):
        blocks[:, first + 1] &= 0xBF
    return blocks.reshape(-1)


def random_floats(count: int, seed: int) -> npt.NDArray[np.float32]:
    pairs = random_bytes(2 * count, seed).astype(np.int32).reshape(-1, 2)
    values: npt.NDArray[np.float32] = ((pairs[:, 0] << 8 | pairs[:, 1]) - 32768).astype(np.float32) / np.float32(32768)
    return values


def fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def main() -> None:
    for index, name in enumerate(NAMES):
        kind = GGMLQuantizationType[name]
        read = gguf.quants.dequantize(random_weights(name, ELEMENTS, 11 + index), kind).astype("<f4")
        made = fnv1a(gguf.quants.quantize(random_floats(ELEMENTS, 77), kind).tobytes()) if name in MADE else 0
        print(f"    {{Format::k{name}, 0x{fnv1a(read.tobytes()):016x}u, 0x{made:016x}u}},")


if __name__ == "__main__":
    main()
