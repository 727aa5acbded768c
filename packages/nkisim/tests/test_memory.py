"""What fits where, what was written, and who shares whose bytes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import Array, core, empty, on_core, rejected, tile, warned

import nkisim
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim import dtypes
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiCapacityError
from nkisim.isa import checks
from nkisim.settings import Rules
from nkisim.tensor import NkiTensor

SBUF = MemoryRegion.sbuf
PSUM = MemoryRegion.psum
HBM = MemoryRegion.private_hbm

# usable bytes of a partition of SBUF
SBUF_BYTES = {"gen2": 180224, "gen3": 212984, "gen4": 245752}
GENERATIONS = tuple(SBUF_BYTES)


def full(body: Callable[[], Any], *words: str, target: str = "gen4") -> None:
    """`body` does not fit, and the text has all of `words`."""
    with pytest.raises(NkiCapacityError) as raised:
        on_core(body, target)
    for word in words:
        assert word in str(raised.value)


# Capacity


@pytest.mark.parametrize("target", GENERATIONS)
@pytest.mark.parametrize("region", [SBUF, PSUM])
@pytest.mark.parametrize("address", [None, (0, 0)])
def test_one_tensor_may_take_a_whole_partition(
    target: str, region: MemoryRegion, address: tuple[int, int] | None
) -> None:
    limit = SBUF_BYTES[target] if region is SBUF else 16384

    def body(size: int) -> None:
        nisa.memset(nl.ndarray((2, size), nl.uint8, region, "huge", address)[:, 0:1], 0)

    on_core(lambda: body(limit), target)
    full(lambda: body(limit + 1), "huge", str(limit + 1), str(limit), target=target)


@pytest.mark.parametrize("region", [SBUF, PSUM])
def test_a_tensor_beyond_the_end(region: MemoryRegion) -> None:
    limit = SBUF_BYTES["gen4"] if region is SBUF else 16384
    start = limit - 2048

    def body(size: int) -> None:
        nl.ndarray((1, size), nl.uint8, region, "last", (0, start // 2048 * 2048))

    on_core(lambda: body(2048))
    full(lambda: body(4097), "last", str(limit))


@pytest.mark.parametrize(("first", "count"), [(0, 129), (96, 33), (128, 1), (64, 65)])
def test_a_tensor_on_too_many_partitions(first: int, count: int) -> None:
    rejected(lambda: empty((count, 1), address=(first, 0)), "128")


def test_more_than_128_partitions() -> None:
    rejected(lambda: empty((129, 1)), "129 partitions", "128")


@pytest.mark.parametrize("address", [(-1, 0), (0, -1)])
def test_addresses_are_not_negative(address: tuple[int, int]) -> None:
    rejected(lambda: empty((1, 1), address=address), "address")


@pytest.mark.parametrize("address", [3, (1,), (1, 2, 3), ("a", 0)])
def test_what_is_no_address(address: Any) -> None:
    with pytest.raises(nkisim.NkiError, match="address"):
        on_core(lambda: empty((1, 1), address=address))


def test_tensors_that_live_at_once_must_fit_together() -> None:
    size = SBUF_BYTES["gen4"] // 4 // 3 + 1000

    def kernel(count: int, apart: bool) -> Callable[[Any], Any]:
        def body(x: Any) -> Any:
            tiles = []
            for position in range(count):
                tiles.append(nl.ndarray((1, size), nl.float32, nl.sbuf, f"tile{position}"))
                nisa.memset(tiles[-1], 0)
                if apart:
                    nisa.dma_copy(x[0:1, 0:1], tiles[-1][:, 0:1])
            for tensor in () if apart else tiles:
                nisa.dma_copy(x[0:1, 0:1], tensor[:, 0:1])
            return x

        return body

    x = np.zeros((1, 1), np.float32)
    nkisim.simulate(kernel(2, False), target="gen4")(x)
    # one after the other, any number of them fits
    nkisim.simulate(kernel(9, True), target="gen4")(x)
    with pytest.raises(NkiCapacityError) as raised:
        nkisim.simulate(kernel(3, False), target="gen4")(x)
    for word in ("tile0", "tile1", "tile2", str(size * 4), str(SBUF_BYTES["gen4"])):
        assert word in str(raised.value)


def test_addressed_tensors_at_one_address_count_once() -> None:
    size = SBUF_BYTES["gen4"] // 4 // 2

    def kernel(x: Any) -> Any:
        for _ in range(5):
            tensor = nl.ndarray((1, size), nl.float32, nl.sbuf, address=(0, 0))
            nisa.memset(tensor, 0)
            nisa.dma_copy(x, tensor[:, 0:1])
        return x

    nkisim.simulate(kernel, target="gen4")(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("byte", [512, 2047, 4 * 2048 + 4])
def test_psum_tensors_begin_with_a_bank(byte: int) -> None:
    def body() -> None:
        empty((1, 1), region=PSUM, address=(0, byte))

    warned(body, "bank_start")
    rejected(body, "2048", rules=Rules(bank_start="error"))


@pytest.mark.parametrize("bank", range(8))
def test_every_bank_is_a_beginning(bank: int) -> None:
    def body() -> None:
        empty((1, 1), region=PSUM, address=(0, bank * 2048))

    on_core(body, rules=Rules.all("error"))


# Partitions


def test_where_operands_may_start() -> None:
    """Up to 32 partitions in any quadrant, up to 64 in either half, more at the first one."""
    rules = Rules()
    legal = set()

    def body() -> None:
        table = tile(np.zeros((128, 2), np.float32))
        for first in range(128):
            for count in range(1, 129 - first):
                operand = table[first : first + count]
                try:
                    checks.operand(core(), "op", "dst", operand)
                except nkisim.NkiValidationError as error:
                    assert f"starts at partition {first} with {count}" in str(error)
                else:
                    legal.add((first, count))

    on_core(body, rules=rules)
    wanted = {(first, count) for first in (0, 32, 64, 96) for count in range(1, 33)}
    wanted |= {(first, count) for first in (0, 64) for count in range(33, 65)}
    wanted |= {(0, count) for count in range(65, 129)}
    assert legal == wanted


def test_where_an_addressed_operand_starts_counts_from_its_memory() -> None:
    def body(count: int, first: int, rows: slice) -> None:
        nisa.memset(empty((count, 2), address=(first, 0))[rows], 0.0)

    on_core(lambda: body(32, 96, slice(0, 32)))
    on_core(lambda: body(64, 32, slice(32, 48)))
    rejected(lambda: body(32, 80, slice(0, 32)), "partition 80")
    rejected(lambda: body(64, 32, slice(0, 64)), "partition 32")


def test_partitions_follow_one_another() -> None:
    words = ("partition_start", "follow one another")
    rejected(lambda: nisa.memset(empty((8, 2))[::2], 0.0), *words)
    rejected(lambda: nisa.dma_copy(empty((4, 2)), tile(np.zeros((8, 2), np.float32))[::2]), *words)
    rejected(lambda: nisa.dma_copy(empty((8, 2))[::2], tile(np.zeros((4, 2), np.float32))), *words)


def test_dma_starts_at_any_partition() -> None:
    def body() -> Array:
        target = tile(np.zeros((8, 2), np.float32))
        nisa.dma_copy(target[5:7], tile(np.ones((2, 2), np.float32)))
        return target.array().copy()

    found = on_core(body)
    assert found[5:7].all() and not found[:5].any() and not found[7:].any()


@pytest.mark.parametrize("shape", [(4, 3, 3, 4, 5), (4, 3, 3, 3, 4, 5)])
def test_an_access_pattern_has_four_free_dimensions(shape: tuple[int, ...]) -> None:
    def body(view: Callable[[NkiTensor], NkiTensor]) -> None:
        nisa.memset(view(empty(shape)), 0.0)

    # what is contiguous is one dimension
    on_core(lambda: body(lambda t: t))
    every_other = tuple(slice(None, None, 2) for _ in shape[1:])
    if len(shape) == 5:
        on_core(lambda: body(lambda t: t[(slice(None), *every_other)]))
    else:
        rejected(lambda: body(lambda t: t[(slice(None), *every_other)]), "4 free dimensions")


def test_an_instruction_takes_64_k_elements() -> None:
    on_core(lambda: nisa.memset(empty((1, 65536), dtypes.uint8), 0))
    rejected(lambda: nisa.memset(empty((1, 65537), dtypes.uint8), 0), "65536 elements")


# What was written


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


# Lives of tensors


@pytest.mark.parametrize("region", [SBUF, PSUM, HBM])
@pytest.mark.parametrize("address", [None, (0, 2048)])
def test_the_memory_of_a_tensor_goes_with_its_last_view(
    region: MemoryRegion, address: tuple[int, int] | None
) -> None:
    def body() -> None:
        tensor = empty((4, 8), region=region, address=None if region is HBM else address)
        storage = weakref.ref(tensor.storage)
        copy = nisa.dma_copy if region is HBM else nisa.tensor_copy
        copy(tensor, tile(np.zeros((4, 8), np.float32)))
        view = tensor[:, 0:4]
        del tensor
        copy(empty((4, 4)), view)
        assert storage() is not None
        del view
        assert storage() is None

    gc.disable()
    try:
        on_core(body)
    finally:
        gc.enable()


def test_a_tensor_that_matmuls_added_up_goes_too() -> None:
    def body() -> None:
        ones = tile(np.ones((4, 4), np.float32))
        psum = empty((4, 4), region=PSUM)
        storage = weakref.ref(psum.storage)
        nisa.nc_matmul(psum, ones, ones)
        nisa.tensor_copy(empty((4, 4)), psum)
        del psum
        assert storage() is None

    gc.disable()
    try:
        on_core(body)
    finally:
        gc.enable()


def test_a_new_psum_tensor_starts_to_accumulate_anew() -> None:
    def body() -> list[Array]:
        ones, found = tile(np.ones((4, 4), np.float32)), []
        for _ in range(2):
            psum = empty((4, 4), region=PSUM, address=(0, 2048))
            for _ in range(3):
                nisa.nc_matmul(psum, ones, ones)
            out = empty((4, 4))
            nisa.tensor_copy(out, psum)
            found.append(out.array().copy())
        return found

    first, second = on_core(body, rules=Rules.all("error"))
    assert (first == 12).all() and (second == 12).all()
