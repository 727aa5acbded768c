"""Races between the two cores of a rank on the HBM that they share.

The cores do not wait for each other. In the simulation their threads take turns, so a kernel that
forgets a barrier may still compute the right thing. The detector follows who may touch which bytes
when, whatever the order in which the threads happened to run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nkisim.access_list import PARTS, Accesses
from nkisim.hazards import Race
from nkisim.shared_values import SharedValues, Side, Store, race_between
from nkisim.storage import Bytes
from nkisim.trace import Access, Instruction, Place

# the instructions whose values `SharedValues` compares
_COMPARED = frozenset({"dma_copy", "dma_compute"})


class _Epoch(NamedTuple):
    """What the cores have done to one tensor between two meetings on it: each core's accesses as
    they were issued, and what was stored."""

    writes: list[Accesses]
    reads: list[Accesses]
    values: SharedValues


class SharedWrites:
    """The accesses of the cores of one rank to the HBM that they share.

    Accesses of one core are in order. Those of two cores are ordered only by a meeting on the
    tensor between them: a `core_barrier` on it, or a collective on it that both issue. As meetings
    take in both cores at a time, the vector clock of a tensor is one number for each core: how many
    meetings on it the core has passed. Two accesses are in order exactly if the numbers differ.

    A meeting on one tensor does not order accesses to another: the barrier waits for the writes to
    its own tensor only.

    Two writes by DMA to the same bytes, and a read of what the reading core has written itself, are
    left to `nkisim.shared_values`, which looks at what was written. That takes a meeting which
    waits: a core that has passed it stores after all that the others stored before it. Nothing is
    said of them in a run without numerics.

    Arguments:
        cores: how many cores the rank has
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._lock = threading.Lock()
        self._passed: dict[Place, list[int]] = {}
        # by tensor and number of meetings passed
        self._open: dict[tuple[Place, int], _Epoch] = {}

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
                races += self._conflicts(Side(core, instruction, write, True))
        for read in instruction.reads:
            if read.place.core is None:
                races += self._conflicts(Side(core, instruction, read, False))
        return races

    def storing(
        self, core: int, instruction: Instruction, parts: Sequence[Access], data: Bytes
    ) -> Store:
        """A store by DMA of `core`, to be done within `with`; see `SharedValues.store`."""
        with self._lock:
            epoch = self._epoch(core, parts[0].place)
        return epoch.values.store(core, instruction, parts, data)

    def meet(self, core: int, places: Iterable[Place]) -> list[Race]:
        """Say that `core` has passed a meeting of all cores of the rank on `places`.

        The last one gets the races that the values before the meeting tell of.
        """
        races: list[Race] = []
        with self._lock:
            for place in places:
                passed = self._passed.setdefault(place, [0] * self.cores)
                passed[core] += 1
                # nobody can be at what all have passed
                done = self._open.pop((place, min(passed) - 1), None)
                if done is not None:
                    races += done.values.races()
        return races

    def finish(self) -> list[Race]:
        """The races that the values tell of after all cores have ended."""
        return [race for epoch in self._open.values() for race in epoch.values.races()]

    def _conflicts(self, side: Side) -> list[Race]:
        core, access = side.core, side.access
        with self._lock:
            epoch = self._epoch(core, access.place)
            if not side.writes and epoch.writes[core].covers(access):
                epoch.values.read(core, access, side.instruction)
                return []
            found = []
            for other in range(self.cores):
                if other == core:
                    continue
                for its, instruction in epoch.writes[other].overlapping(access):
                    if not (side.writes and _are_compared(side.instruction, instruction)):
                        found.append(Side(other, instruction, its, True))
                if side.writes:
                    for its, instruction in epoch.reads[other].overlapping(access):
                        found.append(Side(other, instruction, its, False))
            kept = epoch.writes if side.writes else epoch.reads
            kept[core].add(access, side.instruction)
        return [race_between(side, one) for one in found]

    def _epoch(self, core: int, place: Place) -> _Epoch:
        """All that is not in order with what `core` does to `place` now."""
        passed = self._passed.get(place)
        key = (place, 0 if passed is None else passed[core])
        epoch = self._open.get(key)
        if epoch is None:
            part = max(1, place.bytes_per_partition // PARTS)
            writes, reads = ([Accesses(part) for _ in range(self.cores)] for _ in range(2))
            epoch = self._open[key] = _Epoch(writes, reads, SharedValues(self.cores, part))
        return epoch


def _are_compared(one: Instruction, other: Instruction) -> bool:
    return one.op in _COMPARED and other.op in _COMPARED
