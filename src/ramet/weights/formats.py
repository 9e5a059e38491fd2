"""Every weight format ramet reads: sizes, codes, and its exact meaning in float32.

One row of `FORMATS` per format. Byte layouts are GGUF's. `dequantize` is the definition that kernels are tested
against; it equals the `gguf` package bit for bit (same float32 operations in the same order), NaNs included.

In the comments a block is drawn as its fields in file order; `n` is the number of blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ramet.errors import CheckpointError, ConfigError
from ramet.weights.tensor import Weight

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

# Blocks unpacked at a time: at most 1 MiB of float32 results, so that the temporaries stay in the second-level cache.
_CHUNK_ELEMENTS: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Format:
    """`unpack` turns uint8 [n, block_bytes] into float32 [n, block_elements]; `pack` is its inverse, if any."""

    name: str
    block_bytes: int
    block_elements: int
    gguf_type: int
    safetensors_dtype: str | None
    unpack: Callable[[U8], F32]
    pack: Callable[[F32], U8] | None

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row. Raises `CheckpointError` if it is not a whole number of blocks."""
        blocks, rest = divmod(elements, self.block_elements)
        if rest:
            raise CheckpointError(
                f"{self.name}: a row of {elements} elements is not whole blocks of {self.block_elements}"
            )
        return blocks * self.block_bytes

    def tensor_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor whose last dimension is contiguous."""
        return prod(shape[:-1]) * self.row_bytes(shape[-1] if shape else 1)


def get_format(name: str) -> Format:
    """The row of `FORMATS` called `name`. Raises `CheckpointError` naming what exists."""
    found = FORMATS.get(name)
    if found is None:
        raise CheckpointError(f"weight format {name} is not supported; ramet reads {', '.join(FORMATS)}")
    return found


def dequantize(weight: Weight) -> F32:
    """The weight's values, float32 of `weight.shape`, with `row_order` applied.

    Raises `CheckpointError` if the data is not exactly the bytes that shape and format ask for.
    """
    fmt = get_format(weight.format)
    expected = fmt.tensor_bytes(weight.shape)
    if weight.data.nbytes != expected:
        raise CheckpointError(
            f"{weight.name}: {weight.format} {list(weight.shape)} takes {expected} bytes, not {weight.data.nbytes}"
        )
    data = weight.data
    if weight.row_order is not None:
        # For a vector (a bias) every element is a row.
        data = data.reshape(weight.shape[0], -1)[weight.row_order].reshape(-1)
    blocks = data.reshape(-1, fmt.block_bytes)
    out = np.empty((blocks.shape[0], fmt.block_elements), np.float32)
    step = max(1, _CHUNK_ELEMENTS // fmt.block_elements)
    with np.errstate(invalid="ignore", over="ignore"):  # a damaged scale may be infinite or NaN; so is then its block
        for start in range(0, blocks.shape[0], step):
            out[start : start + step] = fmt.unpack(np.ascontiguousarray(blocks[start : start + step]))
    return out.reshape(weight.shape)


def quantize(array: F32, format: str) -> U8:
    """Pack float32 values into `format`, rows of `array.shape[-1]`; returns flat bytes, those of the `gguf` package.

    Raises `ConfigError` for a format that ramet only reads (the k-quants), `CheckpointError` for rows of broken blocks.
    """
    fmt = get_format(format)
    if fmt.pack is None:
        can = ", ".join(f.name for f in FORMATS.values() if f.pack is not None)
        raise ConfigError(f"ramet reads {format} but does not quantise to it; choose one of {can}")
    fmt.row_bytes(array.shape[-1])  # whole blocks, or an error
    blocks = np.ascontiguousarray(array, np.float32).reshape(-1, fmt.block_elements)
    out = np.empty((blocks.shape[0], fmt.block_bytes), np.uint8)
    step = max(1, _CHUNK_ELEMENTS // fmt.block_elements)
    for start in range(0, blocks.shape[0], step):
        out[start : start + step] = fmt.pack(blocks[start : start + step])
    return out.reshape(-1)


# --- fields of a block ------------------------------------------------------------------------------------------------


def _half(blocks: U8, at: int) -> F32:
    """The float16 at byte `at` of every block, float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _bits(packed: U8, width: int, run: int) -> U8:
    """Split bytes into 8/width numbers: of every `run` bytes first all the low ones, then the next; [n, -1]."""
    shifts = np.arange(0, 8, width, dtype=np.uint8).reshape(1, 1, -1, 1)
    numbers: U8 = (packed.reshape(len(packed), -1, 1, run) >> shifts) & np.uint8((1 << width) - 1)
    return numbers.reshape(len(packed), -1)


def _fifth_bits(blocks: U8, at: int) -> U8:
    """32 flags at byte `at`, bit i for element i, as 0 or 16; [n, 32]."""
    flags: U8 = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << np.uint8(4)
    return flags


def _scaled(scale: F32, values: NDArray[np.int8] | U8, groups: int) -> F32:
    """scale [n, groups] times values [n, m] by group; [n, groups, m / groups]."""
    return scale.reshape(len(scale), groups, 1) * values.astype(np.float32).reshape(len(scale), groups, -1)


# --- plain numbers ----------------------------------------------------------------------------------------------------


def _unpack_f32(blocks: U8) -> F32:
    return blocks.view(np.float32)


def _unpack_f16(blocks: U8) -> F32:
    return blocks.view(np.float16).astype(np.float32)


def _unpack_bf16(blocks: U8) -> F32:
    bits: NDArray[np.uint32] = blocks.view(np.uint16).astype(np.uint32) << np.uint32(16)
    return bits.view(np.float32)


def _pack_f32(values: F32) -> U8:
    return values.view(np.uint8)


def _pack_f16(values: F32) -> U8:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint8)


def _pack_bf16(values: F32) -> U8:
    bits = values.view(np.uint32)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    # Nearest even: half a unit less one, plus one if the kept part is odd. The sum of any number that is not NaN fits.
    rounded = np.where(nan, 0, bits) + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    quiet = bits | np.uint32(0x400000)
    kept: NDArray[np.uint32] = np.where(nan, quiet, rounded) >> np.uint32(16)
    return kept.astype(np.uint16).view(np.uint8)


# --- blocks of 32 -----------------------------------------------------------------------------------------------------


def _unpack_q4_0(blocks: U8) -> F32:  # scale, 16 bytes of nibbles
    values: NDArray[np.int8] = _bits(blocks[:, 2:], 4, 16).astype(np.int8) - np.int8(8)
    return _half(blocks, 0) * values.astype(np.float32)


def _unpack_q4_1(blocks: U8) -> F32:  # scale, minimum, 16 bytes of nibbles
    return _half(blocks, 0) * _bits(blocks[:, 4:], 4, 16).astype(np.float32) + _half(blocks, 2)


def _unpack_q5_0(blocks: U8) -> F32:  # scale, 32 fifth bits, 16 bytes of nibbles
    whole = _bits(blocks[:, 6:], 4, 16) | _fifth_bits(blocks, 2)
    values: NDArray[np.int8] = whole.astype(np.int8) - np.int8(16)
    return _half(blocks, 0) * values.astype(np.float32)


def _unpack_q5_1(blocks: U8) -> F32:  # scale, minimum, 32 fifth bits, 16 bytes of nibbles
    values = _bits(blocks[:, 8:], 4, 16) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * values.astype(np.float32) + _half(blocks, 2)


def _unpack_q8_0(blocks: U8) -> F32:  # scale, 32 int8
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def _inverse(scale: F32) -> F32:
    with np.errstate(divide="ignore"):
        inverse: F32 = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    return inverse


def _half_bytes(values: F32) -> U8:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint8)


def _nibbles(values: U8) -> U8:
    packed: U8 = (values[:, :16] & np.uint8(15)) | (values[:, 16:] << np.uint8(4))
    return packed


def _pack_fifth_bits(values: U8) -> U8:
    return np.packbits(values >> np.uint8(4), axis=1, bitorder="little")


def _round_symmetric(values: F32, levels: int) -> tuple[F32, U8]:
    """Scale that maps the value of largest magnitude, sign included, to -levels/2; numbers 0 … levels - 1."""
    top = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)
    scale = top / np.float32(-(levels // 2))
    numbers = np.trunc(values * _inverse(scale) + np.float32(levels // 2 + 0.5))
    return scale, numbers.astype(np.uint8).clip(0, levels - 1)


def _round_from_minimum(values: F32, levels: int) -> tuple[F32, F32, U8]:
    """Scale and minimum that spread the block over 0 … levels - 1."""
    low = values.min(axis=1, keepdims=True)
    scale = (values.max(axis=1, keepdims=True) - low) / np.float32(levels - 1)
    numbers = np.trunc((values - low) * _inverse(scale) + np.float32(0.5))
    return scale, low, numbers.astype(np.uint8).clip(0, levels - 1)


def _pack_q4_0(values: F32) -> U8:
    scale, numbers = _round_symmetric(values, 16)
    return np.concatenate([_half_bytes(scale), _nibbles(numbers)], axis=1)


def _pack_q4_1(values: F32) -> U8:
    scale, low, numbers = _round_from_minimum(values, 16)
    return np.concatenate([_half_bytes(scale), _half_bytes(low), _nibbles(numbers)], axis=1)


def _pack_q5_0(values: F32) -> U8:
    scale, numbers = _round_symmetric(values, 32)
    return np.concatenate([_half_bytes(scale), _pack_fifth_bits(numbers), _nibbles(numbers)], axis=1)


def _pack_q5_1(values: F32) -> U8:
    scale, low, numbers = _round_from_minimum(values, 32)
    parts = [_half_bytes(scale), _half_bytes(low), _pack_fifth_bits(numbers), _nibbles(numbers)]
    return np.concatenate(parts, axis=1)


def _pack_q8_0(values: F32) -> U8:
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = values * _inverse(scale)
    size = np.abs(scaled)
    whole = np.floor(size)
    rounded = np.sign(scaled) * (whole + np.floor(np.float32(2) * (size - whole)))  # halves away from zero, as ggml
    return np.concatenate([_half_bytes(scale), rounded.astype(np.int8).view(np.uint8)], axis=1)


# --- super-blocks of 256: groups with their own small scales under one float16 scale ----------------------------------


def _unpack_q2_k(blocks: U8) -> F32:  # 16 bytes (scale low, minimum high nibble), 64 bytes of 2 bits, scale, minimum
    scale = _half(blocks, 80) * (blocks[:, :16] & np.uint8(15)).astype(np.float32)
    low = _half(blocks, 82) * (blocks[:, :16] >> np.uint8(4)).astype(np.float32)
    values: F32 = _scaled(scale, _bits(blocks[:, 16:80], 2, 32), 16) - low[:, :, None]
    return values.reshape(-1, 256)


def _unpack_q3_k(
    blocks: U8,
) -> F32:  # 32 bytes of third bits, 64 of 2 bits, 12 of scales of 6 bits, scale
    scales = _bits(blocks[:, 96:104], 4, 8) | (_bits(blocks[:, 104:108], 2, 4) << np.uint8(4))
    scale = _half(blocks, 108) * (scales.astype(np.int8) - np.int8(32)).astype(np.float32)
    lacks_third = _bits(blocks[:, :32], 1, 32) ^ np.uint8(1)  # a clear bit takes 4 away
    values = _bits(blocks[:, 32:96], 2, 32).astype(np.int8) - (lacks_third << np.uint8(2)).astype(np.int8)
    return _scaled(scale, values, 16).reshape(-1, 256)


def _k_scales(blocks: U8) -> tuple[F32, F32]:
    """Eight scales and eight minima of 6 bits in the 12 bytes from byte 4, times the block's two floats; [n, 8] each.

    Bytes 0-3: scales 0-3; 4-7: minima 0-3 (6 low bits each); their two top bits go above the nibbles of bytes 8-11,
    which are scales 4-7 (low) and minima 4-7 (high).
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    low6, top2 = np.uint8(0x3F), np.uint8(0x30)
    scales = np.concatenate([first & low6, (third & np.uint8(15)) | ((first >> np.uint8(2)) & top2)], axis=1)
    minima = np.concatenate([second & low6, (third >> np.uint8(4)) | ((second >> np.uint8(2)) & top2)], axis=1)
    return _half(blocks, 0) * scales.astype(np.float32), _half(blocks, 2) * minima.astype(np.float32)


def _unpack_q4_k(blocks: U8) -> F32:  # scale, minimum, 12 bytes of small ones, 128 bytes of nibbles
    scale, low = _k_scales(blocks)
    return (_scaled(scale, _bits(blocks[:, 16:], 4, 32), 8) - low[:, :, None]).reshape(-1, 256)


def _unpack_q5_k(blocks: U8) -> F32:  # as q4_k, with 32 bytes of fifth bits before the nibbles
    scale, low = _k_scales(blocks)
    values = _bits(blocks[:, 48:], 4, 32) | (_bits(blocks[:, 16:48], 1, 32) << np.uint8(4))
    return (_scaled(scale, values, 8) - low[:, :, None]).reshape(-1, 256)


def _unpack_q6_k(blocks: U8) -> F32:  # 128 bytes of nibbles, 64 bytes of 2 bits, 16 int8 scales, scale
    scale = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    values = _bits(blocks[:, :128], 4, 64) | (_bits(blocks[:, 128:192], 2, 32) << np.uint8(4))
    return _scaled(scale, values.astype(np.int8) - np.int8(32), 16).reshape(-1, 256)


FORMATS: Final[dict[str, Format]] = {
    row.name: row
    for row in (
        # name, block bytes, block elements, GGUF type, safetensors dtype, unpack, pack
        Format("f32", 4, 1, 0, "F32", _unpack_f32, _pack_f32),
        Format("f16", 2, 1, 1, "F16", _unpack_f16, _pack_f16),
        Format("bf16", 2, 1, 30, "BF16", _unpack_bf16, _pack_bf16),
        Format("q4_0", 18, 32, 2, None, _unpack_q4_0, _pack_q4_0),
        Format("q4_1", 20, 32, 3, None, _unpack_q4_1, _pack_q4_1),
        Format("q5_0", 22, 32, 6, None, _unpack_q5_0, _pack_q5_0),
        Format("q5_1", 24, 32, 7, None, _unpack_q5_1, _pack_q5_1),
        Format("q8_0", 34, 32, 8, None, _unpack_q8_0, _pack_q8_0),
        Format("q2_k", 84, 256, 10, None, _unpack_q2_k, None),
        Format("q3_k", 110, 256, 11, None, _unpack_q3_k, None),
        Format("q4_k", 144, 256, 12, None, _unpack_q4_k, None),
        Format("q5_k", 176, 256, 13, None, _unpack_q5_k, None),
        Format("q6_k", 210, 256, 14, None, _unpack_q6_k, None),
    )
}
