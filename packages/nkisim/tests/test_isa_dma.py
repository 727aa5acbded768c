"""Transfers: copies, gathers and scatters, transposes, and sums on the way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
    Array,
    assert_same,
    core,
    empty,
    on_core,
    refused,
    rejected,
    sample,
    stored,
    tile,
    warned,
)

import nkisim.isa as nisa
import nkisim.language as nl
from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import DgeMode, Engine, MemoryRegion, OobMode
from nkisim.settings import Rules
from nkisim.tensor import NkiTensor

SBUF = MemoryRegion.sbuf
PSUM = MemoryRegion.psum
HBM = MemoryRegion.private_hbm
SHARED = MemoryRegion.shared_hbm
REACHED = (SBUF, HBM, SHARED)
PACKED = (dtypes.float8_e4m3fn_x4, dtypes.float8_e5m2_x4, dtypes.float4_e2m1fn_x4)
SKIP = OobMode.skip

BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def noise(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    """Random bits."""
    count = math.prod(shape) * dtype.itemsize
    found = np.random.default_rng(seed).integers(0, 256, count).astype(np.uint8)
    return found.view(dtype.numpy).reshape(shape)


def held(values: Array, dtype: DType, region: MemoryRegion = SBUF) -> NkiTensor:
    """A tensor with these bits."""
    tensor = empty(values.shape, dtype, region)
    if tensor.storage.data is not None:
        tensor.array()[...] = values
    tensor.storage.coverage.full = True
    return tensor


def bits(array: Array) -> Array:
    """A copy of the elements as unsigned integers."""
    return np.array(array, order="C").view(BITS[array.dtype.itemsize])


# dma_copy


@pytest.mark.parametrize(("into", "out_of"), list(itertools.product(REACHED, REACHED)))
@pytest.mark.parametrize("dtype", [*DTYPES, *PACKED, dtypes.tfloat32, dtypes.float8_e8m0fnu])
def test_equal_types_move_bit_for_bit(
    dtype: DType, into: MemoryRegion, out_of: MemoryRegion
) -> None:
    values = noise((5, 6), dtype)

    def body() -> Array:
        target = empty((5, 6), dtype, into)
        nisa.dma_copy(target, held(values, dtype, out_of))
        return bits(target.array())

    np.testing.assert_array_equal(on_core(body), bits(values))


@pytest.mark.parametrize("old", DTYPES)
@pytest.mark.parametrize("new", DTYPES)
@pytest.mark.filterwarnings("ignore:.*fp8_overflow")
def test_other_types_convert_through_fp32(old: DType, new: DType) -> None:
    values = sample(np.random.default_rng(3), (4, 7), old).astype(old.numpy)

    def body() -> Array:
        target = empty((4, 7), new, HBM)
        nisa.dma_copy(target, held(values, old))
        return target.array().copy()

    assert_same(on_core(body), stored(values, new))


def test_large_integers_lose_bits_in_a_conversion_only() -> None:
    values = np.array([[2**24 + 1, -(2**31) + 1]], np.int32)

    def body(dtype: DType) -> Array:
        target = empty((1, 2), dtype)
        nisa.dma_copy(target, held(values, dtypes.int32))
        return target.array().copy()

    assert on_core(lambda: body(dtypes.int32)).tolist() == values.tolist()
    assert on_core(lambda: body(dtypes.uint32)).tolist() == [[2**24, 0]]


def test_a_conversion_warns_of_what_does_not_fit_8_bits() -> None:
    def body() -> None:
        nisa.dma_copy(empty((1, 1), dtypes.float8_e4m3), held(np.full((1, 1), 300, np.float32),
                                                            dtypes.float32))  # fmt: skip

    warned(body, "fp8_overflow")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_elements_go_in_row_major_order_whatever_the_shapes(data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([1, 4, 12, 24]))

    def shape() -> tuple[int, ...]:
        left, found = count, []
        for _ in range(data.draw(st.integers(1, 3))):
            divisors = [d for d in range(1, left + 1) if left % d == 0]
            found.append(data.draw(st.sampled_from(divisors)))
            left //= found[-1]
        return (*found, left)

    def strided(region: MemoryRegion) -> tuple[NkiTensor, Array]:
        """A view with gaps in another order, and the numbers of its elements."""
        sizes = shape()
        order = list(data.draw(st.permutations(range(1, len(sizes)))))
        gaps = [1, *(data.draw(st.integers(1, 2)) for _ in sizes[1:])]
        turned = [0, *order]
        allocated = tuple(sizes[i] * gaps[i] for i in turned)
        tensor = empty(allocated, dtypes.int32, region)
        keys = tuple(slice(None, None, gaps[i]) for i in turned)
        back = [turned.index(i) for i in range(len(sizes))]
        numbers = np.arange(math.prod(allocated)).reshape(allocated)[keys].transpose(back)
        return tensor[keys].permute(back), numbers

    def body() -> None:
        source, here = strided(data.draw(st.sampled_from(REACHED)))
        target, there = strided(data.draw(st.sampled_from(REACHED)))
        values = np.random.default_rng(1).integers(0, 999, source.size)
        source.assign(values.astype(np.int32))
        source.storage.coverage.full = True
        nisa.dma_copy(target, source)
        np.testing.assert_array_equal(target.array().reshape(-1), values)
        assert here.size == there.size

    on_core(body)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 7), st.integers(0, 1), st.integers(1, 2), st.sampled_from([SBUF, HBM]))
def test_a_tensor_is_copied_over_itself(a: int, b: int, step: int, region: MemoryRegion) -> None:
    values = noise((3, 16), dtypes.int16)
    into, out_of = slice(a, a + 8), slice(b, b + 7 * step + 1, step)

    def body() -> Array:
        tensor = held(values, dtypes.int16, region)
        nisa.dma_copy(tensor[:, into], tensor[:, out_of])
        return tensor.array().copy()

    wanted = values.copy()
    wanted[:, into] = values[:, out_of]
    np.testing.assert_array_equal(on_core(body), wanted)


def test_rows_are_turned_around_in_place() -> None:
    values = noise((4, 4), dtypes.int32)

    def body() -> Array:
        tensor = held(values, dtypes.int32, HBM)
        nisa.dma_copy(tensor.permute((1, 0)), tensor)
        return tensor.array().copy()

    np.testing.assert_array_equal(on_core(body), values.T)


def test_operands_by_position() -> None:
    def body() -> Array:
        out = empty((4, 3), region=SHARED)
        nisa.dma_copy(out[1:3], held(np.ones((2, 3), np.float32), dtypes.float32))
        return out.array()[1:3].copy()

    assert on_core(body).all()


@pytest.mark.parametrize(
    ("options", "details"),
    [
        ({}, ("unknown", None)),
        ({"dge_mode": DgeMode.none}, ("none", None)),
        ({"dge_mode": DgeMode.swdge}, ("swdge", None)),
        ({"dge_mode": DgeMode.hwdge}, ("hwdge", None)),
        ({"dge_mode": DgeMode.hwdge, "engine": Engine.sync}, ("hwdge", "sync")),
        ({"dge_mode": nisa.dge_mode.hwdge, "engine": nisa.engine.scalar}, ("hwdge", "scalar")),
        ({"priority": 0}, ("unknown", None)),
        ({"priority": 3, "name": "store"}, ("unknown", None)),
    ],
)
def test_how_a_transfer_is_started(options: dict[str, Any], details: tuple[str, Any]) -> None:
    def body() -> None:
        instruction = nisa.dma_copy(empty((2, 2)), tile(np.zeros((2, 2), np.float32)), **options)
        assert instruction.engine is Engine.dma and core().trace.instructions == [instruction]
        assert instruction.name == options.get("name")
        assert instruction.details == {
            "dge": details[0], "queue": details[1], "indirect": False, "transpose": False
        }  # fmt: skip

    on_core(body)


@pytest.mark.parametrize(
    ("options", "words", "target"),
    [
        ({"dge_mode": DgeMode.hwdge}, "gen3", "gen2"),
        ({"priority": 1}, "gen4", "gen3"),
        ({"priority": 4}, "priority is 4", "gen4"),
        ({"priority": -1}, "priority is -1", "gen4"),
        ({"priority": True}, "priority is True", "gen4"),
        ({"engine": Engine.sync}, "hwdge", "gen4"),
        ({"engine": Engine.scalar, "dge_mode": DgeMode.swdge}, "hwdge", "gen4"),
        ({"engine": Engine.vector, "dge_mode": DgeMode.hwdge}, "engine.sync", "gen4"),
    ],
)
def test_transfers_that_are_not_started(options: dict[str, Any], words: str, target: str) -> None:
    def body() -> None:
        nisa.dma_copy(empty((2, 2)), tile(np.zeros((2, 2), np.float32)), **options)

    rejected(body, "dma_copy", words, target=target)


@pytest.mark.parametrize(
    ("copy", "words"),
    [
        (lambda: nisa.dma_copy(empty((2, 2), region=PSUM), held(np.ones((2, 2)), dtypes.float32)),
         ("dst", "SBUF and HBM")),
        (lambda: nisa.dma_copy(empty((2, 2)), held(np.ones((2, 2)), dtypes.float32, PSUM)),
         ("src", "SBUF and HBM")),
        (lambda: nisa.dma_copy(empty((2, 3)), held(np.ones((2, 2)), dtypes.float32)),
         ("6 elements", "of 4")),
        (lambda: nisa.dma_copy(empty((2, 2), dtypes.bfloat16),
                               held(np.ones((2, 2)), dtypes.float32), dge_mode=DgeMode.hwdge),
         ("bfloat16", "does not convert")),
        (lambda: nisa.dma_copy(empty((2, 2), dtypes.uint32),
                               held(np.ones((2, 2)), dtypes.float8_e4m3fn_x4)),
         ("float8_e4m3fn_x4", ".view")),
        (lambda: nisa.dma_copy(empty((2, 2), dtypes.float8_e5m2_x4),
                               held(np.ones((2, 2)), dtypes.float8_e4m3fn_x4)),
         ("float8_e5m2_x4", ".view")),
        (lambda: nisa.dma_copy(empty((16, 16)),
                               held(np.ones((16, 4)), dtypes.float32).indirect(
                                   tile(np.zeros((16, 1)), dtypes.int16))),
         ("src", "indirect")),
    ],
)  # fmt: skip
def test_copies_that_do_not_exist(copy: Callable[[], Any], words: tuple[str, ...]) -> None:
    rejected(copy, "dma_copy", *words)


@pytest.mark.parametrize("bad", [None, 3, np.zeros((2, 2))])
def test_operands_are_tensors(bad: Any) -> None:
    refused(lambda: nisa.dma_copy(empty((2, 2)), bad), "dma_copy: src")
    refused(lambda: nisa.dma_copy(bad, empty((2, 2))), "dma_copy: dst")


# Enumerations


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"oob_mode": 1}, "oob_mode is 1"),
        ({"engine": 6}, "engine is 6"),
        ({"dge_mode": 7}, "dge_mode is 7"),
        ({"dge_mode": True}, "dge_mode is True"),
        ({"dge_mode": 3.0}, "dge_mode is 3.0"),
        ({"dge_mode": Engine.sync}, "dge_mode is engine.sync"),
        ({"oob_mode": None}, "oob_mode is None"),
    ],
)
def test_other_things_are_no_members_of_an_enumeration(options: dict[str, Any], words: str) -> None:
    refused(
        lambda: nisa.dma_copy(empty((2, 2)), tile(np.zeros((2, 2), np.float32)), **options), words
    )


@pytest.mark.parametrize("mode", [mode for mode in DgeMode if mode is not DgeMode.hwdge])
def test_a_dge_mode_may_still_be_an_integer(mode: DgeMode) -> None:
    zeros = np.zeros((2, 2), np.float32)

    def copy() -> None:
        instruction = nisa.dma_copy(empty((2, 2)), tile(zeros), dge_mode=mode.value)
        assert instruction.details is not None and instruction.details["dge"] == mode.name

    def transpose() -> None:
        nisa.dma_transpose(empty((2, 2)), tile(zeros), dge_mode=DgeMode.none.value)

    for body in (copy, transpose):
        warned(body, "deprecated")
        rejected(body, "dge_mode.", rules=Rules(deprecated="error"))


def test_members_by_name() -> None:
    def body() -> None:
        nisa.dma_copy(empty((2, 2)), tile(np.zeros((2, 2), np.float32)), dge_mode="swdge",
                      oob_mode="skip")  # fmt: skip

    on_core(body)


# Gathers and scatters


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int8, dtypes.float8_e4m3fn_x4])
@pytest.mark.parametrize("index", [dtypes.int32, dtypes.uint32])
def test_a_gather(dtype: DType, index: DType) -> None:
    values, rows = noise((9, 5), dtype), np.array([[3], [0], [3], [8]])

    def body() -> list[Array]:
        table, chosen = held(values, dtype, HBM), tile(rows, index)
        direct, pattern = empty((4, 5), dtype), empty((4, 3), dtype, HBM)
        nisa.dma_copy(direct, table.vector_select(0, chosen))
        view = table.ap([[5, 4], [1, 3]], offset=2, vector_offset=chosen, indirect_dim=0)
        instruction = nisa.dma_copy(pattern, view, dge_mode=DgeMode.swdge)
        assert instruction.details is not None and instruction.details["indirect"]
        return [bits(direct.array()), bits(pattern.array())]

    direct, pattern = on_core(body)
    np.testing.assert_array_equal(direct, bits(values)[rows[:, 0]])
    np.testing.assert_array_equal(pattern, bits(values)[rows[:, 0], 2:5])


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int8, dtypes.float4_e2m1fn_x4])
def test_a_scatter(dtype: DType) -> None:
    old, new, rows = noise((9, 5), dtype), noise((4, 5), dtype, 1), np.array([[3], [0], [7], [8]])

    def body() -> Array:
        table = held(old, dtype, HBM)
        nisa.dma_copy(table.vector_select(0, tile(rows, dtypes.int32)), held(new, dtype))
        return bits(table.array())

    wanted = bits(old)
    wanted[rows[:, 0]] = bits(new)
    np.testing.assert_array_equal(on_core(body), wanted)


def test_a_gather_into_a_scatter_over_the_same_tensor() -> None:
    values = noise((6, 4), dtypes.int32)

    def body() -> Array:
        table = held(values, dtypes.int32, HBM)
        into, out_of = tile([[0], [1], [2]], dtypes.int32), tile([[1], [2], [0]], dtypes.int32)
        nisa.dma_copy(table.vector_select(0, into), table.vector_select(0, out_of))
        return table.array().copy()

    wanted = values.copy()
    wanted[:3] = values[[1, 2, 0]]
    np.testing.assert_array_equal(on_core(body), wanted)


def test_a_gather_converts() -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3) + 0.5

    def body() -> Array:
        target = empty((2, 3), dtypes.int16)
        table = held(values, dtypes.float32, HBM)
        nisa.dma_copy(target, table.vector_select(0, tile([[3], [1]], dtypes.int32)))
        return target.array().copy()

    assert_same(on_core(body), stored(values[[3, 1]], dtypes.int16))


# what stands for "no row" in kernels
NOWHERE = (-1, 2**32 - 1, 2**31, 9)


def _rows(*rows: int) -> NkiTensor:
    return tile(np.array(rows, np.int64).astype(np.uint32)[:, None], dtypes.uint32)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int32, dtypes.uint8, *PACKED])
@pytest.mark.parametrize("nowhere", NOWHERE)
def test_rows_out_of_range_are_an_error(dtype: DType, nowhere: int) -> None:
    def gather() -> None:
        table = held(noise((9, 4), dtype), dtype, HBM)
        nisa.dma_copy(empty((3, 4), dtype), table.vector_select(0, _rows(3, nowhere, 5)))

    def scatter() -> None:
        table = held(noise((9, 4), dtype), dtype, HBM)
        nisa.dma_copy(
            table.vector_select(0, _rows(3, nowhere, 5)), held(noise((3, 4), dtype), dtype)
        )

    for body in (gather, scatter):
        rejected(body, "row 1", "0..8", "oob_mode.skip")


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int32, dtypes.uint8, *PACKED])
@pytest.mark.parametrize("nowhere", NOWHERE)
def test_rows_out_of_range_are_skipped_and_keep_their_bits(dtype: DType, nowhere: int) -> None:
    table, row = noise((9, 4), dtype), noise((3, 4), dtype, 1)

    def gather(shape: tuple[int, ...]) -> Array:
        target, source = held(row.reshape(shape), dtype), held(table, dtype, HBM)
        nisa.dma_copy(target, source.vector_select(0, _rows(3, nowhere, 5)), oob_mode=SKIP)
        return bits(target.array()).reshape(3, 4)

    def scatter() -> Array:
        target = held(table, dtype, HBM)
        nisa.dma_copy(
            target.vector_select(0, _rows(3, nowhere, 5)), held(row, dtype), oob_mode=SKIP
        )
        return bits(target.array())

    wanted = bits(row)
    wanted[[0, 2]] = bits(table)[[3, 5]]
    # the skipped elements are the same ones in a target of another shape
    for shape in ((3, 4), (1, 12), (6, 2), (3, 2, 2)):
        np.testing.assert_array_equal(on_core(lambda shape=shape: gather(shape)), wanted)
    wanted = bits(table)
    wanted[[3, 5]] = bits(row)[[0, 2]]
    np.testing.assert_array_equal(on_core(scatter), wanted)


def test_all_rows_may_be_skipped() -> None:
    def body() -> Array:
        target = tile(np.full((2, 4), 7.0, np.float32))
        source = held(np.zeros((3, 4)), dtypes.float32, HBM)
        nisa.dma_copy(target, source.vector_select(0, _rows(-1, -1)), oob_mode=SKIP)
        return target.array().copy()

    assert (on_core(body) == 7).all()


def test_a_row_skipped_on_either_side_is_not_moved() -> None:
    def body() -> Array:
        target = held(np.zeros((4, 2)), dtypes.float32, HBM)
        source = held(np.arange(1, 9).reshape(4, 2), dtypes.float32, HBM)
        nisa.dma_copy(
            target.vector_select(0, _rows(0, 9, 2)), source.vector_select(0, _rows(3, 0, -1)),
            oob_mode=SKIP,
        )  # fmt: skip
        return target.array().copy()

    assert on_core(body).tolist() == [[7, 8], [0, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("side", ["dst", "src"])
@pytest.mark.parametrize("value", [-1, 4])
def test_a_scalar_index_out_of_range(side: str, value: int) -> None:
    def body(mode: OobMode) -> Array:
        register = nisa.register_alloc(value)
        ours = held(np.full((4, 2), 5.0), dtypes.float32, HBM)
        other = held(np.full((1, 2), 6.0), dtypes.float32)
        if side == "dst":
            nisa.dma_copy(ours[register], other, oob_mode=mode)
            return ours.array().copy()
        nisa.dma_copy(other, ours[register], oob_mode=mode)
        return other.array().copy()

    rejected(lambda: body(OobMode.error), f"is {value}", "0..3")
    assert (on_core(lambda: body(SKIP)) == (5 if side == "dst" else 6)).all()


def test_a_scalar_index_within_range() -> None:
    def body() -> Array:
        table = held(np.zeros((4, 2)), dtypes.float32, HBM)
        chosen = tile([[2]], dtypes.int32)
        nisa.dma_copy(table.select(0, chosen), tile(np.ones((1, 2), np.float32)), oob_mode=SKIP)
        return table.array().copy()

    assert on_core(body).tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize("mode", [DgeMode.hwdge, DgeMode.none])
def test_only_software_gathers_rows(mode: DgeMode) -> None:
    def body() -> None:
        table = held(np.zeros((4, 2)), dtypes.float32, HBM)
        nisa.dma_copy(empty((2, 2)), table.vector_select(0, _rows(1, 2)), dge_mode=mode)

    rejected(body, "swdge")


def test_hardware_moves_a_whole_view() -> None:
    def body() -> Array:
        table = held(np.arange(8).reshape(4, 2), dtypes.float32, HBM)
        target = empty((1, 2))
        nisa.dma_copy(target, table[nisa.register_alloc(2)], dge_mode=DgeMode.hwdge)
        return target.array().copy()

    assert on_core(body).tolist() == [[4, 5]]


def test_a_run_without_numerics_moves_nothing() -> None:
    def body() -> None:
        table = held(np.zeros((4, 2)), dtypes.float32, HBM)
        nisa.dma_copy(empty((2, 2)), table.vector_select(0, _rows(1, 9)))
        nisa.dma_transpose(empty((2, 4)), table)
        nisa.dma_compute(empty((4, 2)), [table, table], nl.add)
        assert len(core().trace) == 3

    on_core(body, numerics=False)


# dma_transpose

AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
SHAPES = [
    (16, 8), (1, 1), (5, 128), (128, 7), (4, 1, 6), (3, 5, 7), (20, 1, 1, 64), (7, 1, 3, 9),
    (7, 3, 1, 9), (2, 3, 4, 5), (96, 1, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("region", [SBUF, HBM, SHARED])
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.int32, dtypes.float4_e2m1fn_x4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("given_axes", [False, True])
def test_a_transpose(
    shape: tuple[int, ...], dtype: DType, region: MemoryRegion, given_axes: bool
) -> None:
    values, axes = noise(shape, dtype), AXES[len(shape)]
    wanted = values.transpose(axes)

    def body() -> Array:
        target = empty(wanted.shape, dtype)
        options = {"axes": list(axes)} if given_axes else {}
        instruction = nisa.dma_transpose(target, held(values, dtype, region), **options)
        assert instruction.details is not None and instruction.details["transpose"]
        return bits(target.array())

    np.testing.assert_array_equal(on_core(body), bits(wanted))


@pytest.mark.parametrize("region", [SBUF, HBM])
def test_a_transpose_of_patterns_into_part_of_a_tile(region: MemoryRegion) -> None:
    """Rows s, columns 3:9 of a matrix, to partitions 0:6, columns 2, 5, 8, ... of a tile."""
    values = noise((20, 12), dtypes.bfloat16)

    def body() -> Array:
        source = held(values, dtypes.bfloat16, region)
        target = held(np.zeros((8, 64)), dtypes.bfloat16)
        nisa.dma_transpose(
            target.ap([[64, 6], [1, 1], [1, 1], [3, 20]], offset=2),
            source.ap([[12, 20], [1, 1], [1, 1], [1, 6]], offset=3),
            dge_mode=DgeMode.none,
        )
        return bits(target.array())

    wanted = np.zeros((8, 64), np.uint16)
    wanted[:6, 2:62:3] = bits(values)[:, 3:9].T
    np.testing.assert_array_equal(on_core(body), wanted)


def test_a_transpose_with_several_rows_in_the_third_place() -> None:
    values = noise((10, 3, 7), dtypes.int16)

    def body() -> Array:
        source = held(values, dtypes.int16, SBUF)
        target = empty((7, 3, 10), dtypes.int16)
        nisa.dma_transpose(target.expand_dim(1), source.expand_dim(1))
        return target.array().copy()

    np.testing.assert_array_equal(on_core(body), values.transpose(2, 1, 0))


def test_packed_rows_to_packed_partitions() -> None:
    """Rows of H codes and a scale, as words, to a tile of four codes an element."""
    S, H, tiles = 6, 2 * 512, 2
    values = noise((S, H + 4), dtypes.float8_e4m3fn)

    def body() -> list[Array]:
        packed = held(values, dtypes.float8_e4m3fn, HBM)
        tile4 = empty((128, tiles, S), dtypes.float8_e4m3fn_x4)
        words = (H + 4) // 4
        for t in range(tiles):
            nisa.dma_transpose(
                tile4.ap([[tiles * S, 128], [1, 1], [1, 1], [1, S]], t * S, dtype=nl.float32),
                packed.ap([[words, S], [1, 1], [1, 1], [1, 128]], t * 128, dtype=nl.float32),
            )
        scale = empty((S, 1))
        nisa.dma_copy(scale, packed.ap([[words, S], [1, 1]], words - 1, dtype=nl.float32))
        return [bits(tile4.array()), bits(scale.array())]

    found, scale = on_core(body)
    codes = bits(values)[:, :H].reshape(S, tiles, 128, 4)
    for s, t, p in itertools.product(range(S), range(tiles), range(128)):
        assert found[p, t, s : s + 1].view(np.uint8).tolist() == codes[s, t, p].tolist()
    assert_same(scale.view(np.uint8), bits(values)[:, H:])


def test_one_column_of_words_becomes_a_row() -> None:
    values = noise((24, 1, 1, 1), dtypes.int32)

    def body() -> Array:
        target = empty((1, 1, 1, 24), dtypes.int32)
        nisa.dma_transpose(target, held(values, dtypes.int32, HBM))
        return target.array().copy()

    np.testing.assert_array_equal(on_core(body).reshape(-1), values.reshape(-1))


def test_a_square_is_transposed_in_place() -> None:
    values = noise((9, 9), dtypes.int16)

    def body() -> Array:
        tensor = held(values, dtypes.int16)
        nisa.dma_transpose(tensor, tensor)
        return tensor.array().copy()

    np.testing.assert_array_equal(on_core(body), values.T)


def test_a_transpose_of_a_part_that_a_register_chooses() -> None:
    values = noise((3, 4, 5), dtypes.int16)

    def body() -> Array:
        register = nisa.register_alloc(1)
        target = held(np.zeros((5, 3, 4)), dtypes.int16)
        source = held(values, dtypes.int16, HBM)
        nisa.dma_transpose(target[:, register], source[register])
        return target.array().copy()

    wanted = np.zeros((5, 3, 4), np.int16)
    wanted[:, 1] = values[1].T
    np.testing.assert_array_equal(on_core(body), wanted)


def test_a_part_out_of_range_is_left_alone() -> None:
    def body() -> Array:
        target = held(np.full((5, 4), 3), dtypes.int16)
        source = held(noise((3, 4, 5), dtypes.int16), dtypes.int16, HBM)
        nisa.dma_transpose(target, source[nisa.register_alloc(3)], oob_mode=SKIP)
        return target.array().copy()

    assert (on_core(body) == 3).all()


def _transpose(
    shape: tuple[int, ...],
    dtype: DType = dtypes.bfloat16,
    into: DType | None = None,
    shown: tuple[int, ...] | None = None,
    region: MemoryRegion = SBUF,
    **options: Any,
) -> Callable[[], Any]:
    def body() -> None:
        turned = tuple(shape[axis] for axis in AXES.get(len(shape), range(len(shape))))
        target = empty(shown or turned, into or dtype, region)
        nisa.dma_transpose(target, held(np.zeros(shape), dtype, HBM), **options)

    return body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_transpose((4, 129), shown=(128, 4)), "at most 128"),
        (_transpose((4, 5), shown=(4, 5)), "[5, 4]"),
        (_transpose((4, 1, 5), shown=(5, 4)), "rank included"),
        (_transpose((4, 5), into=dtypes.float16), "must agree"),
        (_transpose((4, 5), dtypes.uint8), "2 or 4"),
        (_transpose((4, 5), dtypes.float8_e4m3), "2 or 4"),
        (_transpose((4, 5), axes=(0, 1)), "(1, 0)"),
        (_transpose((4, 1, 1, 5), axes=(3, 2, 1, 0)), "(3, 1, 2, 0)"),
        (_transpose((4, 5), region=HBM), "in SBUF"),
        (_transpose((2, 2, 2, 2, 2)), "2, 3 or 4 dimensions"),
        (_transpose((4,), shown=(4, 1)), "2, 3 or 4 dimensions"),
        (_transpose((4, 5), dge_mode=DgeMode.swdge), "vector_offset"),
        (_transpose((4, 5), oob_mode=SKIP), "dynamic index"),
        (_transpose((4, 5), priority=5), "priority is 5"),
        (_transpose((8, 5), dge_mode=DgeMode.hwdge), "must be 16"),
        (_transpose((16, 5), dtypes.int32, dge_mode=DgeMode.hwdge), "2-byte"),
        (_transpose((3, 16, 5), dge_mode=DgeMode.hwdge), "1, 2, 4, 8 or 16"),
        (_transpose((8, 3, 5), dge_mode=DgeMode.hwdge), "multiple of 16"),
        (_transpose((4, 16, 2, 5), dge_mode=DgeMode.hwdge), "multiple of 16"),
    ],
)  # fmt: skip
def test_transposes_that_do_not_exist(body: Callable[[], Any], words: str) -> None:
    rejected(body, "dma_transpose", words)


@pytest.mark.parametrize(
    "shape", [(16, 5), (16, 1, 5), (8, 2, 5), (1, 16, 5), (4, 3, 4, 5), (2, 1, 8, 128)]
)
def test_transposes_of_the_hardware(shape: tuple[int, ...]) -> None:
    on_core(_transpose(shape, dge_mode=DgeMode.hwdge), "gen3")
    rejected(_transpose(shape, dge_mode=DgeMode.hwdge), "gen3", target="gen2")


# Transposes of gathered rows


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("inner", [(64,), (1, 64), (3, 64), (3, 1, 40), (1, 3, 40)])
def test_a_transpose_of_gathered_rows(columns: int, inner: tuple[int, ...]) -> None:
    rng = np.random.default_rng(columns)
    partitions = 128 if columns > 1 else 48
    index = rng.integers(0, 50, (partitions, columns))
    rows = partitions * columns - 16
    values = noise((50, *inner), dtypes.bfloat16)
    steps = [math.prod(inner[k:]) for k in range(len(inner) + 1)]
    pattern = [[steps[0], rows], *([steps[k + 1], inner[k]] for k in range(len(inner)))]
    gathered = bits(values)[index.T.reshape(-1)[:rows]]
    wanted = gathered.transpose(AXES[1 + len(inner)])

    def body() -> Array:
        source = held(values, dtypes.bfloat16, HBM)
        view = source.ap(pattern, vector_offset=tile(index, dtypes.uint32))
        target = empty(wanted.shape, dtypes.bfloat16)
        nisa.dma_transpose(target, view, dge_mode=DgeMode.swdge)
        return bits(target.array())

    np.testing.assert_array_equal(on_core(body, "gen3"), wanted)


def test_skipped_rows_leave_their_columns_alone() -> None:
    index = np.arange(32)
    index[[3, 20]] = 50
    values = noise((50, 24), dtypes.float16)

    def body(mode: OobMode) -> Array:
        source = held(values, dtypes.float16, HBM)
        view = source.ap([[24, 32], [1, 24]], vector_offset=tile(index[:, None], dtypes.uint32))
        target = held(np.ones((24, 32)), dtypes.float16)
        nisa.dma_transpose(target, view, oob_mode=mode)
        return bits(target.array())

    wanted = np.full((24, 32), np.float16(1).view(np.uint16))
    kept = np.isin(np.arange(32), [3, 20])
    wanted[:, ~kept] = bits(values)[index[~kept]].T
    np.testing.assert_array_equal(on_core(lambda: body(SKIP)), wanted)
    rejected(lambda: body(OobMode.error), "row 3", "is 50", "0..49")


@pytest.mark.parametrize(
    ("partitions", "columns", "rows", "options", "words"),
    [
        (32, 2, 32, {}, "128 with several"),
        (24, 1, 16, {}, "16, 32, ... 128"),
        (8, 1, 8, {}, "16, 32, ... 128"),
        (32, 1, 24, {}, "multiple of 16"),
        (32, 1, 32, {"dtype": dtypes.int32}, "2-byte"),
        (32, 1, 32, {"index": dtypes.int32}, "uint32"),
        (32, 1, 32, {"inner": (2, 3, 4)}, "must be 1"),
        (32, 1, 32, {"dge_mode": DgeMode.hwdge}, "swdge"),
        (32, 1, 32, {"target": "gen2"}, "gen3"),
    ],
)
def test_gathered_transposes_that_do_not_exist(
    partitions: int, columns: int, rows: int, options: dict[str, Any], words: str
) -> None:
    dtype = options.get("dtype", dtypes.bfloat16)
    inner = options.get("inner", (8,))
    mode = options.get("dge_mode", DgeMode.unknown)

    def body() -> None:
        source = held(np.zeros((50, *inner)), dtype, HBM)
        index = tile(np.zeros((partitions, columns)), options.get("index", dtypes.uint32))
        steps = [math.prod(inner[k:]) for k in range(len(inner) + 1)]
        pattern = [[steps[0], rows], *([steps[k + 1], inner[k]] for k in range(len(inner)))]
        shape = tuple((rows, *inner)[axis] for axis in AXES[1 + len(inner)])
        nisa.dma_transpose(empty(shape, dtype), source.ap(pattern, vector_offset=index),
                           dge_mode=mode)  # fmt: skip

    rejected(body, words, target=options.get("target", "gen4"))


# dma_compute


@pytest.mark.parametrize("count", [1, 2, 3, 16])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.int16])
@pytest.mark.parametrize("into", REACHED)
def test_a_sum_on_the_way(count: int, dtype: DType, into: MemoryRegion) -> None:
    values = [sample(np.random.default_rng(k), (6, 8), dtype) for k in range(count)]

    def body() -> Array:
        target = empty((6, 8), dtype, into)
        regions = itertools.cycle(REACHED)
        sources = [held(v.astype(dtype.numpy), dtype, next(regions)) for v in values]
        nisa.dma_compute(target, tuple(sources), nl.add, [1.0] * count)
        return target.array().copy()

    total = np.zeros((6, 8), np.float32)
    for part in values:
        total += part.astype(np.float32)
    assert_same(on_core(body), stored(total, dtype))


def test_a_sum_over_its_own_target_and_other_shapes() -> None:
    def body() -> Array:
        table = held(np.arange(12).reshape(3, 4), dtypes.float32, HBM)
        nisa.dma_compute(table, srcs=[table, table.permute((1, 0)).reshape_dim(0, (2, 2))],
                         reduce_op=nl.add, scales=(1.0, 1.0))  # fmt: skip
        return table.array().copy()

    old = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(on_core(body), old + old.T.reshape(3, 4))


def test_a_sum_is_rounded_once() -> None:
    def body() -> Array:
        target = empty((1, 1), dtypes.bfloat16)
        parts = [held(np.full((1, 1), v), dtypes.bfloat16) for v in (256.0, 1.0, 1.0)]
        nisa.dma_compute(target, parts, nl.add)
        return target.array().copy()

    # 256 + 1 alone would be rounded to 256
    assert float(on_core(body)[0, 0]) == 258.0


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_rows_are_added_to(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    old, new = (sample(rng, (n, 4), dtype).astype(dtype.numpy) for n in (9, 3))
    rows = [7, 0, 4]

    def body(swapped: bool, again: bool) -> Array:
        table, index = held(old, dtype, HBM), _rows(*rows)
        target = table.vector_select(0, index)
        same = table.vector_select(0, index) if again else target
        sources = [same, held(new, dtype)]
        nisa.dma_compute(target, sources[::-1] if swapped else sources, nl.add)
        return table.array().copy()

    wanted = old.astype(np.float32)
    wanted[rows] += new.astype(np.float32)
    for swapped, again in itertools.product((False, True), repeat=2):
        found = on_core(lambda s=swapped, a=again: body(s, a))
        assert_same(found, stored(wanted, dtype))


def test_gathered_rows_are_added() -> None:
    old, table, rows = noise((3, 4), dtypes.int8), noise((9, 4), dtypes.int8, 1), [7, 0, 7]

    def body() -> Array:
        target = held(old, dtypes.int8)
        source = held(table, dtypes.int8, HBM).vector_select(0, _rows(*rows))
        nisa.dma_compute(target, [source, target], nl.add, unique_indices=True)
        return target.array().copy()

    wanted = old.astype(np.float32) + table[rows].astype(np.float32)
    assert_same(on_core(body), stored(wanted, dtypes.int8))


def test_rows_that_stand_twice() -> None:
    def body(unique: bool) -> Array:
        table = held(np.zeros((4, 2)), dtypes.float32, HBM)
        target = table.vector_select(0, _rows(1, 2, 1))
        added = held(np.array([[1, 2], [3, 4], [5, 6]]), dtypes.float32)
        nisa.dma_compute(target, [target, added], nl.add, unique_indices=unique)
        return table.array().copy()

    assert on_core(lambda: body(False)).tolist() == [[0, 0], [6, 8], [3, 4], [0, 0]]
    rejected(lambda: body(True), "unique_indices")


def test_sums_skip_rows_out_of_range() -> None:
    def scatter(mode: OobMode) -> Array:
        table = held(np.ones((4, 2)), dtypes.float32, HBM)
        target = table.vector_select(0, _rows(1, 9, -1))
        added = held(np.full((3, 2), 2), dtypes.float32)
        nisa.dma_compute(target, [target, added], nl.add, oob_mode=mode)
        return table.array().copy()

    def gather(mode: OobMode) -> Array:
        target = held(np.ones((3, 2)), dtypes.float32)
        source = held(np.full((4, 2), 2), dtypes.float32, HBM).vector_select(0, _rows(1, 9, 3))
        nisa.dma_compute(target, [source, target], nl.add, oob_mode=mode)
        return target.array().copy()

    assert on_core(lambda: scatter(SKIP)).tolist() == [[1, 1], [3, 3], [1, 1], [1, 1]]
    assert on_core(lambda: gather(SKIP)).tolist() == [[3, 3], [1, 1], [3, 3]]
    rejected(lambda: scatter(OobMode.error), "row 1")
    rejected(lambda: gather(OobMode.error), "row 1")


def _compute(*counts: int, **options: Any) -> Callable[[], Any]:
    def body() -> None:
        sources = [held(np.zeros((2, n)), options.get("dtype", dtypes.float32)) for n in counts]
        target = empty((2, 3), region=options.get("region", SBUF))
        nisa.dma_compute(target, sources, options.get("op", nl.add), options.get("scales"))

    return body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_compute(), "0 tensors"),
        (_compute(*[3] * 17), "17 tensors"),
        (_compute(3, 4), "srcs[1]"),
        (_compute(3, op=nl.multiply), "nl.add"),
        (_compute(3, 3, scales=[1.0, 2.0]), "scales"),
        (_compute(3, 3, scales=[1.0]), "scales"),
        (_compute(3, region=PSUM), "SBUF and HBM"),
        (_compute(3, dtype=dtypes.float8_e4m3fn_x4), "float8_e4m3fn_x4"),
    ],
)
def test_sums_that_do_not_exist(body: Callable[[], Any], words: str) -> None:
    rejected(body, "dma_compute", words)


def test_sums_with_an_index_have_two_sources() -> None:
    def body(count: int, own: bool) -> None:
        table = held(np.zeros((4, 2)), dtypes.float32, HBM)
        target = table.vector_select(0, _rows(1, 2))
        others = [held(np.zeros((2, 2)), dtypes.float32) for _ in range(count)]
        nisa.dma_compute(target, [target, *others] if own else others, nl.add)

    on_core(lambda: body(1, True))
    rejected(lambda: body(2, True), "there must be two")
    rejected(lambda: body(2, False), "the same view")
