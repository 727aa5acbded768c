"""Races of the two cores of a rank on the HBM that they share."""

from __future__ import annotations

import numpy as np
import pytest
from hazard_tools import instruction, part, read, tensor, write
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim.enums import MemoryRegion
from nkisim.hazards import Race
from nkisim.shared_writes import SharedWrites
from nkisim.trace import Access, Place


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


def test_a_read_races_with_a_write_and_not_with_a_read() -> None:
    out = tensor("out")
    detector = SharedWrites(2)
    assert detector.observe(0, read(1, part(out))) == []
    assert detector.observe(1, read(2, part(out))) == []
    (race,) = detector.observe(0, write(3, part(out, 0, 8)))
    assert "core 0 writes in dma_copy at ring.py:3, core 1 reads" in str(race)
    races = detector.observe(1, write(4, part(out, 4, 8)))
    assert {race.first for race in races} == {"ring.py:1"}


def test_interleaved_halves_do_not_race() -> None:
    out = tensor("out", 128 * 1024)
    detector = SharedWrites(2)
    for row in range(0, 128, 16):
        for core in range(2):
            half = part(out, row * 1024 + core * 512, 512, 1024, 16)
            assert detector.observe(core, write(row, half)) == []
    assert len(detector.observe(0, read(200, part(out, 512, 1)))) == 1


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


def test_private_tensors_are_nobodys_business() -> None:
    private = tensor("private", region=MemoryRegion.private_hbm)
    detector = SharedWrites(2)
    detector.observe(0, write(1, part(private)))
    assert detector.observe(1, write(2, part(private))) == []


class Pair:
    """Two cores that store to one tensor."""

    def __init__(self, out: Place) -> None:
        self.detector = SharedWrites(2)
        self.data = np.full(out.bytes_per_partition, 255, np.uint8)

    def store(self, core: int, line: int, access: Access, value: int) -> list[Race]:
        made = write(line, access)
        races = self.detector.observe(core, made)
        with self.detector.storing(core, made, [access], self.data):
            starts = [access.lo]
            for step, count in access.steps:
                starts = [start + step * k for start in starts for k in range(count)]
            for start in starts:
                self.data[start : start + access.run] = value
        return races

    def meet(self, out: Place) -> list[Race]:
        return [race for core in range(2) for race in self.detector.meet(core, [out])]


def test_two_stores_of_the_same_do_not_race() -> None:
    out = tensor("out")
    pair = Pair(out)
    for core, value in ((0, 0), (0, 7), (1, 0), (1, 7)):
        assert pair.store(core, value, part(out, 10, 8, 16, 4), value) == []
    assert pair.meet(out) == pair.detector.finish() == []


@pytest.mark.parametrize("met", [False, True])
def test_two_stores_of_different_values_race(met: bool) -> None:
    out = tensor("out")
    pair = Pair(out)
    pair.store(0, 1, part(out, 0, 100), 1)
    pair.store(1, 2, part(out, 90, 100), 1)
    pair.store(1, 3, part(out, 99, 1), 2)
    (race,) = pair.meet(out) if met else pair.detector.finish()
    assert str(race) == (
        "shared tensor 'out': core 0 writes in dma_copy at ring.py:1, core 1 writes in dma_copy at "
        "ring.py:3, bytes in common, and neither a core_barrier on it nor a collective on it is "
        "between them"
    )
    # what comes after the meeting is another matter
    pair.store(0, 4, part(out, 90, 10), 3)
    assert (pair.detector.finish() == []) is met


def test_stores_on_both_sides_of_a_meeting_do_not_race() -> None:
    out = tensor("out")
    pair = Pair(out)
    for core in range(2):
        pair.store(core, 1, part(out), core)
        pair.detector.meet(core, [out])
    # core 1 comes to its meeting with what it stored, which core 0 had stored otherwise
    assert len(pair.detector.finish()) == 0
    pair = Pair(out)
    pair.store(0, 1, part(out), 0)
    pair.detector.meet(0, [out])
    pair.detector.meet(1, [out])
    pair.store(1, 2, part(out), 1)
    assert pair.detector.finish() == []


def test_a_core_may_read_what_it_wrote_itself() -> None:
    """Both cores do the same, each by itself: whoever was last, each reads what it wrote."""
    out = tensor("out")
    pair = Pair(out)
    for core in range(2):
        for half in (part(out, 0, 50), part(out, 50, 50)):
            assert pair.store(core, 1, half, 5) == []
        assert pair.detector.observe(core, read(2, part(out, 20, 60))) == []
    assert pair.detector.finish() == []
    # byte 100 is nobody's
    assert pair.detector.observe(0, read(3, part(out, 20, 81))) != []


def test_what_a_core_wrote_itself_must_not_change_under_it() -> None:
    """Each core fills and then stores, and reads between: it may read the other's."""
    out = tensor("out")
    pair = Pair(out)
    for core in range(2):
        pair.store(core, 1, part(out), 0)
        pair.detector.observe(core, read(2, part(out, 20, 4)))
        pair.store(core, 3, part(out, 0, 30), 1)
    first, second = pair.detector.finish()
    assert (first.first, first.second) == ("ring.py:2", "ring.py:3")
    assert (second.first, second.second) == ("ring.py:3", "ring.py:2")


def test_a_collective_of_one_core_is_not_compared() -> None:
    out = tensor("out")
    pair = Pair(out)
    pair.store(0, 1, part(out), 0)
    (race,) = pair.detector.observe(1, instruction("all_gather", 2, [part(out)]))
    assert (race.first, race.second) == ("ring.py:1", "ring.py:2")


Event = tuple[str, int, int, int, int]

MEET: Event = ("meet", 0, 0, 0, 0)


@st.composite
def kernels(draw: st.DrawFn) -> tuple[list[list[Event]], list[int]]:
    """Two cores' accesses to one tensor between the same barriers, and a schedule of them."""
    barriers = draw(st.integers(0, 3))
    # kind, first byte, bytes, repetitions 41 bytes apart, value
    event = st.tuples(
        st.sampled_from(["read", "write"]), st.integers(0, 900), st.integers(1, 40),
        st.integers(1, 3), st.integers(0, 1),
    )  # fmt: skip
    cores = []
    for _ in range(2):
        events: list[Event] = []
        for index in range(barriers + 1):
            events += draw(st.lists(event, max_size=5))
            if index < barriers:
                events.append(MEET)
        cores.append(events)
    order = draw(st.permutations([0] * len(cores[0]) + [1] * len(cores[1])))
    return cores, order


class Definition:
    """Which accesses race, found access by access and byte by byte."""

    def __init__(self) -> None:
        self.epoch = [0, 0]
        # epoch and access of each core: those that the order of issue decides
        self.ordered: list[list[tuple[int, Event]]] = [[], []]
        # reads of a core's own bytes, and by epoch and byte all values stored by a core
        self.own_reads: list[set[tuple[int, Event]]] = [set(), set()]
        self.values: list[dict[tuple[int, int], list[int]]] = [{}, {}]

    def access(self, core: int, event: Event) -> None:
        epoch = self.epoch[core]
        if event[0] == "write":
            for byte in touched(event):
                self.values[core].setdefault((epoch, byte), []).append(event[-1])
        elif all((epoch, byte) in self.values[core] for byte in touched(event)):
            self.own_reads[core].add((epoch, event))
            return
        self.ordered[core].append((epoch, event))

    def by_order(self) -> set[tuple[Event, Event]]:
        """A read and a write of the other core."""
        return {
            (event0, event1)
            for epoch0, event0 in self.ordered[0]
            for epoch1, event1 in self.ordered[1]
            if epoch0 == epoch1 and {event0[0], event1[0]} == {"read", "write"}
            if touched(event0) & touched(event1)
        }

    def unequal(self) -> set[int]:
        """Epochs in which a byte has two last values."""
        zero, one = self.values
        return {key[0] for key in zero.keys() & one.keys() if zero[key][-1] != one[key][-1]}

    def unsteady(self) -> set[tuple[int, Event]]:
        """Reads of own bytes to which the other core stores as well, and which change."""
        found = set()
        for core in range(2):
            mine, other = self.values[core], self.values[1 - core]
            for epoch, event in self.own_reads[core]:
                keys = [(epoch, byte) for byte in touched(event)]
                if any(key in other and len({*mine[key], *other[key]}) > 1 for key in keys):
                    found.add((epoch, event))
        return found


def as_met(kernel: tuple[list[list[Event]], list[int]]) -> tuple[list[list[Event]], list[int]]:
    """The kernel in the schedule nearest to its own that barriers allow: a core that has passed
    one comes after all that the other core does before it. (The other may have yet to leave it.)"""
    cores, order = kernel
    position, wanted, kept = [0, 0], list(order), []
    while wanted:
        core = wanted[0]
        passed = [cores[c][: position[c]].count(MEET) for c in range(2)]
        left = cores[1 - core][position[1 - core] :]
        if passed[core] > passed[1 - core] + (left[:1] == [MEET]):
            core = 1 - core
        wanted.remove(core)
        kept.append(core)
        position[core] += 1
    return cores, kept


class Judged:
    """What the detector and the definition say of a kernel."""

    def __init__(self, kernel: tuple[list[list[Event]], list[int]]) -> None:
        cores, order = kernel
        out = tensor("out")
        pair, self.definition = Pair(out), Definition()
        self.at_issue: set[tuple[Event, Event]] = set()
        by_values = []
        known: dict[str, tuple[int, Event]] = {}
        position = [0, 0]
        for line, core in enumerate(order, 1):
            event = cores[core][position[core]]
            kind, lo, run, count, value = event
            position[core] += 1
            if kind == "meet":
                self.definition.epoch[core] += 1
                by_values += pair.detector.meet(core, [out])
                continue
            known[f"ring.py:{line}"] = (self.definition.epoch[core], event)
            self.definition.access(core, event)
            access = part(out, lo, run, 41, count)
            if kind == "write":
                races = pair.store(core, line, access, value)
            else:
                races = pair.detector.observe(core, read(line, access))
            self.at_issue |= {(known[race.first][1], known[race.second][1]) for race in races}
        by_values += pair.detector.finish()
        self.by_values = [(known[race.first], known[race.second]) for race in by_values]


@settings(deadline=None, max_examples=300)
@given(kernels())
def test_races_at_issue_are_those_of_the_definition_in_any_schedule(
    kernel: tuple[list[list[Event]], list[int]],
) -> None:
    judged = Judged(kernel)
    # compared by what they touch, because repeated accesses to the same bytes are kept once
    assert {tuple(map(without_value, pair)) for pair in judged.at_issue} == {
        tuple(map(without_value, pair)) for pair in judged.definition.by_order()
    }


@settings(deadline=None, max_examples=300)
@given(kernels().map(as_met))
def test_races_by_value_are_those_of_the_definition_in_any_schedule_that_waits(
    kernel: tuple[list[list[Event]], list[int]],
) -> None:
    judged = Judged(kernel)
    sides = judged.by_values
    writes = [(a, b) for a, b in sides if a[1][0] == b[1][0] == "write"]
    assert {a[0] for a, _ in writes} == judged.definition.unequal()
    reads = {side for pair in sides for side in pair if side[1][0] == "read"}
    assert {(epoch, without_value(event)) for epoch, event in reads} == {
        (epoch, without_value(event)) for epoch, event in judged.definition.unsteady()
    }


def touched(event: Event) -> set[int]:
    _, lo, run, count, _ = event
    return {lo + 41 * index + byte for index in range(count) for byte in range(run)}


def without_value(event: Event) -> tuple[str, int, int, int]:
    return event[:4]
