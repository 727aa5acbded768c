"""What is read must have been written, and last by the tensor that is read."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import Array, empty, on_core, rejected, tile, warned

import nkisim
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim import dtypes
from nkisim.enums import MemoryRegion
from nkisim.settings import Rules

SBUF = MemoryRegion.sbuf
PSUM = MemoryRegion.psum
HBM = MemoryRegion.private_hbm


def test_reading_what_nothing_wrote_names_operand_and_tensor() -> None:
    def body() -> None:
        fresh = nl.ndarray((4, 2), nl.float32, nl.sbuf, name="fresh")
        nisa.tensor_tensor(empty((4, 2)), tile(np.zeros((4, 2), np.float32)), fresh, nl.add)

    rejected(body, "uninitialized", "tensor_tensor", "data2", "'fresh'", "test_memory.py")
    rejected(body, "partitions 0:4, bytes 0:8")


def test_reading_what_nothing_wrote_warns_and_gives_nan() -> None:
    def kernel() -> Any:
        out = nl.ndarray((4, 2), nl.bfloat16, nl.shared_hbm)
        nisa.dma_copy(out, nl.ndarray((4, 2), nl.bfloat16, nl.sbuf, name="fresh"))
        return out

    with pytest.warns(nkisim.NkiWarning, match=r"src reads .*'fresh'.*\[uninitialized\]"):
        assert np.isnan(nkisim.simulate(kernel)().astype(np.float32)).all()


@pytest.mark.parametrize("region", [SBUF, PSUM, HBM, MemoryRegion.shared_hbm])
def test_part_of_what_is_read_was_not_written(region: MemoryRegion) -> None:
    def body(stop: int) -> None:
        source = empty((4, 8), region=region)
        zeros = tile(np.zeros((4, 7), np.float32))
        copy = nisa.tensor_copy if source.on_chip else nisa.dma_copy
        copy(source[:, 0:7], zeros)
        target = empty((4, stop))
        copy(target, source[:, 0:stop])

    on_core(lambda: body(7))
    rejected(lambda: body(8), "uninitialized", "src")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_read_is_refused_exactly_where_something_is_missing(data: st.DataObject) -> None:
    region = data.draw(st.sampled_from([SBUF, HBM]))
    shape = (
        data.draw(st.integers(1, 5)),
        data.draw(st.integers(1, 4)),
        data.draw(st.integers(1, 6)),
    )
    written = np.zeros(shape, np.bool_)

    def key() -> tuple[slice, ...]:
        found = []
        for dim, size in enumerate(shape):
            start = data.draw(st.integers(0, size - 1))
            stop = data.draw(st.integers(start + 1, size))
            step = 1 if dim == 0 else data.draw(st.integers(1, 2))
            found.append(slice(start, stop, step))
        return tuple(found)

    def body() -> None:
        tensor = empty(shape, dtypes.int16, region)
        for _ in range(data.draw(st.integers(0, 5))):
            where = key()
            view = tensor[where]
            nisa.dma_copy(view, tile(np.zeros((1, view.size)), dtypes.int16))
            written[where] = True
        where = key()
        view = tensor[where]
        if written[where].all():
            nisa.dma_copy(empty((1, view.size), dtypes.int16), view)
        else:
            with pytest.raises(nkisim.NkiValidationError, match="uninitialized"):
                nisa.dma_copy(empty((1, view.size), dtypes.int16), view)

    on_core(body)


def test_arguments_and_constants_were_written() -> None:
    def kernel(x: Any) -> Any:
        sbuf = nl.ndarray((2, 2), nl.float32, nl.sbuf)
        nisa.dma_copy(sbuf, x)
        nisa.dma_copy(sbuf, nl.shared_constant(np.ones((2, 2), np.float32)))
        nisa.dma_copy(x, sbuf)
        return x

    assert nkisim.simulate(kernel)(np.zeros((2, 2), np.float32)).all()


def test_an_index_must_have_been_written() -> None:
    def body() -> None:
        index = empty((2, 1), dtypes.uint32)
        table = empty((4, 4), region=HBM)
        table.storage.coverage.full = True
        nisa.dma_copy(empty((2, 4)), table.vector_select(0, index))

    rejected(body, "uninitialized", "[2, 1]")


def test_a_run_without_numerics_sees_it_too() -> None:
    def body() -> None:
        nisa.tensor_copy(empty((2, 2)), empty((2, 2)))

    rejected(body, "uninitialized", numerics=False)


def test_what_nothing_wrote_is_nan() -> None:
    def body() -> list[Any]:
        kinds = (dtypes.float32, dtypes.bfloat16, dtypes.float8_e4m3, dtypes.float8_e4m3fn)
        return [empty((1, 1), kind).array().astype(np.float32).item() for kind in kinds]

    assert np.isnan(on_core(body)).all()


# Rows and columns that an index chooses


@pytest.mark.parametrize("region", [SBUF, HBM])
def test_writing_through_an_index_is_writing_there(region: MemoryRegion) -> None:
    def body(column: int) -> None:
        table, register = empty((1, 4), region=region), nisa.register_alloc(2)
        nisa.dma_copy(table[:, register], tile(np.zeros((1, 1), np.float32)))
        nisa.dma_copy(empty((1, 1)), table[:, column : column + 1])

    on_core(lambda: body(2))
    rejected(lambda: body(1), "uninitialized")


def test_reading_through_an_index_is_reading_there() -> None:
    def body(row: int) -> None:
        table = empty((4, 2), region=HBM)
        nisa.dma_copy(table[1:3], tile(np.zeros((2, 2), np.float32)))
        nisa.dma_copy(empty((1, 2)), table[nisa.register_alloc(row)])

    on_core(lambda: body(2))
    rejected(lambda: body(3), "uninitialized")


def test_scattered_rows_were_written_and_the_others_not() -> None:
    def body(row: int) -> None:
        table, index = empty((6, 2), region=HBM), tile([[4], [1]], dtypes.int32)
        nisa.dma_copy(table.vector_select(0, index), tile(np.zeros((2, 2), np.float32)))
        nisa.dma_copy(empty((1, 2)), table[row])

    for row in (1, 4):
        on_core(partial(body, row))
    for row in (0, 2, 3, 5):
        rejected(partial(body, row), "uninitialized")


def test_gathered_rows_must_have_been_written() -> None:
    def body(rows: list[int]) -> None:
        table = empty((6, 2), region=HBM)
        nisa.dma_copy(table[1:3], tile(np.zeros((2, 2), np.float32)))
        index = tile(np.array(rows)[:, None], dtypes.int32)
        nisa.dma_copy(empty((2, 2)), table.vector_select(0, index))

    on_core(lambda: body([2, 1]))
    rejected(lambda: body([2, 0]), "uninitialized")


def test_where_the_index_is_not_known_nothing_is_called_unwritten() -> None:
    def body() -> None:
        table, index = empty((6, 2), region=HBM), tile([[4], [1]], dtypes.int32)
        nisa.dma_copy(table.vector_select(0, index), tile(np.zeros((2, 2), np.float32)))
        nisa.dma_copy(empty((1, 2)), table[0])

    on_core(body, numerics=False)


# Tensors that share bytes


def test_what_another_tensor_overwrote_is_not_read() -> None:
    def body(stop: int) -> None:
        first = nl.ndarray((4, 8), nl.float32, nl.sbuf, name="first", address=(0, 64))
        second = nl.ndarray((4, 4), nl.float32, nl.sbuf, name="second", address=(0, 80))
        nisa.memset(first, 1.0)
        nisa.memset(second, 2.0)
        nisa.tensor_copy(empty((4, stop)), first[:, 0:stop])

    on_core(lambda: body(4))
    rejected(lambda: body(5), "overwritten", "src", "'first'", "memset")


def test_bytes_are_shared_whatever_type_and_partition() -> None:
    def body() -> Array:
        words = nl.ndarray((64, 2), nl.float32, nl.sbuf, address=(64, 0))
        codes = nl.ndarray((32, 4), nl.uint8, nl.sbuf, address=(96, 4))
        nisa.memset(words, 0.0)
        nisa.memset(codes, 255)
        return words.array().view(np.uint8).copy()

    found = on_core(body)
    assert (found[32:, 4:] == 255).all() and not found[:32].any() and not found[:, :4].any()


def test_what_was_written_again_is_read() -> None:
    def body() -> Any:
        first, second = empty((4, 2), address=(0, 0)), empty((4, 2), address=(0, 0))
        for value in (1.0, 2.0):
            nisa.memset(second, -1.0)
            nisa.memset(first, value)
        target = empty((4, 2))
        nisa.tensor_copy(target, first)
        return target.array().copy()

    assert (on_core(body, rules=Rules.all("error")) == 2.0).all()


def test_what_is_missing_decides_how_it_is_called() -> None:
    """A part that never was written counts, not one that was lost and written again."""

    def body() -> None:
        first, second = empty((4, 8), address=(0, 0)), empty((4, 2), address=(0, 0))
        nisa.memset(first[:, 0:4], 1.0)
        nisa.memset(second, 2.0)
        nisa.memset(first[:, 0:2], 3.0)
        nisa.tensor_copy(empty((4, 8)), first)

    rejected(body, "[uninitialized]")


def test_reading_through_an_alias_is_doubtful() -> None:
    def body() -> Array:
        words = empty((4, 2), dtypes.int32, address=(0, 8))
        halves = empty((4, 4), dtypes.int16, address=(0, 8))
        nisa.memset(words, 0x00020001)
        target = empty((4, 4), dtypes.int16)
        nisa.tensor_copy(target, halves)
        return target.array().copy()

    assert (warned(body, "aliased") == [1, 2, 1, 2]).all()
    rejected(body, "aliased", rules=Rules(aliased="error"))


def test_only_what_a_tensor_had_can_be_overwritten() -> None:
    def body() -> None:
        first, second = empty((4, 3), address=(0, 0)), empty((4, 2), address=(0, 4))
        nisa.memset(first[:, 0:2], 1.0)
        nisa.memset(second, 2.0)
        # the third column was written through the second tensor alone
        nisa.tensor_copy(empty((4, 1)), first[:, 2:3])

    warned(body, "[aliased]")


def test_an_alias_of_what_nothing_wrote_is_uninitialized() -> None:
    def body() -> None:
        first, second = empty((4, 4), address=(0, 0)), empty((4, 4), address=(0, 8))
        nisa.memset(first, 1.0)
        nisa.tensor_copy(empty((4, 4)), second)

    # columns 2 and 3 of the second were written by nobody
    rejected(body, "[uninitialized]")


def test_two_tensors_together_may_have_written_what_a_third_reads() -> None:
    def body() -> None:
        left, right = empty((4, 2), address=(0, 0)), empty((4, 2), address=(0, 8))
        both = empty((4, 4), address=(0, 0))
        nisa.memset(left, 1.0)
        nisa.memset(right, 1.0)
        nisa.tensor_copy(empty((4, 4)), both)

    warned(body, "aliased")


def test_neighbours_that_only_touch_share_nothing() -> None:
    def body() -> None:
        parts = [empty((32, 4), address=(p, b)) for p in (0, 32) for b in (0, 16)]
        for part in parts:
            nisa.memset(part, 1.0)
        for part in parts:
            nisa.tensor_copy(empty((32, 4)), part)

    on_core(body, rules=Rules.all("error"))


@pytest.mark.parametrize("region", [SBUF, PSUM])
@pytest.mark.parametrize("held", [False, True])
def test_a_ring_of_buffers_raises_no_alarm(region: MemoryRegion, held: bool) -> None:
    def body() -> None:
        kept, total = [], empty((4, 8))
        nisa.memset(total, 0.0)
        for turn in range(20):
            buffer = empty((4, 8), region=region, address=(0, turn % 2 * 2048))
            nisa.memset(buffer, 1.0)
            nisa.tensor_tensor(total, total, buffer, nl.add)
            kept += [buffer] if held else []
        assert (total.array() == 20).all()

    on_core(body, rules=Rules.all("error"))


def test_a_ring_used_a_turn_too_late() -> None:
    def body() -> None:
        buffers = []
        for turn in range(3):
            buffers.append(empty((4, 8), address=(0, turn % 2 * 2048)))
            nisa.memset(buffers[-1], 1.0)
        nisa.tensor_copy(empty((4, 8)), buffers[0])

    rejected(body, "overwritten")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_shared_bytes_against_a_table_of_owners(data: st.DataObject) -> None:
    """Who wrote each byte last, and had it before, says what a read is called."""
    places = [
        (
            data.draw(st.sampled_from([0, 32])),
            data.draw(st.integers(0, 6)),
            data.draw(st.integers(1, 6)),
        )
        for _ in range(3)
    ]
    owner = np.full((64, 16), -1)
    wrote = np.zeros((3, 64, 16), np.bool_)

    def box(position: int) -> tuple[slice, slice, Any]:
        partition, byte, width = places[position]
        lo = data.draw(st.integers(0, width - 1))
        hi = data.draw(st.integers(lo + 1, width))
        rows = slice(partition, partition + 32)
        return rows, slice(byte + lo, byte + hi), (slice(None), slice(lo, hi))

    def expected(position: int, where: Any) -> str | None:
        mine = (owner[where] == position) & wrote[position][where]
        if mine.all():
            return None
        if (wrote[position][where] & ~mine).any():
            return "overwritten"
        others = (owner[where] >= 0) & ~mine
        return "aliased" if (mine | others).all() else "uninitialized"

    def body() -> None:
        tensors = [
            nl.ndarray((32, width), nl.uint8, nl.sbuf, address=(partition, byte))
            for partition, byte, width in places
        ]
        for _ in range(data.draw(st.integers(1, 8))):
            position = data.draw(st.integers(0, 2))
            rows, columns, key = box(position)
            if data.draw(st.booleans()):
                nisa.memset(tensors[position][key], 1)
                owner[rows, columns] = position
                wrote[position, rows, columns] = True
                continue
            view = tensors[position][key]
            rule = expected(position, (rows, columns))
            if rule is None:
                nisa.tensor_copy(empty(view.shape, dtypes.uint8), view)
            else:
                with pytest.raises(nkisim.NkiValidationError, match=rf"\[{rule}\]"):
                    nisa.tensor_copy(empty(view.shape, dtypes.uint8), view)

    on_core(body, rules=Rules.all("error"))
