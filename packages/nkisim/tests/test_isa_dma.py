"""Copies by DMA: between memories and types, gathers, scatters, and indices out of range."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from dma_tiles import HBM, PSUM, REACHED, SBUF, SHARED, SKIP, bits, held, noise, row_index
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

PACKED = (dtypes.float8_e4m3fn_x4, dtypes.float8_e5m2_x4, dtypes.float4_e2m1fn_x4)


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


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int32, dtypes.uint8, *PACKED])
@pytest.mark.parametrize("nowhere", NOWHERE)
def test_rows_out_of_range_are_an_error(dtype: DType, nowhere: int) -> None:
    def gather() -> None:
        table = held(noise((9, 4), dtype), dtype, HBM)
        nisa.dma_copy(empty((3, 4), dtype), table.vector_select(0, row_index(3, nowhere, 5)))

    def scatter() -> None:
        table = held(noise((9, 4), dtype), dtype, HBM)
        nisa.dma_copy(
            table.vector_select(0, row_index(3, nowhere, 5)), held(noise((3, 4), dtype), dtype)
        )

    for body in (gather, scatter):
        rejected(body, "row 1", "0..8", "oob_mode.skip")


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int32, dtypes.uint8, *PACKED])
@pytest.mark.parametrize("nowhere", NOWHERE)
def test_rows_out_of_range_are_skipped_and_keep_their_bits(dtype: DType, nowhere: int) -> None:
    table, row = noise((9, 4), dtype), noise((3, 4), dtype, 1)

    def gather(shape: tuple[int, ...]) -> Array:
        target, source = held(row.reshape(shape), dtype), held(table, dtype, HBM)
        nisa.dma_copy(target, source.vector_select(0, row_index(3, nowhere, 5)), oob_mode=SKIP)
        return bits(target.array()).reshape(3, 4)

    def scatter() -> Array:
        target = held(table, dtype, HBM)
        nisa.dma_copy(
            target.vector_select(0, row_index(3, nowhere, 5)), held(row, dtype), oob_mode=SKIP
        )
        return bits(target.array())

    wanted = bits(row)
    wanted[[0, 2]] = bits(table)[[3, 5]]
    # the skipped elements are the same ones in a target of another shape
    for shape in ((3, 4), (1, 12), (6, 2), (3, 2, 2)):
        np.testing.assert_array_equal(on_core(partial(gather, shape)), wanted)
    wanted = bits(table)
    wanted[[3, 5]] = bits(row)[[0, 2]]
    np.testing.assert_array_equal(on_core(scatter), wanted)


def test_all_rows_may_be_skipped() -> None:
    def body() -> Array:
        target = tile(np.full((2, 4), 7.0, np.float32))
        source = held(np.zeros((3, 4)), dtypes.float32, HBM)
        nisa.dma_copy(target, source.vector_select(0, row_index(-1, -1)), oob_mode=SKIP)
        return target.array().copy()

    assert (on_core(body) == 7).all()


def test_a_row_skipped_on_either_side_is_not_moved() -> None:
    def body() -> Array:
        target = held(np.zeros((4, 2)), dtypes.float32, HBM)
        source = held(np.arange(1, 9).reshape(4, 2), dtypes.float32, HBM)
        nisa.dma_copy(
            target.vector_select(0, row_index(0, 9, 2)),
            source.vector_select(0, row_index(3, 0, -1)), oob_mode=SKIP,
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
        nisa.dma_copy(empty((2, 2)), table.vector_select(0, row_index(1, 2)), dge_mode=mode)

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
        nisa.dma_copy(empty((2, 2)), table.vector_select(0, row_index(1, 9)))
        nisa.dma_transpose(empty((2, 4)), table)
        nisa.dma_compute(empty((4, 2)), [table, table], nl.add)
        assert len(core().trace) == 3

    on_core(body, numerics=False)
