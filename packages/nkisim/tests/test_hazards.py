"""Races of permutes in flight, and of the cores of a rank on their shared HBM."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim import dtypes
from nkisim.enums import Engine, MemoryRegion
from nkisim.hazards import InFlight, Race
from nkisim.shared_writes import SharedWrites
from nkisim.trace import Access, Instruction, Place

SERIALS = itertools.count()


def tensor(name: str, size: int = 1024, region: MemoryRegion = MemoryRegion.shared_hbm) -> Place:
    core = None if region is MemoryRegion.shared_hbm else 0
    return Place(next(SERIALS), region, name, (size,), dtypes.uint8, 1, size, core)


def part(
    of: Place, lo: int = 0, run: int | None = None, step: int = 0, count: int = 1,
    dynamic: bool = False,
) -> Access:  # fmt: skip
    run = of.bytes_per_partition - lo if run is None else run
    steps = ((step, count),) if count > 1 else ()
    hi = lo + run + step * (count - 1)
    return Access(of, dtypes.uint8, 0, 1, lo, hi, run, steps, run * count, 1, dynamic)


def instruction(
    op: str, line: int, writes: Sequence[Access] = (), reads: Sequence[Access] = ()
) -> Instruction:
    code = compile("", "ring.py", "exec")
    return Instruction(line, op, Engine.dma, tuple(writes), tuple(reads), None, code, line, 0, None)


class Ring:
    """Permutes and DMAs of one core."""

    def __init__(self) -> None:
        self.detector = InFlight()
        self.line = 0

    def permute(self, *channels: tuple[Access, Access]) -> list[Race]:
        self.line += 1
        srcs, dsts = zip(*channels, strict=True)
        issued = instruction("collective_permute_implicit", self.line, dsts, srcs)
        return self.detector.issue(issued, channels)

    def write(self, access: Access, *reads: Access) -> list[Race]:
        self.line += 1
        return self.detector.observe(instruction("dma_copy", self.line, [access], list(reads)))

    def read(self, *reads: Access) -> list[Race]:
        return self.write(part(tensor("elsewhere")), *reads)


@pytest.mark.parametrize("region", [MemoryRegion.shared_hbm, MemoryRegion.sbuf])
def test_a_write_to_source_or_destination_in_flight_is_a_race(region: MemoryRegion) -> None:
    src, dst = tensor("k0", region=region), tensor("k1", region=region)
    ring = Ring()
    assert ring.permute((part(src), part(dst))) == []
    (on_source,) = ring.write(part(src, 1000, 4))
    assert str(on_source) == (
        "dma_copy at ring.py:2 writes 'k0' while collective_permute_implicit at ring.py:1 is in "
        "flight on those bytes as its source, 'k0'; nothing has read its destination, 'k1', since"
    )
    assert (on_source.first, on_source.second) == ("ring.py:1", "ring.py:2")
    (on_destination,) = ring.write(part(dst, 0, 1))
    assert "as its destination, 'k1'" in str(on_destination)


def test_reading_any_of_the_destination_ends_the_flight() -> None:
    src, dst = tensor("k0"), tensor("k1")
    ring = Ring()
    ring.permute((part(src), part(dst)))
    # reading the source waits for nothing
    assert ring.read(part(src)) == []
    assert len(ring.write(part(src))) == 1
    assert ring.read(part(dst, 512, 2)) == []
    assert len(ring.detector) == 0
    assert ring.write(part(src)) == []
    assert ring.write(part(dst)) == []


def test_an_instruction_may_overwrite_what_it_consumes() -> None:
    src, dst = tensor("k0"), tensor("k1")
    ring = Ring()
    ring.permute((part(src), part(dst)))
    assert ring.write(part(dst), part(dst)) == []


def test_bytes_beside_the_flight_are_free() -> None:
    buffer = tensor("buffer", 4096)
    ring = Ring()
    ring.permute((part(buffer, 0, 16, 64, 32), part(buffer, 16, 16, 64, 32)))
    assert ring.write(part(buffer, 32, 32, 64, 32)) == []
    assert ring.write(part(buffer, 2048)) == []
    assert ring.write(part(tensor("other"))) == []
    assert len(ring.write(part(buffer, 47 + 64, 2, 64, 3))) == 0
    assert len(ring.write(part(buffer, 31 + 64, 2, 64, 3))) == 1
    # a read beside the destination is no consumer
    assert ring.read(part(buffer, 32, 32, 64, 32)) == []
    assert len(ring.detector) == 1


@pytest.mark.parametrize("world", range(2, 9))
@pytest.mark.parametrize("channels", [1, 2])
def test_a_ring_with_prefetch_has_no_race(world: int, channels: int) -> None:
    """Buffers for all, permutes `depth` ahead; each passes on what the one before received."""
    for depth in range(1, world):
        buffers = [[tensor(f"k{i}.{c}") for c in range(channels)] for i in range(world)]
        ring = Ring()
        races: list[Race] = []

        def send(i: int, ring: Ring = ring, buffers: list[list[Place]] = buffers) -> list[Race]:
            pairs = zip(buffers[i], buffers[i + 1], strict=True)
            return ring.permute(*[(part(a), part(b)) for a, b in pairs])

        for i in range(min(depth, world - 1)):
            races += send(i)
        for i in range(world):
            races += ring.read(*[part(buffer) for buffer in buffers[i]])
            if i + depth < world - 1:
                races += send(i + depth)
        assert races == []
        assert len(ring.detector) == 0


def test_two_buffers_are_too_few_for_a_prefetch_of_two() -> None:
    a, b = tensor("a"), tensor("b")
    ring = Ring()
    assert ring.permute((part(a), part(b))) == []
    # consumes b, and writes a, which was being sent: in flight no more, since b has arrived
    assert ring.permute((part(b), part(a))) == []
    (race,) = ring.permute((part(tensor("c")), part(b)))
    assert "is in flight on those bytes as its source, 'b'" in str(race)


def test_channels_of_one_permute_fly_by_themselves() -> None:
    buffers = [tensor(name) for name in ("s0", "d0", "s1", "d1")]
    s0, d0, s1, d1 = (part(buffer) for buffer in buffers)
    ring = Ring()
    assert ring.permute((s0, d0), (s1, d1)) == []
    assert ring.read(d0) == []
    assert ring.write(s0) == []
    (race,) = ring.write(s1)
    assert "'d1'" in str(race)


def test_channels_of_one_permute_must_not_overlap() -> None:
    a, b, c = (part(tensor(name)) for name in "abc")
    assert len(Ring().permute((a, b), (c, part(b.place)))) == 1
    assert len(Ring().permute((a, b), (b, c))) == 1
    assert len(Ring().permute((b, c), (a, b))) == 1
    assert Ring().permute((a, b), (a, c)) == []


def test_two_sources_of_one_destination_are_one_channel() -> None:
    a, b, c = (part(tensor(name)) for name in "abc")
    ring = Ring()
    assert ring.permute((a, c), (b, c)) == []
    assert len(ring.write(b)) == 1
    assert ring.read(c) == []
    assert ring.write(a) == ring.write(b) == []


def test_aliases_on_chip_are_seen() -> None:
    src, dst, alias = (tensor(name, 64, MemoryRegion.sbuf) for name in ("src", "dst", "alias"))
    src.address, dst.address, alias.address = 0, 64, 96
    ring = Ring()
    ring.permute((part(src), part(dst)))
    (race,) = ring.write(part(alias))
    assert "writes 'alias'" in str(race) and "its destination, 'dst'" in str(race)
    assert ring.read(part(alias)) == []
    assert ring.write(part(alias)) == []


def test_a_dynamic_index_makes_a_race_uncertain() -> None:
    src, dst = tensor("src"), tensor("dst")
    ring = Ring()
    ring.permute((part(src), part(dst)))
    assert [race.certain for race in ring.write(part(src))] == [True]
    assert [race.certain for race in ring.write(part(src, dynamic=True))] == [False]


def write(line: int, access: Access) -> Instruction:
    return instruction("dma_copy", line, [access])


def read(line: int, access: Access) -> Instruction:
    return instruction("dma_copy", line, [], [access])


@pytest.mark.parametrize("first", [0, 1])
def test_the_report_does_not_depend_on_who_comes_second(first: int) -> None:
    out = tensor("out")
    detector = SharedWrites(2)
    steps = [(0, write(10, part(out, 0, 100))), (1, read(20, part(out, 99, 8)))]
    if first == 1:
        steps.reverse()
    assert detector.observe(*steps[0]) == []
    (race,) = detector.observe(*steps[1])
    assert str(race) == (
        "shared tensor 'out': core 0 writes in dma_copy at ring.py:10, core 1 reads in dma_copy at "
        "ring.py:20, bytes in common, and neither a core_barrier on it nor a collective on it is "
        "between them"
    )
    assert (race.first, race.second, race.certain) == ("ring.py:10", "ring.py:20", True)


def test_two_writes_race_and_two_reads_do_not() -> None:
    out = tensor("out")
    detector = SharedWrites(2)
    assert detector.observe(0, read(1, part(out))) == []
    assert detector.observe(1, read(2, part(out))) == []
    (race,) = detector.observe(0, write(3, part(out, 0, 8)))
    assert "core 0 writes in dma_copy at ring.py:3, core 1 reads" in str(race)
    races = detector.observe(1, write(4, part(out, 4, 8)))
    assert {race.first for race in races} == {"ring.py:1", "ring.py:3"}


def test_interleaved_halves_do_not_race() -> None:
    out = tensor("out", 128 * 1024)
    detector = SharedWrites(2)
    for row in range(0, 128, 16):
        for core in range(2):
            half = part(out, row * 1024 + core * 512, 512, 1024, 16)
            assert detector.observe(core, write(row, half)) == []
    assert len(detector.observe(0, write(200, part(out, 512, 1)))) == 1


@pytest.mark.parametrize("width", [1, 64])
def test_columns_of_one_line_are_still_told_apart(width: int) -> None:
    """A loop over column tiles touches what its tiles touch, and not what lies beside them."""
    out = tensor("out", 256 * 1024)
    detector = SharedWrites(2)
    for lo in range(100, 300, width):
        detector.observe(0, write(1, part(out, lo, width, 1024, 256)))
    last = range(100, 300, width)[-1] + width
    for lo, expected in ((0, 0), (99, 0), (100, 1), (200, 1), (last - 1, 1), (last, 0), (1023, 0)):
        races = detector.observe(1, read(2, part(out, lo + 5 * 1024, 1)))
        assert len(races) == expected, lo


def test_a_barrier_orders_its_own_tensor_only() -> None:
    out, other = tensor("out"), tensor("other")
    detector = SharedWrites(2)
    detector.observe(0, write(1, part(out)))
    detector.observe(0, write(2, part(other)))
    for core in range(2):
        detector.meet(core, [out])
    assert detector.observe(1, read(3, part(out))) == []
    assert len(detector.observe(1, read(4, part(other)))) == 1


def test_a_core_ahead_of_its_mate_in_the_simulation_is_judged_by_its_meetings() -> None:
    out = tensor("out")
    detector = SharedWrites(2)
    # core 0 runs through first: writes, meets, writes again
    detector.observe(0, write(1, part(out)))
    detector.meet(0, [out])
    detector.observe(0, write(2, part(out)))
    # core 1 then reads before its meeting and after it
    (before,) = detector.observe(1, read(3, part(out)))
    assert before.first == "ring.py:1"
    detector.meet(1, [out])
    (after,) = detector.observe(1, read(4, part(out)))
    assert after.first == "ring.py:2"


def test_a_core_may_read_what_it_wrote_itself() -> None:
    """Both cores do the same, each by itself: whoever was last, each reads what it wrote."""
    out = tensor("out")
    detector = SharedWrites(2, values=True)
    for core in range(2):
        for half in (part(out, 0, 50), part(out, 50, 50)):
            assert detector.observe(core, write(1, half)) == []
        assert detector.observe(core, read(2, part(out, 20, 60))) == []
    # byte 100 is nobody's
    assert detector.observe(0, read(3, part(out, 20, 81))) != []
    for core in range(2):
        detector.meet(core, [out])
    assert detector.observe(0, write(4, part(out, 0, 50))) == []
    assert len(detector.observe(1, read(5, part(out, 20, 60)))) == 1


def test_without_values_two_writes_are_alike_if_line_and_bytes_are() -> None:
    out = tensor("out")
    detector = SharedWrites(2)
    assert detector.observe(0, write(1, part(out, 0, 8, 16, 4))) == []
    assert detector.observe(1, write(1, part(out, 0, 8, 16, 4))) == []
    assert len(detector.observe(1, write(2, part(out, 0, 8, 16, 4)))) == 1
    assert len(detector.observe(1, write(1, part(out, 0, 8, 16, 3)))) == 1


def test_private_tensors_are_nobodys_business() -> None:
    private = tensor("private", region=MemoryRegion.private_hbm)
    detector = SharedWrites(2)
    detector.observe(0, write(1, part(private)))
    assert detector.observe(1, write(2, part(private))) == []


Event = tuple[str, int, int, int]


@st.composite
def kernels(draw: st.DrawFn) -> tuple[list[list[Event]], list[int]]:
    """Two cores' accesses to one tensor between the same barriers, and a schedule of them."""
    barriers = draw(st.integers(0, 3))
    event = st.tuples(
        st.sampled_from(["read", "write"]), st.integers(0, 900), st.integers(1, 40),
        st.integers(1, 3),
    )  # fmt: skip
    cores = []
    for _ in range(2):
        events: list[Event] = []
        for index in range(barriers + 1):
            events += draw(st.lists(event, max_size=5))
            if index < barriers:
                events.append(("meet", 0, 0, 0))
        cores.append(events)
    order = draw(st.permutations([0] * len(cores[0]) + [1] * len(cores[1])))
    return cores, order


@settings(deadline=None, max_examples=150)
@given(kernels())
def test_races_are_those_of_the_definition_in_any_schedule(
    kernel: tuple[list[list[Event]], list[int]],
) -> None:
    cores, order = kernel
    out = tensor("out")
    accesses: list[list[tuple[int, Event]]] = [[], []]
    own: list[set[int]] = [set(), set()]
    detector = SharedWrites(2)
    found = set()
    known: dict[str, Event] = {}
    position, epoch = [0, 0], [0, 0]
    for line, core in enumerate(order, 1):
        event = cores[core][position[core]]
        kind, lo, run, count = event
        position[core] += 1
        if kind == "meet":
            epoch[core] += 1
            own[core].clear()
            detector.meet(core, [out])
            continue
        make = write if kind == "write" else read
        made = make(line, part(out, lo, run, 41, count))
        known[made.location] = event
        if kind == "write":
            own[core] |= touched(event)
        # what a core reads of its own is left alone
        if kind == "write" or not touched(event) <= own[core]:
            accesses[core].append((epoch[core], event))
        for race in detector.observe(core, made):
            found.add((known[race.first], known[race.second]))
    # compared by what they touch, because repeated accesses to the same bytes are kept once
    expected = {
        (event0, event1)
        for epoch0, event0 in accesses[0]
        for epoch1, event1 in accesses[1]
        if epoch0 == epoch1 and "write" in (event0[0], event1[0])
        if touched(event0) & touched(event1)
    }
    assert found == expected


def touched(event: Event) -> set[int]:
    _, lo, run, count = event
    return {lo + 41 * index + byte for index in range(count) for byte in range(run)}
