"""`formats` against the `gguf` package, which is the reference for every format."""

from __future__ import annotations

import gguf
import gguf.quants
import numpy as np
import pytest
from numpy.typing import NDArray

from ramet.errors import CheckpointError, ConfigError
from ramet.weights.formats import FORMATS, dequantize, quantize
from ramet.weights.tensor import Weight

PACKABLE = [name for name, fmt in FORMATS.items() if fmt.pack is not None]


def _reference_type(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name.upper()]


def _random_bytes(name: str, rows: int, columns: int, seed: int = 7) -> NDArray[np.uint8]:
    size = rows * FORMATS[name].row_bytes(columns)
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def _same_bits(left: NDArray[np.float32], right: NDArray[np.float32]) -> bool:
    return bool(np.array_equal(np.ascontiguousarray(left).view(np.uint32), np.ascontiguousarray(right).view(np.uint32)))


@pytest.mark.parametrize("name", FORMATS)
def test_sizes_and_codes_are_those_of_gguf(name: str) -> None:
    fmt = FORMATS[name]
    assert _reference_type(name).value == fmt.gguf_type
    assert gguf.GGML_QUANT_SIZES[_reference_type(name)] == (fmt.block_elements, fmt.block_bytes)


@pytest.mark.parametrize("name", FORMATS)
def test_random_bytes_unpack_to_the_reference_bits(name: str) -> None:
    rows, columns = 1100, 512  # more than two chunks; random scales include infinities and NaNs
    data = _random_bytes(name, rows, columns)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(data.reshape(rows, -1), _reference_type(name))
    assert _same_bits(dequantize(Weight("w", name, (rows, columns), data)), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_row_order_reorders_rows(name: str) -> None:
    data = _random_bytes(name, 6, 256)
    order = np.array([5, 0, 4, 1, 3, 2], np.int32)
    plain = dequantize(Weight("w", name, (6, 256), data))
    assert _same_bits(dequantize(Weight("w", name, (6, 256), data, order)), plain[order])


def test_row_order_of_a_vector_reorders_elements() -> None:
    values = np.arange(4, dtype=np.float32)
    order = np.array([2, 0, 3, 1], np.int32)
    assert dequantize(Weight("b", "f32", (4,), values.view(np.uint8), order)).tolist() == [2, 0, 3, 1]


def test_data_may_be_unaligned_in_its_file() -> None:
    values = np.linspace(-1, 1, 64, dtype=np.float32)
    file = np.concatenate([np.zeros(3, np.uint8), values.view(np.uint8)])
    assert _same_bits(dequantize(Weight("w", "f32", (2, 32), file[3:])), values.reshape(2, 32))


@pytest.mark.parametrize("name", PACKABLE)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 3e4])
def test_quantize_gives_the_reference_bytes(name: str, scale: float) -> None:
    values = (np.random.default_rng(11).standard_normal((40, 320)) * scale).astype(np.float32)
    values[0, :32] = 0  # an all-zero block has scale zero
    values[1, :32] = values[1, 0]  # as does one without a spread
    values[2, :64] = np.round(values[2, :64] * 4) / 8  # ties
    with np.errstate(all="ignore"):
        expected = gguf.quants.quantize(values, _reference_type(name))
    assert quantize(values, name).tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", PACKABLE)
def test_quantize_then_dequantize_is_close(name: str) -> None:
    values = np.random.default_rng(3).uniform(-1, 1, (8, 64)).astype(np.float32)
    back = dequantize(Weight("w", name, (8, 64), quantize(values, name)))
    step = {"f32": 0.0, "f16": 5e-4, "bf16": 4e-3, "q8_0": 1 / 120, "q5_0": 1 / 14, "q5_1": 1 / 14}.get(name, 1 / 7)
    assert np.abs(back - values).max() <= step


def test_bf16_keeps_nan_a_nan() -> None:
    values = np.array([np.nan, np.inf, -np.inf, np.finfo(np.float32).max], np.float32)
    back = dequantize(Weight("w", "bf16", (4,), quantize(values, "bf16")))
    assert np.isnan(back[0])
    assert back[1:].tolist() == [np.inf, -np.inf, np.inf]


def test_k_quants_are_only_read() -> None:
    with pytest.raises(ConfigError, match="does not quantise"):
        quantize(np.zeros((1, 256), np.float32), "q4_k")


@pytest.mark.parametrize("name", ["iq2_xxs", "mxfp4", "tq1_0"])
def test_other_formats_are_refused_by_name(name: str) -> None:
    with pytest.raises(CheckpointError, match=name):
        dequantize(Weight("w", name, (1, 256), np.zeros(64, np.uint8)))


def test_rows_must_be_whole_blocks_and_data_whole() -> None:
    with pytest.raises(CheckpointError, match="whole blocks"):
        dequantize(Weight("w", "q8_0", (1, 33), np.zeros(34, np.uint8)))
    with pytest.raises(CheckpointError, match="takes 68 bytes, not 34"):
        dequantize(Weight("w", "q8_0", (2, 32), np.zeros(34, np.uint8)))
