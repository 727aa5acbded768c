from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    LAYOUTS,
    Array,
    assert_same,
    contents,
    core,
    empty,
    laid,
    on_core,
    refused,
    rejected,
    tile,
)

from nkisim import dtypes
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.matmul import nc_matmul_mx
from nkisim.isa.quantize import quantize_mx

PSUM = MemoryRegion.psum
E4M3, E5M2 = dtypes.float8_e4m3fn_x4, dtypes.float8_e5m2_x4
# exponent of the largest value, largest value, type of one value
FORMATS: dict[Any, tuple[int, float, Any]] = {
    E4M3: (8, 448.0, ml_dtypes.float8_e4m3fn),
    E5M2: (15, 57344.0, ml_dtypes.float8_e5m2),
}


def quantized(src: Array, dtype: Any, legacy: bool) -> tuple[Array, Array]:
    """Block by block in Python: the values `[P, 4 F]` and the scale bytes `[P // 8, F]`."""
    emax, largest, kind = FORMATS[dtype]
    P, W = src.shape
    values, scales = np.zeros((P, W), kind), np.zeros((P // 8, W // 4), np.uint8)
    for g in range(P // 8):
        for f in range(W // 4):
            block = [float(x) for x in src[8 * g : 8 * g + 8, 4 * f : 4 * f + 4].reshape(-1)]
            amax = max(abs(x) for x in block)
            exponent = -127
            if amax:
                floor = math.frexp(amax)[1] - 1
                exponent = max(floor - (emax if legacy else emax - 1), -127)
            scaled = [math.ldexp(x, -exponent) for x in block]
            if legacy:
                scaled = [min(max(x, -largest), largest) for x in scaled]
            part = np.array(scaled, np.float32).astype(kind).reshape(8, 4)
            values[8 * g : 8 * g + 8, 4 * f : 4 * f + 4] = part
            scales[g, f] = exponent + 127
    return values, scales


def rows_of(partitions: int, offset: int = 0) -> list[int]:
    """The partitions of a scale tile that count, from the table of the MX guide."""
    return [32 * q + offset + r for q in range(partitions // 32) for r in range(4)]


def source(seed: int, P: int, W: int, dtype: Any, spread: float = 3.0) -> Array:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((P, W)) * np.exp(rng.standard_normal((P, W)) * spread)
    values[rng.random((P, W)) < 0.1] = 0
    values[:8, :4] = 0
    found: Array = np.clip(values, -6e4, 6e4).astype(dtype.numpy)
    return found


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("kind", [dtypes.bfloat16, dtypes.float16])
@pytest.mark.parametrize(("P", "F"), [(32, 1), (64, 9), (96, 4), (128, 32)])
def test_quantize(legacy: bool, dtype: Any, kind: Any, P: int, F: int) -> None:
    src = source(P, P, 4 * F, kind)

    def body() -> tuple[Array, Array]:
        dst, scale = empty((P, F), dtype), tile(np.full((P, F), 77), dtypes.uint8)
        instruction = quantize_mx(dst, tile(src), scale)
        assert instruction.engine is Engine.vector
        return contents(dst), contents(scale)

    codes, scale = on_core(body, legacy_mx_scale=legacy)
    values, bytes_ = quantized(src.astype(np.float64), dtype, legacy)
    assert_same(codes.view(np.uint8), values.view(np.uint8))
    wanted = np.full((P, F), 77, np.uint8)
    wanted[rows_of(P)] = bytes_
    assert_same(scale, wanted)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([E4M3, E5M2]),
    st.booleans(),
    st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=40),
)
def test_any_finite_values(dtype: Any, legacy: bool, bits: list[int]) -> None:
    src = np.zeros((32, 4), np.uint16)
    src.reshape(-1)[: len(bits)] = bits
    values = src.view(ml_dtypes.bfloat16)
    values[~np.isfinite(values.astype(np.float32))] = 1

    def body() -> tuple[Array, Array]:
        dst, scale = empty((32, 1), dtype), empty((4, 1), dtypes.uint8)
        quantize_mx(dst, tile(values), scale)
        return contents(dst), contents(scale)

    codes, scale = on_core(body, legacy_mx_scale=legacy)
    wanted, bytes_ = quantized(values.astype(np.float64), dtype, legacy)
    assert_same(scale, bytes_)
    assert_same(codes.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_new_rule_leaves_room_and_the_old_one_saturates(dtype: Any) -> None:
    """The largest of a block lies in the upper half of the range; it used to be clipped."""
    emax, largest, kind = FORMATS[dtype]
    src = np.full((32, 4), 1.99, ml_dtypes.bfloat16)

    def body() -> tuple[Array, Array]:
        dst, scale = empty((32, 1), dtype), empty((4, 1), dtypes.uint8)
        quantize_mx(dst, tile(src), scale)
        return contents(dst), contents(scale)

    codes, scale = on_core(body)
    old_codes, old_scale = on_core(body, legacy_mx_scale=True)
    assert (scale == 127 - (emax - 1)).all()
    assert_same(old_scale, scale - 1)
    assert (codes.view(kind).astype(np.float32) < 2.0**emax * 1.01).all()
    assert (old_codes.view(kind).astype(np.float32) == largest).all()


def test_a_block_of_zeros() -> None:
    def body() -> tuple[Array, Array]:
        dst, scale = empty((32, 2), E4M3), empty((4, 2), dtypes.uint8)
        quantize_mx(dst, tile(np.zeros((32, 8)), dtypes.bfloat16), scale)
        return contents(dst), contents(scale)

    codes, scale = on_core(body)
    assert not codes.any() and not scale.any()


@pytest.mark.parametrize("offset", [0, 4, 8, 12])
@pytest.mark.parametrize("P", [32, 128])
@pytest.mark.parametrize("scale_dtype", [dtypes.uint8, dtypes.float8_e8m0fnu])
def test_scales_share_a_tile(offset: int, P: int, scale_dtype: Any) -> None:
    """Four tensors pack their scales into one tile; each leaves the rows of the others alone."""
    src = source(5, P, 24, dtypes.bfloat16)

    def body() -> tuple[Array, Array]:
        dst = empty((P, 6), E4M3)
        shared = tile(np.full((128, 10), 1), dtypes.uint8).view(scale_dtype)
        quantize_mx(dst, tile(src), shared[offset : offset + (P - 32) + 4, 2:8])
        return contents(dst), contents(shared.view(dtypes.uint8))

    codes, shared = on_core(body)
    values, bytes_ = quantized(src.astype(np.float64), E4M3, False)
    wanted = np.ones((128, 10), np.uint8)
    wanted[rows_of(P, offset), 2:8] = bytes_
    assert_same(shared, wanted)
    assert_same(codes.view(np.uint8), values.view(np.uint8))


@pytest.mark.parametrize("first", [32, 64, 96])
def test_one_quadrant_of_a_tile(first: int) -> None:
    src = source(first, 128, 8, dtypes.float16)

    def body() -> tuple[Array, Array]:
        dst = tile(np.zeros((128, 2)), dtypes.uint32).view(E5M2)
        scale = tile(np.full((128, 2), 9), dtypes.uint8)
        rows = slice(first, first + 32)
        quantize_mx(dst[rows], tile(src)[rows], scale[rows])
        return contents(dst), contents(scale)

    codes, scale = on_core(body)
    part, bytes_ = quantized(src[first : first + 32].astype(np.float64), E5M2, False)
    wanted = np.full((128, 2), 9, np.uint8)
    wanted[first : first + 4] = bytes_
    assert_same(scale, wanted)
    assert_same(codes[first : first + 32].view(np.uint8), part.view(np.uint8))
    assert not np.delete(codes, range(first, first + 32), axis=0).any()


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "psum"])
def test_layouts(layout: str) -> None:
    src = source(1, 64, 24, dtypes.bfloat16).astype(np.float64)

    def body() -> tuple[Array, Array]:
        dst = laid(np.zeros((64, 6)), dtypes.uint32, layout).view(E4M3)
        scale = laid(np.zeros((64, 6)), dtypes.uint8, "strided")
        quantize_mx(dst, laid(src, dtypes.bfloat16, layout), scale)
        return contents(dst), contents(scale)

    codes, scale = on_core(body)
    values, bytes_ = quantized(src, E4M3, False)
    assert_same(codes.view(np.uint8), values.view(np.uint8))
    assert_same(scale[rows_of(64)], bytes_)


def test_unused_rows_of_a_scale_tile_stay_unwritten() -> None:
    def body() -> list[tuple[int, int]]:
        scale = empty((128, 4), dtypes.uint8)
        src = tile(np.ones((128, 16)), dtypes.bfloat16)
        instruction = quantize_mx(empty((128, 4), E4M3), src, scale)
        assert not scale.storage.was_written(scale[4:8].access())
        assert scale.storage.was_written(scale[96:100].access())
        return [(access.p0, access.p1) for access in instruction.writes[1:]]

    assert on_core(body) == [(0, 4), (32, 36), (64, 68), (96, 100)]


@pytest.mark.parametrize("dtype", FORMATS)
def test_quantize_then_multiply(dtype: Any) -> None:
    """Both operands quantised into one scale tile; the product is that of the stored values."""
    left, right = source(1, 64, 32, dtypes.bfloat16, 0.5), source(2, 64, 48, dtypes.bfloat16, 0.5)

    def body() -> Array:
        scales = empty((128, 12), dtypes.uint8)
        stationary, moving = empty((64, 8), dtype), empty((64, 12), dtype)
        quantize_mx(stationary, tile(left), scales[0:64, 0:8])
        quantize_mx(moving, tile(right), scales[4:40, 0:12])
        dst = empty((8, 12), region=PSUM)
        nc_matmul_mx(dst, stationary, moving, scales[0:64, 0:8], scales[4:40])
        return contents(dst)

    def restored(src: Array) -> Array:
        values, scale = quantized(src.astype(np.float64), dtype, False)
        factors = 2.0 ** (scale.astype(np.float64) - 127)
        wide = values.astype(np.float64) * factors.repeat(8, 0).repeat(4, 1)
        return wide.reshape(64, -1, 4)

    wanted = np.einsum("kiq,kjq->ij", restored(left), restored(right))
    found = on_core(body)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-5 * np.abs(wanted).max())


def test_what_quantize_mx_rejects() -> None:
    bf16, u8 = dtypes.bfloat16, dtypes.uint8

    def call(dst: Any = None, src: Any = None, scale: Any = None) -> Any:
        return quantize_mx(
            empty((32, 2), E4M3) if dst is None else dst,
            tile(np.ones((32, 8)), bf16) if src is None else src,
            empty((32, 2), u8) if scale is None else scale,
        )

    def ones(shape: tuple[int, ...], dtype: Any = bf16, region: Any = MemoryRegion.sbuf) -> Any:
        return tile(np.ones(shape), dtype, region)

    what = "quantize_mx: "
    on_core(call)
    rejected(call, "quantize_mx", "gen4", "gen3", target="gen3")
    rejected(lambda: call(src=ones((32, 8), dtypes.float32)), what + "src is float32", "bfloat16")
    fp4 = dtypes.float4_e2m1fn_x4
    rejected(lambda: call(empty((32, 2), fp4)), what + "dst is float4_e2m1fn_x4", "e5m2_x4")
    rejected(lambda: call(empty((32, 2), dtypes.uint32)), what + "dst is uint32", "e5m2_x4")
    rejected(lambda: call(scale=empty((32, 2), dtypes.int8)), what + "dst_scale is int8", "uint8")
    rejected(lambda: call(src=ones((16, 8))), what + "src has 16 partitions", "multiple of 32")
    rejected(lambda: call(src=ones((32, 6))), what + "src has 6 elements", "multiple of 4")
    rejected(lambda: call(empty((32, 3), E4M3)), what + "dst", "2 elements")
    rejected(lambda: call(empty((64, 2), E4M3)), what + "dst", "32 partitions")
    rejected(lambda: call(scale=empty((3, 2), u8)), what + "dst_scale", "at least 4 partitions")
    rejected(lambda: call(scale=empty((32, 1), u8)), what + "dst_scale", "2 elements")
    rejected(lambda: call(scale=empty((32, 2), u8)[2:6]), what + "dst_scale", "partition 2")
    rejected(lambda: call(scale=empty((32, 2), u8)[16:20]), what + "dst_scale", "partition 16")
    rejected(lambda: call(src=ones((32, 8), bf16, PSUM)), what + "src", "SBUF")
    rejected(lambda: call(empty((32, 2), E4M3, PSUM)), what + "dst", "SBUF")
    rejected(lambda: call(scale=empty((32, 2), u8, PSUM)), what + "dst_scale", "SBUF")
    rejected(lambda: call(src=empty((32, 8), bf16)), what + "src", "nothing has written")
    refused(lambda: call(scale=np.ones((32, 2), np.uint8)), what + "dst_scale", "tensor")

    def short() -> None:
        src = ones((128, 8))
        quantize_mx(empty((128, 2), E4M3), src, empty((99, 2), u8))

    rejected(short, what + "dst_scale", "at least 100 partitions")


def test_a_run_without_numerics_only_records() -> None:
    def body() -> int:
        before = core().progress
        quantize_mx(
            empty((32, 2), E4M3),
            tile(np.ones((32, 8)), dtypes.bfloat16),
            empty((4, 2), dtypes.uint8),
        )
        return core().progress - before

    assert on_core(body, numerics=False) == 1
