"""Races that a simulation in program order hides: bytes that two of an asynchronous pair touch.

On the chip a permute goes on while its core goes on, and the two cores of a rank share HBM without
waiting for each other. Here a permute is done when it is issued and threads take turns, so a kernel
that forgets to wait may still compute the right thing. These detectors follow who may touch which
bytes when, whatever the order in which the simulation happened to run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nkisim.extents import overlap
from nkisim.trace import Access, Instruction, Place


@dataclass(frozen=True)
class Race:
    """Two accesses to common bytes that nothing puts in order.

    Attributes:
        text: the ops, the tensors and both source lines
        first, second: source positions, `file:line`
        certain: False if an operand is indexed at run time, so that the bytes are only those that
            it may reach
    """

    text: str
    first: str
    second: str
    certain: bool

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class _Flight:
    """One channel of a permute that nothing has waited for yet."""

    instruction: Instruction
    src: Access
    dst: Access


class InFlight:
    """The permutes that one core has issued and not yet waited for.

    A permute is in flight on the bytes of its source and destination from when it is issued until
    an instruction of the same core reads any of its destination: a compute instruction, a DMA, a
    barrier on it, or a later collective that sends it on. Whatever writes bytes of either meanwhile
    races with it. Each channel of a permute is in flight by itself.
    """

    def __init__(self) -> None:
        self._flights: list[_Flight] = []
        # what an access has to be of to matter: most instructions are done after a look at these
        self._places: set[Place] = set()
        self._aliased = False

    def __len__(self) -> int:
        return len(self._flights)

    def observe(self, instruction: Instruction) -> list[Race]:
        """Take note of an instruction that is not a permute; the races that it has.

        What it reads is waited for before what it writes is looked at, so an instruction may
        overwrite what it consumes.
        """
        if not self._flights:
            return []
        self._consume(instruction.reads)
        return self._races(instruction, instruction.writes)

    def issue(
        self, instruction: Instruction, channels: Sequence[tuple[Access, Access]]
    ) -> list[Race]:
        """Take note of a permute; the races that its writes have.

        Args:
            channels: source and destination of each channel; where two sources are reduced into
                one destination, a pair for each of them
        """
        races: list[Race] = []
        if self._flights:
            self._consume([src for src, _ in channels])
            races = self._races(instruction, [dst for _, dst in channels])
        flights = [_Flight(instruction, src, dst) for src, dst in channels]
        for index, flight in enumerate(flights):
            for place, other in enumerate(flights):
                if other.dst is flight.dst:
                    continue
                if overlap(flight.dst, other.src) or (
                    place < index and overlap(flight.dst, other.dst)
                ):
                    races.append(_flight_race(other, instruction, flight.dst))
        self._keep(self._flights + flights)
        return races

    def _keep(self, flights: list[_Flight]) -> None:
        self._flights = flights
        self._places = {access.place for flight in flights for access in (flight.src, flight.dst)}
        self._aliased = any(place.address is not None for place in self._places)

    def _matters(self, access: Access) -> bool:
        if access.place in self._places:
            return True
        return self._aliased and access.place.address is not None

    def _consume(self, reads: Iterable[Access]) -> None:
        for read in reads:
            if self._matters(read):
                left = [flight for flight in self._flights if not overlap(read, flight.dst)]
                if len(left) < len(self._flights):
                    self._keep(left)

    def _races(self, instruction: Instruction, writes: Iterable[Access]) -> list[Race]:
        return [
            _flight_race(flight, instruction, write)
            for write in writes
            if self._matters(write)
            for flight in self._flights
            if overlap(write, flight.src) or overlap(write, flight.dst)
        ]


def _flight_race(flight: _Flight, instruction: Instruction, write: Access) -> Race:
    on_source = overlap(write, flight.src)
    touched, role = (flight.src, "source") if on_source else (flight.dst, "destination")
    first, second = flight.instruction, instruction
    text = (
        f"{second.op} at {second.location} writes {write.place.name!r} while {first.op} at "
        f"{first.location} is in flight on those bytes as its {role}, {touched.place.name!r}; "
        f"nothing has read its destination, {flight.dst.place.name!r}, since"
    )
    return Race(text, first.location, second.location, not (write.dynamic or touched.dynamic))


# The bytes of a tensor in so many equal parts; an access that is in more than WIDE of them is kept
# in a list of its own.
PARTS = 256
WIDE = 8


class _Accesses:
    """What one core has done to one tensor since the last time that its cores met on it."""

    def __init__(self, part: int) -> None:
        self._part = part
        self._parts: dict[int, list[tuple[Access, Instruction]]] = {}
        self._wide: list[tuple[Access, Instruction]] = []
        self._known: set[tuple[object, ...]] = set()
        # where a wide access would continue one that is in the list, and which
        self._continued: dict[tuple[object, ...], int] = {}

    def add(self, access: Access, instruction: Instruction) -> None:
        # a loop that touches the same bytes again adds nothing
        key = (access.lo, access.hi, access.run, access.steps, access.dynamic)
        if key in self._known:
            return
        self._known.add(key)
        parts = self._range(access)
        if len(parts) > WIDE:
            self._add_wide(access, instruction)
        else:
            for part in parts:
                self._parts.setdefault(part, []).append((access, instruction))

    def _add_wide(self, access: Access, instruction: Instruction) -> None:
        """Keep `access`, as one with the columns to its left that the same line has touched."""
        like = (access.steps, access.dynamic, instruction.code, instruction.line)
        index = self._continued.pop((access.lo, *like), len(self._wide))
        if index == len(self._wide):
            self._wide.append((access, instruction))
        else:
            left, first = self._wide[index]
            self._wide[index] = (_joined(left, access), first)
        self._continued[(access.lo + access.run, *like)] = index

    def _range(self, access: Access) -> range:
        return range(access.lo // self._part, (access.hi - 1) // self._part + 1)

    def overlapping(self, access: Access) -> Iterator[tuple[Access, Instruction]]:
        """Those that touch a byte of `access`, each once."""
        parts = self._range(access)
        if len(parts) > WIDE:
            chosen = list(self._parts.values())
        else:
            chosen = [self._parts[part] for part in parts if part in self._parts]
        if not chosen and not self._wide:
            return
        seen: set[int] = set()
        for found in (self._wide, *chosen):
            for other, instruction in found:
                if id(other) not in seen and overlap(access, other):
                    seen.add(id(other))
                    yield other, instruction


def _joined(left: Access, right: Access) -> Access:
    """The bytes of both, where each run of `right` begins at the end of one of `left`."""
    return Access(
        left.place,
        left.dtype,
        left.p0,
        left.p1,
        left.lo,
        right.hi,
        left.run + right.run,
        left.steps,
        left.elements + right.elements,
        left.inner_step,
        left.dynamic,
    )


class SharedWrites:
    """The accesses of the cores of one rank to the HBM that they share.

    Accesses of one core are in order. Those of two cores are ordered only by a meeting on the
    tensor between them: a `core_barrier` on it, or a collective on it that both issue. As meetings
    take in both cores at a time, the vector clock of a tensor is one number for each core: how many
    meetings on it the core has passed. Two accesses are in order exactly if the numbers differ.

    A meeting on one tensor does not order accesses to another: the barrier waits for the writes to
    its own tensor only.

    Arguments:
        cores: how many cores the rank has
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._lock = threading.Lock()
        self._passed: dict[Place, list[int]] = {}
        # by tensor and number of meetings passed: for each core, its writes and its reads
        self._open: dict[tuple[Place, int], list[tuple[_Accesses, _Accesses]]] = {}

    def observe(self, core: int, instruction: Instruction) -> list[Race]:
        """Take note of what an instruction of `core` does to shared HBM; the races that it has.

        A race is found at whichever of its accesses comes second in the simulation, and its text
        does not depend on which that is. Collectives that both cores issue are meetings and not to
        be observed: they touch their tensors once, and not for one of the cores.

        Args:
            core: within the rank
        """
        races: list[Race] = []
        for write in instruction.writes:
            if write.place.core is None:
                races += self._conflicts(core, instruction, write, writes=True)
        for read in instruction.reads:
            if read.place.core is None:
                races += self._conflicts(core, instruction, read, writes=False)
        return races

    def meet(self, core: int, places: Iterable[Place]) -> None:
        """Say that `core` has passed a meeting of all cores of the rank on `places`."""
        with self._lock:
            for place in places:
                passed = self._passed.setdefault(place, [0] * self.cores)
                passed[core] += 1
                # nobody can be at what all have passed
                self._open.pop((place, min(passed) - 1), None)

    def _conflicts(
        self, core: int, instruction: Instruction, access: Access, writes: bool
    ) -> list[Race]:
        found = []
        with self._lock:
            state = self._state(core, access.place)
            for other, (written, read) in enumerate(state):
                if other != core:
                    found += [_Side(other, i, a, True) for a, i in written.overlapping(access)]
                    if writes:
                        found += [_Side(other, i, a, False) for a, i in read.overlapping(access)]
            state[core][0 if writes else 1].add(access, instruction)
        return [_shared_race(_Side(core, instruction, access, writes), side) for side in found]

    def _state(self, core: int, place: Place) -> list[tuple[_Accesses, _Accesses]]:
        """Every core's accesses that are not in order with what `core` does to `place` now."""
        passed = self._passed.get(place)
        key = (place, 0 if passed is None else passed[core])
        state = self._open.get(key)
        if state is None:
            part = max(1, place.bytes_per_partition // PARTS)
            state = [(_Accesses(part), _Accesses(part)) for _ in range(self.cores)]
            self._open[key] = state
        return state


@dataclass(frozen=True)
class _Side:
    core: int
    instruction: Instruction
    access: Access
    writes: bool

    def __str__(self) -> str:
        verb = "writes" if self.writes else "reads"
        return f"core {self.core} {verb} in {self.instruction.op} at {self.instruction.location}"


def _shared_race(one: _Side, other: _Side) -> Race:
    first, second = sorted((one, other), key=lambda side: side.core)
    text = (
        f"shared tensor {first.access.place.name!r}: {first}, {second}, bytes in common, and "
        "neither a core_barrier on it nor a collective on it is between them"
    )
    return Race(
        text,
        first.instruction.location,
        second.instruction.location,
        not (first.access.dynamic or second.access.dynamic),
    )
