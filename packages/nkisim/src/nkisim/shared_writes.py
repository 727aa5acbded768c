"""Races between the two cores of a rank on the HBM that they share.

The cores do not wait for each other. In the simulation their threads take turns, so a kernel that
forgets a barrier may still compute the right thing. The detector follows who may touch which bytes
when, whatever the order in which the threads happened to run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from nkisim.coverage import Coverage, row_bands
from nkisim.extents import overlap
from nkisim.hazards import Race
from nkisim.storage import Bytes
from nkisim.trace import Access, Instruction, Place

T = TypeVar("T", bound=np.generic)

# writers whose values are compared when they are stored
_COMPARED = frozenset({"dma_copy", "dma_compute"})

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
        # by their bytes: the first that touched exactly those
        self._known: dict[tuple[object, ...], Instruction] = {}
        # where a wide access would continue one that is in the list, and which
        self._continued: dict[tuple[object, ...], int] = {}

    def add(self, access: Access, instruction: Instruction) -> None:
        # a loop that touches the same bytes again adds nothing
        key = self._key(access)
        if key in self._known:
            return
        self._known[key] = instruction
        parts = self._range(access)
        if len(parts) > WIDE:
            self._add_wide(access, instruction)
        else:
            for part in parts:
                self._parts.setdefault(part, []).append((access, instruction))

    @staticmethod
    def _key(access: Access) -> tuple[object, ...]:
        return (access.lo, access.hi, access.run, access.steps, access.dynamic)

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

    def sides(self, core: int, access: Access) -> list[_Side]:
        """Those of `core` that touch a byte of `access`; if one touches just those, only that."""
        same = self._known.get(self._key(access))
        if same is not None:
            return [_Side(core, same, access, True)]
        return [_Side(core, found, other, True) for other, found in self.overlapping(access)]

    def covers(self, access: Access) -> bool:
        """Whether every byte of `access` is in some access here."""
        if access.dynamic or not self._known:
            return False
        if self._key(access) in self._known:
            return True
        place = access.place
        width = place.shape[-1] * place.dtype.itemsize
        covered = Coverage(place.bytes_per_partition // width, width)
        for other, _ in self.overlapping(access):
            if not other.dynamic:
                for band in row_bands(other.lo, other.run, other.steps, width):
                    covered.add_bytes(*band)
        wanted = row_bands(access.lo, access.run, access.steps, width)
        return all(covered.covers_bytes(*band) for band in wanted)

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


def _pattern(access: Access) -> tuple[object, ...]:
    return (access.lo, access.run, access.steps)


def _common(one: Access, other: Access, data: Bytes) -> Bytes:
    """The bytes of `one` that `other` has too, as they are now."""
    mine = _bytes_of(one, data)
    if _pattern(one) == _pattern(other):
        return mine.copy()
    marks = np.zeros(len(data), np.bool_)
    _bytes_of(other, marks)[...] = True
    found: Bytes = mine[_bytes_of(one, marks)]
    return found


def _bytes_of(access: Access, data: npt.NDArray[T]) -> npt.NDArray[T]:
    """The bytes of an access as a view of those of its tensor."""
    counts = [count for _, count in access.steps]
    steps = [step for step, _ in access.steps]
    return as_strided(data[access.lo :], (*counts, access.run), (*steps, 1))


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


class _Since(NamedTuple):
    """What one core has done to one tensor since a meeting: issued writes and reads, and those of
    its writes whose values are in place."""

    writes: _Accesses
    reads: _Accesses
    stored: _Accesses


class SharedWrites:
    """The accesses of the cores of one rank to the HBM that they share.

    Accesses of one core are in order. Those of two cores are ordered only by a meeting on the
    tensor between them: a `core_barrier` on it, or a collective on it that both issue. As meetings
    take in both cores at a time, the vector clock of a tensor is one number for each core: how many
    meetings on it the core has passed. Two accesses are in order exactly if the numbers differ.

    A meeting on one tensor does not order accesses to another: the barrier waits for the writes to
    its own tensor only.

    A kernel that does not divide its work does the same on both cores, and that is no race: what
    one core writes, the other has written or will write too, and a core that reads what it wrote
    itself gets it whoever was last. Hence a read of what the same core has written since the last
    meeting is left alone, and of two writes by DMA the values decide, see `storing`. Without
    values, two writes of one line to exactly the same bytes are taken to be the same.

    Arguments:
        cores: how many cores the rank has
        values: whether there are values to compare
    """

    def __init__(self, cores: int, values: bool = False) -> None:
        self.cores = cores
        self.values = values
        self._lock = threading.Lock()
        self._passed: dict[Place, list[int]] = {}
        # by tensor and number of meetings passed: what each core has done
        self._open: dict[tuple[Place, int], list[_Since]] = {}
        # held while values are compared and stored
        self._values_lock = threading.Lock()

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
        side = _Side(core, instruction, access, writes)
        with self._lock:
            state = self._state(core, access.place)
            if not writes and state[core].writes.covers(access):
                return []
            for other, (written, read, _) in enumerate(state):
                if other != core:
                    sides = [_Side(other, i, a, True) for a, i in written.overlapping(access)]
                    found += [one for one in sides if not (writes and self._alike(side, one))]
                    if writes:
                        found += [_Side(other, i, a, False) for a, i in read.overlapping(access)]
            (state[core].writes if writes else state[core].reads).add(access, instruction)
        return [_shared_race(side, other_side) for other_side in found]

    def _alike(self, one: _Side, other: _Side) -> bool:
        """Whether two writes may be of the same values; with values, `storing` finds out."""
        if self.values:
            return one.instruction.op in _COMPARED and other.instruction.op in _COMPARED
        a, b = one.instruction, other.instruction
        return (a.code, a.line) == (b.code, b.line) and _pattern(one.access) == _pattern(
            other.access
        )

    def storing(
        self, core: int, instruction: Instruction, parts: Sequence[Access], data: Bytes
    ) -> Store:
        """A store by DMA of `core`, to be done within `with`; see `Store`.

        Args:
            core: within the rank
            instruction: a `dma_copy` or `dma_compute`
            parts: the bytes that it writes
            data: the bytes of the tensor
        """
        with self._lock:
            state = self._state(core, parts[0].place)
        return Store(self._values_lock, state, core, instruction, parts, data)

    def _state(self, core: int, place: Place) -> list[_Since]:
        """Every core's accesses that are not in order with what `core` does to `place` now."""
        passed = self._passed.get(place)
        key = (place, 0 if passed is None else passed[core])
        state = self._open.get(key)
        if state is None:
            part = max(1, place.bytes_per_partition // PARTS)
            state = [_Since(*(_Accesses(part) for _ in _Since._fields)) for _ in range(self.cores)]
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


class Store:
    """A store of one core, around which the bytes that the other core has stored to are compared.

    They must keep the values that they have. One core stores at a time.

    Attributes:
        races: afterwards, where they did not
    """

    def __init__(
        self,
        lock: threading.Lock,
        state: Sequence[_Since],
        core: int,
        instruction: Instruction,
        parts: Sequence[Access],
        data: Bytes,
    ) -> None:
        self.races: list[Race] = []
        self._lock = lock
        self._state = state
        self._core = core
        self._instruction = instruction
        self._parts = parts
        self._data = data
        self._before: list[tuple[Access, _Side, Bytes]] = []

    def __enter__(self) -> Store:
        self._lock.acquire()
        self._before = [
            (access, side, _common(access, side.access, self._data))
            for access in self._parts
            for other, since in enumerate(self._state)
            if other != self._core
            for side in since.stored.sides(other, access)
        ]
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        for access, side, values in self._before:
            if not np.array_equal(_common(access, side.access, self._data), values):
                mine = _Side(self._core, self._instruction, access, True)
                self.races.append(_shared_race(mine, side))
        for access in self._parts:
            self._state[self._core].stored.add(access, self._instruction)
        self._lock.release()
