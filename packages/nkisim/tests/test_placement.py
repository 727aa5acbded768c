"""Placement: nothing that is in use at once overlaps, and what does not fit is explained."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_maker import Maker

from nkisim import machine
from nkisim.dtypes import bfloat16, float32, uint8
from nkisim.enums import Engine, MemoryRegion, NcVersion
from nkisim.errors import NkiCapacityError
from nkisim.timing import placement
from nkisim.trace import CoreTrace, Place

MACHINE = machine.of(NcVersion.gen3)
KIB = 1024


def touch(maker: Maker, *tensors: Place) -> None:
    maker.issue("memset", Engine.vector, tensors, value=0)


def held(places: list[Place], at: int) -> list[tuple[int, int]]:
    return sorted(
        (p.address, p.address + p.bytes_per_partition)
        for p in places
        if p.first <= at <= p.last and p.address is not None
    )


def most(core: CoreTrace, region: MemoryRegion) -> int:
    """Bytes that are in use at the worst time, counted byte by byte where the kernel placed."""
    worst = 0
    for at in range(len(core.instructions)):
        live = [p for p in core.places if p.region is region and p.first <= at <= p.last]
        fixed = set()
        for p in live:
            if p.addressed and p.address is not None:
                fixed |= set(range(p.address, p.address + p.bytes_per_partition))
        free = sum(p.bytes_per_partition for p in live if not p.addressed)
        worst = max(worst, free + len(fixed))
    return worst


@st.composite
def cores(draw: st.DrawFn) -> CoreTrace:
    """Tensors of up to a sixteenth of the memory, each used from one instruction to another."""
    maker = Maker()
    length = 24
    spans: list[tuple[int, int, Place]] = []
    psum = draw(st.booleans())
    limit = MACHINE.psum_bytes_per_partition if psum else MACHINE.sbuf_bytes_per_partition
    region = MemoryRegion.psum if psum else MemoryRegion.sbuf
    for _ in range(draw(st.integers(1, 20))):
        size = draw(st.integers(1, limit // 16))
        first = draw(st.integers(0, length - 1))
        last = draw(st.integers(first, min(first + 6, length - 1)))
        place = maker.tensor(region, (4, size), uint8)
        if draw(st.integers(0, 4)) == 0:
            place.address, place.addressed = draw(st.integers(0, limit // 16)) * 8, True
        spans.append((first, last, place))
    for at in range(length):
        touch(maker, *(p for first, last, p in spans if first <= at <= last))
    return maker.trace


@settings(deadline=None, max_examples=150)
@given(cores())
def test_tensors_in_use_at_once_do_not_overlap(core: CoreTrace) -> None:
    fixed = {p: p.address for p in core.places if p.addressed}
    usage = placement.place(core, MACHINE)
    for at in range(len(core.instructions)):
        live = [p for p in core.places if p.first <= at <= p.last]
        for place in live:
            assert place.address is not None
            limit = usage.psum_limit if place.region is MemoryRegion.psum else usage.sbuf_limit
            assert 0 <= place.address <= place.address + place.bytes_per_partition <= limit
            for other in live:
                # the kernel may place its own on top of each other
                if other is not place and not (place.addressed and other.addressed):
                    assert other.address is not None
                    assert (
                        place.address + place.bytes_per_partition <= other.address
                        or other.address + other.bytes_per_partition <= place.address
                    )
    assert {p: p.address for p in core.places if p.addressed} == fixed
    assert usage.sbuf == most(core, MemoryRegion.sbuf)
    assert usage.psum == most(core, MemoryRegion.psum)


@settings(deadline=None, max_examples=150)
@given(cores(), st.integers(1, 20))
def test_checking_says_what_placing_does(core: CoreTrace, smaller: int) -> None:
    """In a memory that may be too small for them."""
    small = replace(
        MACHINE,
        sbuf_bytes_per_partition=MACHINE.sbuf_bytes_per_partition // smaller,
        psum_bytes_per_partition=MACHINE.psum_bytes_per_partition // smaller,
    )

    def error(ask: Callable[[CoreTrace, machine.Machine], object]) -> str | None:
        try:
            ask(core, small)
        except NkiCapacityError as found:
            return str(found)
        return None

    assert error(placement.check) == error(placement.place)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 6000), min_size=1, max_size=8))
def test_psum_tensors_keep_to_their_banks(sizes: list[int]) -> None:
    maker = Maker()
    for size in sizes:
        touch(maker, maker.psum(4, size, dtype=uint8))
    placement.place(maker.trace, MACHINE)
    for place in maker.trace.places:
        assert place.address is not None
        if place.bytes_per_partition > 2 * KIB:
            assert place.address % (2 * KIB) == 0
        else:
            last = place.address + place.bytes_per_partition - 1
            assert place.address // (2 * KIB) == last // (2 * KIB)


def test_an_address_is_used_again_as_late_as_possible() -> None:
    maker = Maker()
    tensors = [maker.psum(128, 512) for _ in range(16)]
    for tensor in tensors:
        touch(maker, tensor)
    placement.place(maker.trace, MACHINE)
    banks = [t.address // 2048 for t in tensors if t.address is not None]
    assert banks == list(range(8)) * 2


def test_kernel_placed_tensors_block_their_range_only_while_they_are_used() -> None:
    maker = Maker()
    whole = MACHINE.sbuf_bytes_per_partition
    early, late = maker.sbuf(128, whole // 4), maker.sbuf(128, whole // 4)
    fixed = maker.sbuf(128, whole // 8, address=0)
    touch(maker, early)
    touch(maker, fixed)
    touch(maker, late)
    placement.place(maker.trace, MACHINE)
    assert early.address == late.address == 0


def test_a_tensor_avoids_what_the_kernel_places_later() -> None:
    maker = Maker()
    long, fixed = maker.sbuf(128, 64), maker.sbuf(128, 64, address=0)
    touch(maker, long)
    touch(maker, fixed)
    touch(maker, long)
    placement.place(maker.trace, MACHINE)
    assert long.address is not None
    assert long.address >= 256


def test_fragmentation_is_overcome() -> None:
    """Rotating leaves holes that a large tensor does not fit into; another order does."""
    maker = Maker()
    half = MACHINE.sbuf_bytes_per_partition // 2
    small = [maker.sbuf(4, half // 4, dtype=uint8) for _ in range(7)]
    big = maker.sbuf(4, half, dtype=uint8)
    keep = small[3]
    for tensor in small:
        touch(maker, tensor)
    touch(maker, big, keep)
    placement.place(maker.trace, MACHINE)
    assert big.address is not None and keep.address is not None
    assert big.address + half <= keep.address or keep.address < big.address


def test_what_no_order_of_the_program_places_is_placed_otherwise() -> None:
    """In program order the second tensor ends up in the middle, and the third has no room."""
    maker = Maker()
    tenth = MACHINE.sbuf_bytes_per_partition // 320 * 32
    first, second, third = (maker.sbuf(4, n * tenth, dtype=uint8) for n in (4, 2, 8))
    touch(maker, first, second)
    touch(maker, second, third)
    usage = placement.place(maker.trace, MACHINE)
    assert usage.sbuf == 10 * tenth
    assert (second.address, third.address) == (8 * tenth, 0)


def test_placing_twice_gives_the_same() -> None:
    maker = Maker()
    tensors = [maker.sbuf(128, 100 * k + 1) for k in range(20)]
    for k in range(20):
        touch(maker, *tensors[max(0, k - 3) : k + 1])
    first = placement.place(maker.trace, MACHINE)
    addresses = [t.address for t in tensors]
    assert placement.place(maker.trace, MACHINE) == first
    assert [t.address for t in tensors] == addresses


def test_unused_tensors_take_nothing() -> None:
    maker = Maker()
    unused = maker.sbuf(128, MACHINE.sbuf_bytes_per_partition)
    touch(maker, maker.sbuf(128, 8))
    assert placement.place(maker.trace, MACHINE).sbuf == 32
    assert unused.address is None


def test_too_much_is_explained() -> None:
    maker = Maker()
    weights = maker.tensor(MemoryRegion.sbuf, (128, 50, 1024), float32, name="weights")
    cache = maker.tensor(MemoryRegion.sbuf, (128, 8 * KIB), bfloat16, name="cache")
    touch(maker, weights)
    touch(maker, weights, cache)
    with pytest.raises(NkiCapacityError) as caught:
        placement.place(maker.trace, MACHINE)
    text = str(caught.value)
    assert "SBUF" in text
    assert "212984" in text
    assert str(50 * 4096 + 16 * KIB) in text
    lines = text.splitlines()
    assert "weights" in lines[2] and "[128, 50, 1024]" in lines[2] and "204800" in lines[2]
    assert "cache" in lines[3] and "bfloat16" in lines[3]


def test_psum_can_be_full_of_banks() -> None:
    maker = Maker()
    # nine tensors of a little more than half a bank each cannot share one
    touch(maker, *(maker.psum(128, 1100, dtype=uint8) for _ in range(9)))
    with pytest.raises(NkiCapacityError, match="no 1100 contiguous bytes.*PSUM"):
        placement.place(maker.trace, MACHINE)


def test_a_long_list_is_cut_short() -> None:
    maker = Maker()
    touch(maker, *(maker.sbuf(128, 2560) for _ in range(30)))
    with pytest.raises(NkiCapacityError, match="14 more"):
        placement.place(maker.trace, MACHINE)
