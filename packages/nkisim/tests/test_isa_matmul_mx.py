from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from isa_tiles import (
    Array,
    assert_same,
    contents,
    core,
    empty,
    on_core,
    refused,
    rejected,
    tile,
)
from matmul_tiles import (
    BF16,
    FP16,
    PSUM,
    ones,
    psum,
    tile_of,
)

from nkisim import dtypes
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.matmul import nc_matmul, nc_matmul_mx
from nkisim.isa.vector import memset

pytestmark = pytest.mark.filterwarnings("error")


MX_KINDS: dict[Any, tuple[Any, float]] = {
    dtypes.float8_e4m3fn_x4: (ml_dtypes.float8_e4m3fn, 448.0),
    dtypes.float8_e5m2_x4: (ml_dtypes.float8_e5m2, 57344.0),
    dtypes.float4_e2m1fn_x4: (ml_dtypes.float4_e2m1fn, 6.0),
}
FP4 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def mx_values(seed: int, K: int, columns: int, dtype: Any) -> tuple[Array, Array]:
    """Elements [K, columns] as stored, and the values [K, columns, 4] that they hold."""
    rng = np.random.default_rng(seed)
    kind, _ = MX_KINDS[dtype]
    if dtype is dtypes.float4_e2m1fn_x4:
        nibbles = rng.integers(0, 16, (K, columns, 4))
        stored_bits = sum(nibbles[..., q] << (4 * q) for q in range(4)).astype(np.uint16)
        return stored_bits, np.array(FP4)[nibbles]
    values = (rng.standard_normal((K, columns, 4)) * 4).astype(kind)
    return values.view(np.uint32)[..., 0], values.astype(np.float64)


def mx_product(left: Array, right: Array, left_scale: Array, right_scale: Array) -> Array:
    """Values [K, n, 4], scale bytes [K // 8, n]; block after block in float64."""
    total = np.zeros((left.shape[1], right.shape[1]))
    for g in range(left.shape[0] // 8):
        rows = slice(8 * g, 8 * g + 8)
        part = np.einsum("kiq,kjq->ij", left[rows], right[rows])
        exponents = left_scale[g][:, None].astype(int) + right_scale[g][None, :].astype(int) - 254
        total += part * 2.0**exponents
    return total


def spread(rows: Array, partitions: int, offset: int, fill: int = 200) -> Array:
    """Scale bytes [K // 8, F] where the hardware looks for them in a tile of `partitions`."""
    whole = np.full((partitions, rows.shape[1]), fill, np.uint8)
    for g, row in enumerate(rows):
        whole[32 * (g // 4) + offset + g % 4] = row
    return whole


@pytest.mark.parametrize("a", MX_KINDS)
@pytest.mark.parametrize("b", MX_KINDS)
@pytest.mark.parametrize("K", [32, 64, 96, 128])
def test_matmul_mx(a: Any, b: Any, K: int) -> None:
    rng = np.random.default_rng(K)
    left, left_values = mx_values(1, K, 10, a)
    right, right_values = mx_values(2, K, 30, b)
    left_scale = rng.integers(120, 135, (K // 8, 10), np.uint8)
    right_scale = rng.integers(120, 135, (K // 8, 30), np.uint8)

    def body() -> tuple[Array, Array]:
        dst, narrow = psum((10, 30)), psum((10, 30), BF16)
        scales = [tile(spread(s, K, 0)) for s in (left_scale, right_scale)]
        instruction = nc_matmul_mx(dst, tile_of(left, a), tile_of(right, b), *scales)
        assert instruction.engine is Engine.tensor
        nc_matmul_mx(narrow, tile_of(left, a), tile_of(right, b), *scales)
        return contents(dst), contents(narrow)

    wanted = mx_product(left_values, right_values, left_scale, right_scale)
    size = mx_product(np.abs(left_values), np.abs(right_values), left_scale, right_scale)
    found, narrow = on_core(body)
    assert (np.abs(found - wanted) <= 1e-6 * size).all()
    assert_same(narrow, found.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("K", [32, 128])
@pytest.mark.parametrize("offset", [0, 4, 8, 12])
@pytest.mark.parametrize("scale_dtype", [dtypes.uint8, dtypes.float8_e8m0fnu])
def test_scales_packed_at_an_offset(K: int, offset: int, scale_dtype: Any) -> None:
    dtype = dtypes.float8_e4m3fn_x4
    left, left_values = mx_values(1, K, 6, dtype)
    right, right_values = mx_values(2, K, 8, dtype)
    scale = np.random.default_rng(3).integers(120, 135, (K // 8, 8), np.uint8)

    def body() -> list[Array]:
        found = []
        whole = tile(spread(scale, 128, offset)).view(scale_dtype)
        # as long as needed, as long as the data where that fits, and wider than the data
        for end in {offset + (K - 32) + 4, min(offset + K, 128)}:
            dst = psum((6, 8))
            view = whole[offset:end]
            nc_matmul_mx(dst, tile_of(left, dtype), tile_of(right, dtype), view[:, 0:6], view)
            found.append(contents(dst))
            nc_matmul_mx(
                dst, tile_of(left, dtype), tile_of(right, dtype), view, view, accumulate=False
            )
            found.append(contents(dst))
        return found

    wanted = mx_product(left_values, right_values, scale[:, :6], scale)
    for found in on_core(body):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_the_row_mx_projection() -> None:
    """As ROW_MX kernels multiply: neutral scales, and a remainder of 96 partitions as 64 + 32."""
    dtype = dtypes.float8_e4m3fn_x4
    tiles = [mx_values(t, 128, 40, dtype) for t in range(2)]
    weights = [mx_values(9 + t, 128, 512, dtype) for t in range(2)]
    splits = {0: [(0, 128)], 1: [(0, 64), (64, 32)]}

    def body() -> Array:
        neutral = empty((128, 1, 512), dtypes.uint8)
        memset(neutral, 127)
        dst = psum((128, 512), bank=5)
        for t, ((h, _), (w, _)) in enumerate(zip(tiles, weights, strict=True)):
            hidden, weight = tile_of(h, dtype), tile_of(w, dtype)
            for p0, size in splits[t]:
                rows = slice(p0, p0 + size)
                nc_matmul_mx(
                    dst[0:40, 0:512], hidden[rows, 0:40], weight[rows],
                    neutral[rows, 0, 0:40], neutral[rows, 0, 0:512],
                )  # fmt: skip
        return contents(dst[0:40])

    wanted = np.einsum("kiq,kjq->ij", tiles[0][1], weights[0][1])
    wanted += np.einsum("kiq,kjq->ij", tiles[1][1][:96], weights[1][1][:96])
    np.testing.assert_allclose(on_core(body), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_rows_of_a_scale_tile_that_do_not_count_need_no_contents() -> None:
    dtype = dtypes.float8_e5m2_x4

    def body(rows: list[int]) -> Array:
        scale = empty((64, 4), dtypes.uint8)
        for row in rows:
            scale[row : row + 1].assign(np.full((1, 4), 128, np.uint8))
            core().issue("dma_copy", Engine.dma, [scale[row : row + 1]], [])
        one = tile_of(np.full((64, 4), 0x3C3C3C3C, np.uint32), dtype)
        dst = psum((4, 4))
        nc_matmul_mx(dst, one, one, scale, scale)
        return contents(dst)

    needed = [0, 1, 2, 3, 32, 33, 34, 35]
    assert (on_core(lambda: body(needed)) == 64 * 4 * 4).all()
    for missing in needed:
        rest = [row for row in needed if row != missing]
        rejected(lambda rest=rest: body(rest), "nc_matmul_mx", "nothing has written")


def test_scales_beyond_what_fp32_can_hold_by_themselves() -> None:
    dtype = dtypes.float8_e4m3fn_x4
    left, left_values = mx_values(1, 32, 4, dtype)
    right, right_values = mx_values(2, 32, 6, dtype)

    def body() -> Array:
        high, low = tile(np.full((4, 4), 254), dtypes.uint8), tile(np.full((4, 6), 4), dtypes.uint8)
        dst = psum((4, 6))
        for _ in range(2):
            nc_matmul_mx(dst, tile_of(left, dtype), tile_of(right, dtype), high, low)
        return contents(dst)

    wanted = 2 * np.einsum("kiq,kjq->ij", left_values, right_values) * 2.0 ** (254 + 4 - 254)
    np.testing.assert_allclose(on_core(body), wanted, rtol=1e-5, atol=1e-3)


def test_a_scale_that_is_nan() -> None:
    dtype = dtypes.float8_e4m3fn_x4
    scale = np.full((4, 4), 127, np.uint8)
    scale[2, 1] = 255

    def body() -> Array:
        one = tile_of(np.full((32, 4), 0x38383838, np.uint32), dtype)
        dst = psum((4, 4))
        nc_matmul_mx(dst, one, one, tile(scale), tile(np.full((4, 4), 127), dtypes.uint8))
        return contents(dst)

    found = on_core(body)
    assert np.isnan(found[1]).all()
    assert (np.delete(found, 1, 0) == 128).all()


def test_ordinary_and_mx_products_accumulate_together() -> None:
    dtype = dtypes.float8_e4m3fn_x4

    def body() -> Array:
        one = tile_of(np.full((32, 4), 0x38383838, np.uint32), dtype)
        scale = tile(np.full((4, 4), 127), dtypes.uint8)
        dst = psum((4, 4))
        nc_matmul(dst, ones((7, 4)), ones((7, 4)))
        for _ in range(9):
            nc_matmul_mx(dst, one, one, scale, scale)
        nc_matmul(dst, ones((7, 4)), ones((7, 4)), accumulate=True)
        return contents(dst)

    assert (on_core(body) == 14 + 9 * 128).all()


def test_what_matmul_mx_rejects() -> None:
    e4m3, u8 = dtypes.float8_e4m3fn_x4, dtypes.uint8

    def call(
        K: int = 32, M: int = 4, N: int = 6, a: Any = e4m3, b: Any = e4m3, dst: Any = None,
        a_scale: Any = None, b_scale: Any = None, **options: Any,
    ) -> Any:  # fmt: skip
        zeros = lambda n, dtype: tile_of(np.zeros((K, n), dtype.numpy), dtype)  # noqa: E731
        scale = lambda n: tile(np.full((K, n), 127), u8)  # noqa: E731
        return nc_matmul_mx(
            psum((M, N)) if dst is None else dst(),
            zeros(M, a), zeros(N, b),
            scale(M) if a_scale is None else a_scale(), scale(N) if b_scale is None else b_scale(),
            **options,
        )  # fmt: skip

    def scale(shape: tuple[int, int], dtype: Any = u8, region: Any = MemoryRegion.sbuf) -> Any:
        return tile(np.full(shape, 127), dtype, region)

    op = "nc_matmul_mx: "
    on_core(call)
    rejected(call, "nc_matmul_mx", "gen4", "gen3", target="gen3")
    rejected(lambda: call(a=dtypes.uint32), op + "stationary is uint32", "float4_e2m1fn_x4")
    rejected(lambda: call(b=BF16), op + "moving is bfloat16", "float4_e2m1fn_x4")
    rejected(lambda: call(K=48), op + "stationary has 48 partitions", "multiple of 32")
    rejected(lambda: call(M=3), op + "stationary has 3 columns", "even")
    rejected(lambda: call(M=130, dst=lambda: psum((128, 6))), op + "stationary has 130 columns")
    rejected(lambda: call(N=4097, dst=lambda: psum((4, 4096))), op + "moving has 4097 columns")
    rejected(lambda: call(dst=lambda: psum((4, 6), FP16)), op + "dst is float16", "bfloat16")
    rejected(lambda: call(dst=lambda: psum((4, 7))), op + "dst", "4 x 7", "4 x 6")
    rejected(lambda: call(dst=lambda: empty((4, 6))), op + "dst", "PSUM")
    rejected(lambda: call(a_scale=lambda: scale((4, 4), dtypes.int8)), "stationary_scale is int8")
    rejected(lambda: call(a_scale=lambda: scale((3, 4))), op + "stationary_scale", "4 partitions")
    rejected(lambda: call(b_scale=lambda: scale((4, 5))), op + "moving_scale", "6 elements")
    rejected(lambda: call(K=128, b_scale=lambda: scale((99, 6))), op + "moving_scale", "100")
    rejected(lambda: call(b_scale=lambda: scale((32, 6))[3:9]), op + "moving_scale", "partition 3")
    rejected(
        lambda: call(a_scale=lambda: scale((32, 4))[16:20]), "stationary_scale", "partition 16"
    )
    rejected(lambda: call(a_scale=lambda: scale((4, 4), u8, PSUM)), "stationary_scale", "SBUF")
    refused(lambda: call(a_scale=lambda: 127), op + "stationary_scale is 127", "tensor")
    rejected(
        lambda: call(tile_position=(0, 0), tile_size=(32, 64)), op + "tile_size is (32, 64)", "rows"
    )
    rejected(lambda: call(tile_position=(16, 0), tile_size=(32, 128)), op + "tile_position")
    refused(lambda: call(tile_size=128, tile_position=32), op + "tile_position is 32")
    refused(lambda: call(accumulate="yes"), op + "accumulate is 'yes'")
    on_core(lambda: call(tile_position=(32, 0), tile_size=(32, 128)))
