"""Dependencies against a statement by sets of bytes."""

from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_maker import Maker, part, whole

from nkisim.dtypes import uint8
from nkisim.enums import Engine, MemoryRegion
from nkisim.errors import NkiValidationError
from nkisim.timing import dependencies
from nkisim.timing.dependencies import ANTI, FLOW, ORDER
from nkisim.trace import Access, CoreTrace, Meeting, Place

Byte = tuple[object, int, int]


def bytes_of(access: Access) -> set[Byte]:
    """Every byte: its memory, partition and position in it."""
    place = access.place
    memory: object = place.region if place.on_chip else place
    starts = [access.lo + (place.address or 0)]
    if access.dynamic:
        # it may touch all of them
        return {
            (memory, partition, byte + (place.address or 0))
            for partition in range(access.p0, access.p1)
            for byte in range(access.lo, access.hi)
        }
    for step, count in access.steps:
        starts = [start + step * i for start, i in product(starts, range(count))]
    return {
        (memory, partition, start + offset)
        for partition in range(access.p0, access.p1)
        for start in starts
        for offset in range(access.run)
    }


def conflicts(core: CoreTrace) -> dict[tuple[int, int], int]:
    """All pairs of instructions that share a byte which one of them writes, and how."""
    reads = [set().union(*map(bytes_of, i.reads), set()) for i in core.instructions]
    writes = [set().union(*map(bytes_of, i.writes), set()) for i in core.instructions]
    pairs = {}
    for j in range(len(reads)):
        for i in range(j):
            if writes[i] & reads[j]:
                pairs[i, j] = FLOW
            elif (reads[i] | writes[i]) & writes[j]:
                pairs[i, j] = ANTI
    return pairs


def edges(core: CoreTrace) -> dict[tuple[int, int], int]:
    found = dependencies.find(core)
    return {(i, j): kind for j in range(len(core.instructions)) for i, kind in found.of(j).items()}


def reachable(found: dict[tuple[int, int], int], n: int) -> np.ndarray:
    """[n, n] whether j waits for i, directly or through others."""
    waits = np.zeros((n, n), bool)
    for i, j in found:
        waits[i, j] = True
    for k in range(n):
        waits |= np.outer(waits[:, k], waits[k])
    return waits


@st.composite
def accesses(draw: st.DrawFn, places: list[Place]) -> Access:
    place = draw(st.sampled_from(places))
    size = place.bytes_per_partition
    first = draw(st.integers(0, place.partitions - 1)) if place.on_chip else 0
    last = draw(st.integers(first + 1, place.partitions)) if place.on_chip else 1
    run = draw(st.integers(1, size))
    steps: list[tuple[int, int]] = []
    span = run
    for _ in range(draw(st.integers(0, 2))):
        count = draw(st.integers(2, 4))
        step = draw(st.integers(1, max(size // 2, 1)))
        if span + step * (count - 1) <= size:
            span += step * (count - 1)
            steps.insert(0, (step, count))
    low = draw(st.integers(0, size - span))
    access = part(place, low, run, tuple(steps), (first, last))
    if draw(st.integers(0, 3)) == 0:
        access.dynamic, access.lo, access.hi = True, 0, size
    return access


@st.composite
def cores(draw: st.DrawFn) -> CoreTrace:
    maker = Maker()
    places = [
        # two that overlap, one apart, PSUM at the same addresses, and HBM
        maker.sbuf(2, 12, dtype=uint8, address=0),
        maker.sbuf(2, 20, dtype=uint8, address=8),
        maker.sbuf(2, 8, dtype=uint8, address=1020),
        maker.psum(2, 12, dtype=uint8, address=0),
        maker.hbm(12, dtype=uint8),
        maker.hbm(80, dtype=uint8),
    ]
    for _ in range(draw(st.integers(1, 8))):
        reads = tuple(draw(st.lists(accesses(places), max_size=2)))
        writes = tuple(draw(st.lists(accesses(places), max_size=2)))
        engine = draw(st.sampled_from((Engine.vector, Engine.scalar, Engine.dma)))
        maker.issue("some", engine, writes, reads)
    return maker.trace


@pytest.fixture(params=["as it is", "small"])
def buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory tracked in pieces of its usual size, or so small that these few bytes fill many."""
    if request.param == "small":
        for name in ("_SBUF_SHIFT", "_PSUM_SHIFT", "_HBM_SHIFT", "_SPREAD"):
            monkeypatch.setattr(dependencies, name, 1)


EVERY_SIZE = settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@EVERY_SIZE
@given(core=cores())
def test_waiting_is_sharing_bytes(buckets: None, core: CoreTrace) -> None:
    true = conflicts(core)
    found = edges(core)
    # nobody waits without a shared byte
    assert set(found) <= set(true)
    # and whoever shares one waits, if only through others
    waits = reachable(found, len(core.instructions))
    assert all(waits[i, j] for i, j in true)
    # and for a result only where there is one; it may have been overwritten since
    assert all(true[pair] == FLOW for pair, kind in found.items() if kind == FLOW)


@EVERY_SIZE
@given(core=cores())
def test_results_are_waited_for_directly(buckets: None, core: CoreTrace) -> None:
    """A value that is still there when it is read makes its reader wait for its writer itself."""
    found = edges(core)
    last: dict[Byte, set[int]] = {}
    for j, instruction in enumerate(core.instructions):
        for access in instruction.reads:
            for byte in bytes_of(access):
                assert all(found[i, j] == FLOW for i in last.get(byte, ()))
        for access in instruction.writes:
            for byte in bytes_of(access):
                # one that may write it leaves those before in the running
                last[byte] = {j} | (last.get(byte, set()) if access.dynamic else set())


def test_a_write_through_an_index_may_leave_what_was_there() -> None:
    """Even one with a pattern as large as the tensor."""
    maker = Maker()
    table = maker.hbm(16, 64)
    scattered = whole(table)
    scattered.dynamic = True
    maker.issue("some", Engine.vector, (table,))
    maker.issue("some", Engine.vector, (scattered,))
    maker.issue("some", Engine.vector, (), (table,))
    assert edges(maker.trace) == {(0, 1): ANTI, (0, 2): FLOW, (1, 2): FLOW}


def test_interleaved_columns_are_independent() -> None:
    maker = Maker()
    tile = maker.sbuf(128, 1024, address=0)
    even = part(tile, 0, 4, ((8, 512),))
    odd = part(tile, 4, 4, ((8, 512),))
    maker.issue("memset", Engine.vector, (even,), (), value=0)
    maker.issue("memset", Engine.vector, (odd,), (), value=0)
    maker.copy(maker.sbuf(128, 512, address=8192), even)
    assert edges(maker.trace) == {(0, 2): FLOW}


def test_partitions_separate_transfers() -> None:
    maker = Maker()
    tile, rows = maker.sbuf(128, 64, address=0), maker.hbm(128, 64)
    for p in range(4):
        maker.load(part(tile, 0, 256, partitions=(p, p + 1)), part(rows, 256 * p, 256))
    maker.copy(maker.sbuf(128, 64, address=4096), tile)
    assert edges(maker.trace) == {(p, 4): FLOW for p in range(4)}


@pytest.mark.parametrize(
    "overwritten",
    # (low byte, bytes, partitions)
    [(0, 256, (0, 64)), (0, 256, (64, 128)), (0, 128, (0, 128)), (128, 128, (0, 128))],
)
def test_what_a_write_leaves_is_still_waited_for(
    overwritten: tuple[int, int, tuple[int, int]],
) -> None:
    maker = Maker()
    tile, low, run, partitions = maker.sbuf(128, 64, address=0), *overwritten
    maker.issue("memset", Engine.vector, (tile,), value=0)
    maker.issue("memset", Engine.vector, (part(tile, low, run, (), partitions),), value=1)
    for quarter in ((0, 64), (64, 128)):
        for half in (0, 128):
            maker.copy(maker.sbuf(64, 32, address=4096), part(tile, half, 128, (), quarter))
            inside = partitions[0] <= quarter[0] < partitions[1] and low <= half < low + run
            found = dependencies.find(maker.trace).of(len(maker.trace) - 1)
            assert {k for k in found if k < 2} == {1 if inside else 0}


def test_an_address_that_is_used_again_is_waited_for() -> None:
    maker = Maker()
    source, sink = maker.hbm(128, 64), maker.hbm(128, 64)
    old, new = maker.sbuf(128, 64, address=512), maker.sbuf(128, 64, address=512)
    maker.load(old, source)
    maker.load(sink, old)
    maker.load(new, source)
    # the last waits for the first through the second
    assert edges(maker.trace) == {(0, 1): FLOW, (1, 2): ANTI}


def test_sums_in_psum_wait_for_the_place_only() -> None:
    maker = Maker()
    a, b = maker.sbuf(128, 128, address=0), maker.sbuf(128, 512, address=1024)
    out = maker.psum(128, 512, address=0)
    maker.matmul(out, a, b)
    maker.matmul(out, a, b, add=True)
    maker.copy(maker.sbuf(128, 512, address=8192), out)
    assert edges(maker.trace) == {(0, 1): ANTI, (1, 2): FLOW}


def test_inputs_that_nobody_writes_cost_nothing() -> None:
    maker = Maker()
    table = maker.hbm(1024)
    for k in range(3):
        maker.load(maker.sbuf(1, 1024, address=4096 * k), table)
    assert edges(maker.trace) == {}


def test_a_block_that_is_not_reordered_orders_each_engine() -> None:
    maker = Maker()
    tiles = [maker.sbuf(128, 64, address=256 * k) for k in range(12)]
    maker.copy(tiles[0], tiles[1], scope=1)
    maker.load(tiles[2], maker.hbm(128, 64))
    maker.copy(tiles[3], tiles[4], Engine.scalar, scope=1)
    maker.copy(tiles[5], tiles[6], scope=2)
    maker.copy(tiles[7], tiles[8], scope=1)
    maker.copy(tiles[9], tiles[10], Engine.scalar, scope=1)
    assert edges(maker.trace) == {(0, 4): ORDER, (2, 5): ORDER}


def test_what_moves_at_run_time_may_touch_all_that_it_reaches() -> None:
    maker = Maker()
    # a column of a table of 64 rows of 256 bytes, and one that starts somewhere in it
    table = maker.hbm(63 * 64 + 16)
    still = part(table, 0, 64, ((256, 64),))
    moving = part(table, 0, 64, ((256, 64),), dynamic=True)
    other = part(table, 128, 64)
    outside = [maker.hbm(64 * 16) for _ in range(6)]
    maker.load(still, outside[0])
    maker.load(moving, outside[1])
    maker.load(outside[2], other)
    maker.load(outside[3], still)
    maker.load(outside[4], moving)
    maker.load(other, outside[5])
    found = edges(maker.trace)
    # what is written somewhere may be what is read, and hides nothing that was written before
    assert found[1, 2] == FLOW
    assert found[0, 3] == found[1, 3] == FLOW
    # what is read somewhere may be what is overwritten
    assert found[4, 5] == ANTI
    assert (3, 5) not in found


@pytest.mark.parametrize("rows", [4, 3000])
def test_columns_of_a_large_tensor_are_independent(rows: int) -> None:
    """Operands with gaps, in a few places or all over the memory."""
    maker = Maker()
    table = maker.hbm(rows, 64)
    columns = [part(table, 16 * k, 16, ((256, rows),)) for k in range(8)]
    for column in columns:
        maker.load(column, maker.hbm(rows, 4))
    for column in columns:
        maker.load(maker.hbm(rows, 4), column)
    maker.load(maker.hbm(64), part(table, 256 * (rows - 1), 256))
    maker.load(table, maker.hbm(rows, 64))
    found = edges(maker.trace)
    assert {(k, 8 + k) for k in range(8)} == {(i, j) for i, j in found if 8 <= j < 16}
    assert {i for i, j in found if j == 16} == set(range(8))
    assert {i for i, j in found if j == 17} >= set(range(8, 17))


def test_meetings_start_in_order() -> None:
    maker = Maker()
    for key in range(3):
        maker.issue(
            "core_barrier", Engine.gpsimd, meeting=Meeting("core_barrier", (key,), (0,), 1, 0)
        )
    assert edges(maker.trace) == {(0, 1): ORDER, (1, 2): ORDER}


def test_depends_on_is_a_dependency() -> None:
    maker = Maker()
    tiles = [maker.sbuf(128, 64, address=256 * k) for k in range(4)]
    first = maker.copy(tiles[0], tiles[1])
    maker.copy(tiles[2], tiles[3]).depends_on(first)
    assert edges(maker.trace) == {(0, 1): FLOW}


def test_depending_on_a_later_instruction_is_an_error() -> None:
    maker = Maker()
    tiles = [maker.sbuf(128, 64, address=256 * k) for k in range(4)]
    first = maker.copy(tiles[0], tiles[1])
    first.depends_on(maker.copy(tiles[2], tiles[3]))
    with pytest.raises(NkiValidationError, match=r"tensor_copy #0.*not before it"):
        dependencies.find(maker.trace)


def test_a_tensor_without_an_address_is_named() -> None:
    maker = Maker()
    maker.copy(maker.tensor(MemoryRegion.sbuf, (8, 8), name="lost"), maker.sbuf(8, 8, address=0))
    with pytest.raises(NkiValidationError, match="'lost'"):
        dependencies.find(maker.trace)


def test_whole_tensor_is_one_run() -> None:
    maker = Maker()
    access = whole(maker.sbuf(16, 8, address=0))
    assert (access.p0, access.p1, access.lo, access.hi, access.elements) == (0, 16, 0, 32, 8)
