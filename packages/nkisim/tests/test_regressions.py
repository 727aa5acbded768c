"""What AWS's own simulator got wrong in some version and mended later; each must be right here.

The list is that of the NKI release notes up to 0.6.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import nkisim
import nkisim.isa as nisa
import nkisim.language as nl

Array = npt.NDArray[Any]


def run(kernel: Callable[..., Any], *args: Any, target: str = "gen4") -> Any:
    return nkisim.simulate(kernel, target=target)(*args)


def loaded(x: Any) -> Any:
    """An SBUF tile of what is in HBM."""
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    return tile


def stored(tile: Any) -> Any:
    """An output of what is in SBUF."""
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (nl.int8, [-128, 127, 0, 2, 2, 127, -128, 0]),
        (nl.uint8, [0, 255, 0, 2, 2, 128, 0, 0]),
        (nl.int32, [-(2**31), 2**31 - 1, 0, 2, 2, 128, -129, 0]),
    ],
)
def test_floats_become_integers_by_rounding_to_even_and_saturating(
    dtype: Any, expected: list[int]
) -> None:
    values = np.float32([[-1e12, 1e12, 0.5, 1.5, 2.5, 128.4, -128.6, np.nan]])

    def kernel(x: Any) -> Any:
        tile = nl.ndarray(x.shape, dtype)
        nisa.tensor_copy(tile, loaded(x))
        return stored(tile)

    assert run(kernel, values).tolist() == [expected]


def test_match_replace_takes_the_last_value_first() -> None:
    data = np.float32([[1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]])
    vals = np.float32([[3, 8, 8, 8, 8, 8, 8, 8]])

    def kernel(data: Any, vals: Any) -> Any:
        dst = nl.ndarray(data.shape, data.dtype)
        index = nl.ndarray(vals.shape, nl.uint32)
        nisa.nc_match_replace8(dst, loaded(data), loaded(vals), -1.0, dst_idx=index)
        return stored(dst), stored(index)

    replaced, index = run(kernel, data, vals)
    assert index.tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]
    assert replaced.tolist() == [[1, 2, -1, 4, -1, -1, -1, -1, -1, -1, -1]]


def test_find_index_counts_duplicates_upwards_and_marks_what_is_missing() -> None:
    data = np.float32([[5, 7, 5, 1, 5, 0, 0, 0]])
    vals = np.float32([[5, 5, 5, 5, 9, 7, 1, 9]])

    def kernel(data: Any, vals: Any, dtype: Any) -> Any:
        dst = nl.ndarray(vals.shape, dtype)
        nisa.nc_find_index8(dst, loaded(data), loaded(vals))
        return stored(dst)

    missing = 0xFFFFFFFF
    expected = [[0, 2, 4, missing, missing, 1, 3, missing]]
    assert run(kernel, data, vals, nl.uint32).tolist() == expected
    short = [[v & 0xFFFF for v in expected[0]]]
    assert run(kernel, data, vals, nl.uint16).tolist() == short


def test_a_reduction_written_into_dst_stays() -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 6)

    def kernel(x: Any) -> Any:
        dst = nl.ndarray(x.shape, x.dtype)
        nisa.activation(
            dst, nl.copy, loaded(x), reduce_op=nl.add, reduce_res=dst[:, 2:3],
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )  # fmt: skip
        return stored(dst)

    expected = x.copy()
    expected[:, 2] = x.sum(1)
    np.testing.assert_array_equal(run(kernel, x), expected)


def test_sliced_scales_leave_their_neighbours_alone() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 64)).astype(ml_dtypes.bfloat16)

    def kernel(x: Any) -> Any:
        src = loaded(x)
        codes = nl.ndarray((64, 32), nl.float8_e4m3fn_x4)
        scales = nl.ndarray((64, 32), nl.uint8)
        nisa.memset(scales, 77)
        # the two halves of the columns, one after the other, into one tile of scales
        nisa.quantize_mx(codes[:, 0:8], src[:, 0:32], scales[:, 0:8])
        nisa.quantize_mx(codes[:, 8:16], src[:, 32:64], scales[:, 8:16])
        psum = nl.ndarray((8, 8), nl.float32, buffer=nl.psum)
        nisa.nc_matmul_mx(psum, codes[:, 0:8], codes[:, 8:16], scales[:, 0:8], scales[:, 8:16])
        out = nl.ndarray((8, 8), nl.float32)
        nisa.tensor_copy(out, psum)
        return stored(out), stored(scales)

    product, scales = run(kernel, x)
    left, right = (half.astype(np.float64) for half in (x[:, :32], x[:, 32:]))
    exact = np.einsum("kiq,kjq->ij", left.reshape(64, 8, 4), right.reshape(64, 8, 4))
    assert np.abs(product - exact).max() < 0.07 * np.abs(exact).max()
    assert (scales[:, 16:] == 77).all()
    assert (scales[4:32, :16] == 77).all() and (scales[0:4, :16] != 77).all()


def test_double_row_contracts_over_both_rows() -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal((32, 2, 16)).astype(ml_dtypes.float8_e4m3)
    b = rng.standard_normal((32, 2, 24)).astype(ml_dtypes.float8_e4m3)

    def kernel(a: Any, b: Any) -> Any:
        psum = nl.ndarray((16, 24), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, loaded(a), loaded(b), perf_mode="double_row")
        out = nl.ndarray((16, 24), nl.float32)
        nisa.tensor_copy(out, psum)
        return stored(out)

    exact = np.einsum("kjm,kjn->mn", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(run(kernel, a, b, target="gen3"), exact, rtol=1e-5, atol=1e-5)


def _windows(x: Any, w: Any) -> Any:
    psum = nl.ndarray((4, 8), nl.float32, buffer=nl.psum)
    x_tile, w_tile = loaded(x), loaded(w)
    nisa.nc_matmul(psum[:, 0:6], w_tile, x_tile[:, 0:6])
    nisa.nc_matmul(psum[:, 2:8], w_tile, x_tile[:, 2:8])
    out = nl.ndarray((4, 8), nl.float32)
    nisa.tensor_copy(out, psum)
    return stored(out)


def test_overlapping_windows_accumulate_where_they_overlap() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((16, 8), np.float32)
    w = rng.standard_normal((16, 4), np.float32)
    product = w.astype(np.float64).T @ x
    product[:, 2:6] *= 2
    np.testing.assert_allclose(run(_windows, x, w), product, rtol=1e-5, atol=1e-5)


def test_accumulating_onto_what_nothing_wrote_warns() -> None:
    def kernel(x: Any) -> Any:
        psum = nl.ndarray((8, 8), nl.float32, buffer=nl.psum)
        tile = loaded(x)
        nisa.nc_matmul(psum, tile, tile, accumulate=True)

    with pytest.warns(nkisim.NkiWarning, match="accumulate=True"):
        run(kernel, np.ones((8, 8), np.float32))


def test_predicates_of_another_rank() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 12)
    mask = (np.arange(24).reshape(2, 3, 4) % 3 == 0).astype(np.uint8)

    def copied(x: Any, mask: Any) -> Any:
        dst = nl.ndarray(x.shape, x.dtype)
        nisa.memset(dst, -1.0)
        nisa.tensor_copy_predicated(dst, loaded(x), loaded(mask))
        return stored(dst)

    def selected(x: Any, mask: Any) -> Any:
        dst = nl.ndarray(x.shape, x.dtype)
        nisa.select_reduce(dst, loaded(mask), loaded(x), -1.0)
        return stored(dst)

    expected = np.where(mask.reshape(2, 12), x, np.float32(-1))
    np.testing.assert_array_equal(run(copied, x, mask), expected)
    np.testing.assert_array_equal(run(selected, x, mask), expected)


def test_selects_take_a_python_float() -> None:
    x = np.ones((4, 8), np.float32)
    low = np.float32([[0], [1], [2], [3]])

    def kernel(x: Any, low: Any) -> Any:
        tile, bound = loaded(x), loaded(low)
        ranged = nl.ndarray(x.shape, x.dtype)
        nisa.range_select(
            ranged, tile, nl.greater_equal, nl.less, bound, bound, on_false_value=-3.4028235e38
        )
        affine = nl.ndarray(x.shape, x.dtype)
        nisa.affine_select(affine, [[-1, 8]], 1, tile, -5.5, cmp_op=nl.greater_equal)
        return stored(ranged), stored(affine)

    ranged, affine = run(kernel, x, low)
    assert (ranged == np.float32(-3.4028235e38)).all()
    np.testing.assert_array_equal(affine, np.where(np.tri(4, 8, dtype=bool), 1, np.float32(-5.5)))


def test_skipped_rows_keep_their_bits() -> None:
    data = np.int32([[0x7FFFFFFF, -5], [2**30 + 1, 3]])
    index = np.int32([[1], [-1], [0], [2]])
    before = np.int32([[2**31 - 3, 1]] * 4)

    def kernel(data: Any, index: Any, before: Any) -> Any:
        dst = loaded(before)
        rows = data.ap([[2, 4], [1, 2]], vector_offset=loaded(index), indirect_dim=0)
        nisa.dma_copy(dst, rows, oob_mode=nisa.oob_mode.skip)
        return stored(dst)

    expected = before.copy()
    expected[0], expected[2] = data[1], data[0]
    np.testing.assert_array_equal(run(kernel, data, index, before), expected)


def test_an_index_out_of_range_is_an_error_with_packed_types_too() -> None:
    def kernel(data: Any, index: Any) -> Any:
        packed = data.view(nl.float8_e4m3fn_x4)
        dst = nl.ndarray((2, 2), nl.float8_e4m3fn_x4)
        nisa.dma_copy(dst, packed.ap([[2, 2], [1, 2]], vector_offset=loaded(index)))

    data = np.zeros((3, 8), ml_dtypes.float8_e4m3fn)
    with pytest.raises(nkisim.NkiValidationError, match=r"row 1 .* is 3; it must be in 0\.\.2"):
        run(kernel, data, np.int32([[0], [3]]))


def test_shuffle_mask_255_leaves_a_partition_alone() -> None:
    x = np.arange(32, dtype=np.float32).reshape(32, 1)

    def kernel(x: Any) -> Any:
        dst = nl.ndarray(x.shape, x.dtype)
        nisa.memset(dst, -1.0)
        nisa.nc_stream_shuffle(dst, loaded(x), [255, *range(31)])
        return stored(dst)

    assert run(kernel, x)[:, 0].tolist() == [-1, *range(31)]


def test_local_gather_of_a_part_of_a_tile() -> None:
    x = np.arange(16 * 20, dtype=np.float32).reshape(16, 20)
    index = np.zeros((16, 1), np.uint16)
    index[:4, 0] = [3, 0, 5, 5]

    def kernel(x: Any, index: Any) -> Any:
        dst = nl.ndarray((16, 4), x.dtype)
        nisa.local_gather(dst, loaded(x)[:, 8:16], loaded(index), num_valid_indices=4)
        return stored(dst)

    np.testing.assert_array_equal(run(kernel, x, index), x[:, 8:16][:, [3, 0, 5, 5]])


def test_matmul_operands_of_three_dimensions() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((8, 3, 4), np.float32), rng.standard_normal((8, 5), np.float32)

    def kernel(x: Any, w: Any) -> Any:
        psum = nl.ndarray((5, 3, 4), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, loaded(w), loaded(x))
        out = nl.ndarray((5, 3, 4), nl.float32)
        nisa.tensor_copy(out, psum)
        return stored(out)

    exact = np.einsum("km,kab->mab", w.astype(np.float64), x)
    np.testing.assert_allclose(run(kernel, x, w), exact, rtol=1e-5, atol=1e-5)


def test_iota_and_affine_select_with_a_register_as_offset() -> None:
    def kernel(start: Any, x: Any) -> Any:
        register = nisa.register_alloc()
        nisa.register_load(register, loaded(start))
        numbers = nl.ndarray((2, 4), nl.int32)
        nisa.iota(numbers, [[1, 4]], offset=register, channel_multiplier=10)
        kept = nl.ndarray((2, 4), nl.float32)
        nisa.affine_select(kept, [[1, 4]], 0, loaded(x), 0.0, cmp_op=nl.less, offset=register)
        return stored(numbers), stored(kept)

    x = np.ones((2, 4), np.float32)
    numbers, kept = run(kernel, np.int32([[-2]]), x)
    assert numbers.tolist() == [[-2, -1, 0, 1], [8, 9, 10, 11]]
    assert kept.tolist() == [[1, 1, 0, 0]] * 2


def test_packed_types_move_bit_for_bit() -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(4, 64)

    def kernel(codes: Any) -> Any:
        src = codes.view(nl.float8_e4m3fn).view(nl.float8_e4m3fn_x4)
        tile = nl.ndarray((4, 16), nl.float8_e4m3fn_x4)
        nisa.dma_copy(tile, src)
        copied = nl.ndarray((4, 16), nl.float8_e4m3fn_x4)
        nisa.tensor_copy(copied, tile)
        return stored(copied.view(nl.uint8))

    np.testing.assert_array_equal(run(kernel, codes), codes)


def test_dma_compute_only_adds() -> None:
    def kernel(x: Any, scale: float) -> Any:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_compute(out, [x, x, x], nl.add, [scale] * 3)
        return out

    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(run(kernel, x, 1.0), 3 * x)
    with pytest.raises(nkisim.NkiValidationError, match=r"scales is \[0.5, 0.5, 0.5\]"):
        run(kernel, x, 0.5)


def test_logical_and() -> None:
    a, b = np.float32([[0, 0, 2, -1]]), np.float32([[0, 3, 0, 0.5]])

    def kernel(a: Any, b: Any) -> Any:
        return stored(nl.logical_and(loaded(a), loaded(b)))

    assert run(kernel, a, b).tolist() == [[0, 0, 0, 1]]


def test_a_while_loop_ends_when_its_register_is_zero() -> None:
    def kernel(count: Any) -> Any:
        left = loaded(count)
        turns = nl.ndarray((1, 1), nl.int32)
        nisa.memset(turns, 0)

        def body(register: Any) -> Any:
            nisa.tensor_scalar(turns, turns, nl.add, 1)
            nisa.tensor_scalar(left, left, nl.subtract, 1)
            following = nisa.register_alloc()
            nisa.register_load(following, left)
            return following

        first = nisa.register_alloc()
        nisa.register_load(first, left)
        nl.while_loop(first, body)
        return stored(turns)

    assert run(kernel, np.int32([[5]])).tolist() == [[5]]


def test_a_gathering_transpose_leaves_skipped_columns_alone() -> None:
    data = np.arange(8 * 16, dtype=np.float32).reshape(8, 16).astype(ml_dtypes.bfloat16)
    index = np.uint32([[i % 8] for i in range(16)])
    index[5] = 8

    def kernel(data: Any, index: Any) -> Any:
        dst = nl.ndarray((16, 16), data.dtype)
        nisa.memset(dst, -7.0)
        rows = data.ap([[16, 16], [1, 16]], vector_offset=loaded(index), indirect_dim=0)
        nisa.dma_transpose(dst, rows, oob_mode=nisa.oob_mode.skip)
        return stored(dst)

    expected = data[index[:, 0] % 8].T.astype(np.float32)
    expected[:, 5] = -7
    np.testing.assert_array_equal(run(kernel, data, index).astype(np.float32), expected)


@dataclass(frozen=True)
class _Options(nl.NKIObject):
    scale: float
    label: str = "none"


def test_objects_none_and_booleans_pass_unchanged() -> None:
    seen: list[Any] = []

    def kernel(flags: Any, options: Any, nothing: Any) -> Any:
        seen.append((options, nothing))
        out = nl.ndarray(flags.shape, flags.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, flags)
        return out

    flags = np.array([[True, False, True]])
    options = _Options(scale=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(kernel, flags, options, None)
    assert result.dtype == np.bool_ and result.tolist() == flags.tolist()
    assert seen == [(options, None)]
    with pytest.raises(FrozenInstanceError):
        options.scale = 1.0  # type: ignore[misc]
