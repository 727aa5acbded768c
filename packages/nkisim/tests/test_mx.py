from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim import dtypes, mx
from nkisim.dtypes import DType
from nkisim.errors import NkiValidationError

# a kernel prints no warnings, however odd its numbers are
pytestmark = pytest.mark.filterwarnings("error")

FP8 = [dtypes.float8_e4m3fn_x4, dtypes.float8_e5m2_x4]
PACKED = [*FP8, dtypes.float4_e2m1fn_x4]
LARGEST = {dtypes.float8_e4m3fn_x4: 448.0, dtypes.float8_e5m2_x4: 57344.0}
EMAX = {dtypes.float8_e4m3fn_x4: 8, dtypes.float8_e5m2_x4: 15}


def decode(code: int, dtype: DType) -> float:
    """A code by the definition of its format: sign, exponent, mantissa."""
    exponent_bits, mantissa_bits, bias = {
        dtypes.float8_e4m3fn_x4: (4, 3, 7),
        dtypes.float8_e5m2_x4: (5, 2, 15),
        dtypes.float4_e2m1fn_x4: (2, 1, 1),
    }[dtype]
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = code & (1 << mantissa_bits) - 1
    if dtype is dtypes.float8_e4m3fn_x4 and code & 0x7F == 0x7F:
        return math.nan
    if dtype is dtypes.float8_e5m2_x4 and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


@pytest.mark.parametrize("dtype", PACKED)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_values_of_elements(dtype: DType, data: st.DataObject) -> None:
    bits = 2 * dtype.itemsize
    elements = st.integers(0, (1 << 8 * dtype.itemsize) - 1)
    raw = data.draw(st.lists(elements, min_size=6, max_size=6))
    array = np.array(raw, dtype.numpy).reshape(2, 3)
    values = mx.unpack(array, dtype)
    assert values.dtype == np.float32 and values.shape == (2, 3, 4)
    expected = [
        [decode(element >> bits * q & (1 << bits) - 1, dtype) for q in range(4)] for element in raw
    ]
    np.testing.assert_array_equal(values.reshape(6, 4), np.array(expected, np.float32))
    # the sign of a NaN may be lost
    if not np.isnan(values).any():
        np.testing.assert_array_equal(mx.pack(values, dtype), array)
    np.testing.assert_array_equal(mx.unpack(array.T, dtype), values.transpose(1, 0, 2))


def test_first_value_is_the_lowest() -> None:
    fp4 = mx.unpack(np.array([0x7210], np.uint16), dtypes.float4_e2m1fn_x4)
    np.testing.assert_array_equal(fp4, [[0, 0.5, 1, 6]])
    codes = np.array([[0.0, 1.0, -2.0, 448.0]], ml_dtypes.float8_e4m3fn)
    fp8 = mx.unpack(codes.view(np.uint32)[:, 0], dtypes.float8_e4m3fn_x4)
    np.testing.assert_array_equal(fp8, [[0, 1, -2, 448]])


def test_packing_rounds_to_nearest_even() -> None:
    values = np.array([[0.25, 0.75, 2.5, 5.0]], np.float32)
    packed = mx.pack(values, dtypes.float4_e2m1fn_x4)
    np.testing.assert_array_equal(mx.unpack(packed, dtypes.float4_e2m1fn_x4), [[0, 1, 2, 4]])
    huge = mx.pack(np.full((1, 4), 1e30, np.float32), dtypes.float8_e4m3fn_x4)
    assert np.isnan(mx.unpack(huge, dtypes.float8_e4m3fn_x4)).all()


def test_packed_types_are_checked() -> None:
    with pytest.raises(NkiValidationError, match="MX data type is bfloat16.*float4_e2m1fn_x4"):
        mx.unpack(np.zeros(1, np.uint16), dtypes.bfloat16)
    with pytest.raises(NkiValidationError, match="stored as uint16, not as uint32"):
        mx.unpack(np.zeros(1, np.uint32), dtypes.float4_e2m1fn_x4)
    with pytest.raises(NkiValidationError, match="the last must be 4"):
        mx.pack(np.zeros((2, 3), np.float32), dtypes.float8_e5m2_x4)


# ---- scales ----


@pytest.mark.parametrize("offset", [0, 4, 8, 12])
def test_scale_rows_of_a_tile(offset: int) -> None:
    tile = np.arange(128, dtype=np.uint8)[:, None] + np.zeros((1, 3), np.uint8)
    expected = [32 * quadrant + offset + r for quadrant in range(4) for r in range(4)]
    for partitions in (32, 64, 96, 128):
        rows = mx.scale_rows(tile, partitions, offset)
        np.testing.assert_array_equal(rows[:, 2], expected[: partitions // 8])
        view = mx.scale_rows(tile[offset:].view(ml_dtypes.float8_e8m0fnu), partitions)
        np.testing.assert_array_equal(view, rows)


def test_scale_tile_of_four_rows() -> None:
    tile = np.arange(8, dtype=np.uint8).reshape(4, 2)
    np.testing.assert_array_equal(mx.scale_rows(tile, 32), tile)


def test_scale_tiles_are_checked() -> None:
    tile = np.zeros((8, 2), np.uint8)
    with pytest.raises(NkiValidationError, match="scale has 8 partitions.*need 36"):
        mx.scale_rows(tile, 64)
    with pytest.raises(NkiValidationError, match="need 12"):
        mx.scale_rows(tile, 32, 8)
    with pytest.raises(NkiValidationError, match="scale offset is 5.*0, 4, 8, 12"):
        mx.scale_rows(tile, 32, 5)
    with pytest.raises(NkiValidationError, match="20 partitions.*multiple of 8"):
        mx.scale_rows(tile, 20)
    with pytest.raises(NkiValidationError, match="int32"):
        mx.scale_rows(tile.astype(np.int32), 32)


# ---- the product ----


def random_operand(
    rng: np.random.Generator, K: int, F: int, dtype: DType
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    values = mx.unpack(mx.pack(rng.normal(size=(K, F, 4)) * 3, dtype), dtype)
    return values, rng.integers(115, 135, (K // 8, F), dtype=np.uint8)


def scaled(values: npt.NDArray[Any], scale: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    factor = np.array([[2.0 ** (int(e) - 127) for e in row] for row in scale])
    result: npt.NDArray[np.float64] = values * np.repeat(factor, 8, axis=0)[:, :, None]
    return result


@pytest.mark.parametrize("dtype", PACKED)
@pytest.mark.parametrize("K", [32, 64, 128])
def test_product(dtype: DType, K: int) -> None:
    rng = np.random.default_rng(K)
    a, a_scale = random_operand(rng, K, 6, dtype)
    b, b_scale = random_operand(rng, K, 5, dtypes.float8_e5m2_x4)
    exact = np.einsum("kiq,kjq->ij", scaled(a, a_scale), scaled(b, b_scale))
    size = np.einsum("kiq,kjq->ij", abs(scaled(a, a_scale)), abs(scaled(b, b_scale)))
    result = mx.matmul(a, b, a_scale, b_scale)
    assert result.dtype == np.float32
    assert (np.abs(result - exact) <= 2e-6 * size).all()
    again = mx.matmul(a, b, a_scale.view(ml_dtypes.float8_e8m0fnu), b_scale)
    np.testing.assert_array_equal(again, result)


def test_a_scale_reaches_its_block_only() -> None:
    ones = np.ones((64, 2, 4), np.float32)
    neutral = np.full((8, 2), 127, np.uint8)
    for block in range(8):
        scale = neutral.copy()
        scale[block, 1] = 128
        expected = [[256, 256], [256 + 32, 256 + 32]]
        np.testing.assert_array_equal(mx.matmul(ones, ones, scale, neutral), expected)
        np.testing.assert_array_equal(mx.matmul(ones, ones, neutral, scale), np.transpose(expected))


def test_scaled_rows_are_in_the_order_of_memory() -> None:
    values = np.arange(8 * 2 * 4, dtype=np.float32).reshape(8, 2, 4)
    rows = mx.scaled_rows(values, np.array([[127, 126]], np.uint8))
    for p in range(8):
        for q in range(4):
            expected = [values[p, 0, q], values[p, 1, q] / 2]
            np.testing.assert_array_equal(rows[4 * p + q], expected)


@pytest.mark.parametrize("dtype", PACKED)
def test_dequantized_rows_are_what_the_elements_stand_for(dtype: DType) -> None:
    rng = np.random.default_rng(1)
    values, scale = random_operand(rng, 64, 3, dtype)
    rows = mx.dequantized_rows(mx.pack(values, dtype), dtype, scale)
    assert rows.dtype == np.float32
    expected = scaled(values, scale).transpose(0, 2, 1).reshape(256, 3)
    np.testing.assert_array_equal(rows, expected)


def test_nan_scale_poisons_its_row() -> None:
    ones = np.ones((32, 3, 4), np.float32)
    scale = np.full((4, 2), 127, np.uint8)
    scale[2, 1] = 255
    neutral = np.full((4, 3), 127, np.uint8)
    for value, product in ((0.0, 0.0), (1.0, 128.0)):
        result = mx.matmul(np.full((32, 2, 4), value, np.float32), ones, scale, neutral)
        np.testing.assert_array_equal(result, [[product] * 3, [np.nan] * 3])


def test_extreme_scales() -> None:
    most = np.full((32, 1, 4), 57344, np.float32)
    up, down = np.full((4, 1), 254, np.uint8), np.full((4, 1), 0, np.uint8)
    # neither factor alone is a float32 here, and the product is
    np.testing.assert_array_equal(mx.matmul(most, most, up, down), [[128 * 57344.0**2]])
    np.testing.assert_array_equal(mx.matmul(most, most, up, up), [[np.inf]])
    least = np.full((32, 1, 4), 2.0**-9, np.float32)
    neutral = np.full((4, 1), 127, np.uint8)
    expected = [[128 * 2.0**-9 * 2.0**-127]]
    np.testing.assert_array_equal(mx.matmul(least, np.ones_like(least), down, neutral), expected)


# ---- quantisation ----


def statement(
    src: npt.NDArray[Any], dtype: DType, legacy: bool
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Block by block: the values that the codes stand for, and the scale bytes."""
    v = src.astype(np.float64)
    P, width = v.shape
    codes, scales = np.empty(v.shape, np.float32), np.empty((P // 8, width // 4), np.int64)
    for g in range(P // 8):
        for f in range(width // 4):
            block = np.s_[8 * g : 8 * g + 8, 4 * f : 4 * f + 4]
            amax = abs(v[block]).max()
            exponent = math.frexp(amax)[1] - 1 if amax else -1000
            exponent -= EMAX[dtype] - (0 if legacy else 1)
            exponent = min(max(exponent, -127), 127)
            values = v[block] / 2.0**exponent
            if legacy:
                values = values.clip(-LARGEST[dtype], LARGEST[dtype])
            codes[block] = values.astype(np.float32).astype(dtype.packed).astype(np.float32)
            scales[g, f] = exponent + 127
    return codes.reshape(P, width // 4, 4), scales


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("legacy", [False, True])
@settings(deadline=None, max_examples=40)
@given(
    source=st.sampled_from([np.float16, ml_dtypes.bfloat16]),
    seed=st.integers(0, 10000),
    spread=st.sampled_from([0, 4, 15, 60, 130]),
)
def test_quantisation(dtype: DType, legacy: bool, source: Any, seed: int, spread: int) -> None:
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-spread, spread + 1, (16, 12)).astype(np.float64)
    if source is np.float16:
        exponents = exponents.clip(-24, 12)
    exact = rng.normal(size=(16, 12)) * np.exp2(exponents.clip(-130, 120))
    src = np.where(rng.random((16, 12)) < 0.2, 0, exact).astype(source)
    codes, scales = statement(src, dtype, legacy)
    packed, result = mx.quantize(src, dtype, legacy)
    assert packed.dtype == np.uint32 and result.dtype == np.uint8
    np.testing.assert_array_equal(result, scales)
    np.testing.assert_array_equal(mx.unpack(packed, dtype), codes)


@pytest.mark.parametrize("dtype", FP8)
def test_newer_scale_is_twice_the_older_and_never_saturates(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    src = rng.normal(size=(128, 64)).astype(ml_dtypes.bfloat16)
    packed, scale = mx.quantize(src, dtype)
    older = mx.quantize(src, dtype, legacy=True)[1]
    np.testing.assert_array_equal(scale, older + 1)
    blocks = mx.unpack(packed, dtype).reshape(16, 8, 16, 4)
    largest = np.abs(blocks).max(axis=(1, 3))
    assert (largest >= 2.0 ** (EMAX[dtype] - 1)).all()
    assert (largest <= 2.0 ** EMAX[dtype]).all()
    # half a unit in the last place of the code, at the scale of the block
    step = 2.0 ** -(4 if dtype is dtypes.float8_e4m3fn_x4 else 3)
    values = scaled(blocks.reshape(128, 16, 4), scale).reshape(128, 64)
    amax = np.repeat(np.repeat(largest * 2.0 ** (scale - 127.0), 8, 0), 4, 1)
    assert (np.abs(values - src.astype(np.float64)) <= step * amax).all()


def test_powers_of_two_and_zeros() -> None:
    src = np.zeros((8, 12), ml_dtypes.bfloat16)
    src[3, 1], src[0, 7] = 1.0, -256.0
    _, scale = mx.quantize(src, dtypes.float8_e4m3fn_x4)
    np.testing.assert_array_equal(scale, [[127 - 7, 127 + 8 - 7, 0]])


@pytest.mark.parametrize("legacy", [False, True])
def test_infinity_and_nan_do_not_vanish(legacy: bool) -> None:
    src = np.ones((8, 4), ml_dtypes.bfloat16)
    src[0, 0], src[1, 1] = np.inf, np.nan
    for dtype in FP8:
        packed, scale = mx.quantize(src, dtype, legacy)
        assert scale[0, 0] == 255 - EMAX[dtype] + (0 if legacy else 1)
        values = mx.unpack(packed, dtype).reshape(8, 4)
        assert np.isnan(values[1, 1]) and values[2, 2] == 0
        if legacy:
            assert values[0, 0] == LARGEST[dtype]
        else:
            assert not np.isfinite(values[0, 0])


def test_quantisation_is_checked() -> None:
    src = np.ones((8, 6), np.float16)
    with pytest.raises(NkiValidationError, match="cannot give float4_e2m1fn_x4"):
        mx.quantize(src, dtypes.float4_e2m1fn_x4)
    with pytest.raises(NkiValidationError, match=r"src is \[8, 6\]"):
        mx.quantize(src, dtypes.float8_e4m3fn_x4)


def test_quantised_product_of_a_row_scaled_activation() -> None:
    """Per-row fp8 codes with neutral block scales, against the dense product (ROW_MX)."""
    rng = np.random.default_rng(3)
    H, S, width = 128, 5, 7
    activation, weight = rng.normal(size=(S, H)), rng.normal(size=(H, width))
    row_scale = np.abs(activation).max(1, keepdims=True) / 448
    codes = (activation / row_scale).astype(ml_dtypes.float8_e4m3fn)
    weights = weight.astype(ml_dtypes.float8_e4m3fn)
    # logical row h = 4 k + q is value q of partition k
    words = np.ascontiguousarray(codes).view(np.uint32).T
    stationary = mx.unpack(words, dtypes.float8_e4m3fn_x4)
    moving = weights.astype(np.float32).reshape(H // 4, 4, width).transpose(0, 2, 1)
    neutral = np.full((H // 32, 512), 127, np.uint8)
    product = mx.matmul(stationary, moving, neutral[:, :S], neutral[:, :width])
    dense = (codes.astype(np.float64) * row_scale) @ weights.astype(np.float64)
    np.testing.assert_allclose(product * row_scale, dense, rtol=1e-5, atol=1e-5)
