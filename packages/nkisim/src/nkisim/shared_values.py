"""What the two cores of a rank store to the same bytes of shared HBM.

A kernel that does not divide its work does the same on both cores: it may fill a tensor with zeros
and then scatter rows into it, twice, in any order of the cores. That is no race where each byte has
the same value in the end whichever core was last, and nobody looks at a byte meanwhile that has had
several values. Values are therefore judged when the cores meet on the tensor, or have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from nkisim.access_list import Accesses
from nkisim.hazards import Race
from nkisim.storage import Bytes
from nkisim.trace import Access, Instruction

T = TypeVar("T", bound=np.generic)
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Side:
    """One of two accesses to common bytes; `core` is within the rank."""

    core: int
    instruction: Instruction
    access: Access
    writes: bool

    def __str__(self) -> str:
        verb = "writes" if self.writes else "reads"
        return f"core {self.core} {verb} in {self.instruction.op} at {self.instruction.location}"


def race_between(one: Side, other: Side) -> Race:
    """Two accesses that nothing puts in order; the text does not depend on which came first."""
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


class _Image(NamedTuple):
    """What one core has stored last: the bytes of the tensor, and which of them it has stored."""

    data: Bytes
    mask: Mask


class SharedValues:
    """The stores by DMA of all cores to one tensor, between two meetings on it.

    Arguments:
        cores: how many cores the rank has
        part: see `nkisim.access_list.Accesses`
    """

    def __init__(self, cores: int, part: int) -> None:
        # held while a core stores, so that others do not between its looks at the bytes
        self._lock = threading.Lock()
        self._stored = [Accesses(part) for _ in range(cores)]
        self._reads = [Accesses(part) for _ in range(cores)]
        # none until something is stored twice
        self._images: list[_Image] = []
        # what did not keep its value when it was stored again
        self._changed: Mask = np.zeros(0, np.bool_)

    def read(self, core: int, access: Access, instruction: Instruction) -> None:
        """Take note that `core` reads what it has stored itself."""
        with self._lock:
            self._reads[core].add(access, instruction)

    def store(
        self, core: int, instruction: Instruction, parts: Sequence[Access], data: Bytes
    ) -> Store:
        """A store of `core`, to be done within `with`.

        Args:
            core: within the rank
            instruction: the DMA that stores
            parts: the bytes that it stores to
            data: all bytes of the tensor
        """
        return Store(self, core, instruction, parts, data)

    def begin(self, parts: Sequence[Access], data: Bytes) -> list[Bytes]:
        """Before a store to `parts`: the bytes that are there, if any of them matter."""
        self._lock.acquire()
        if not self._images and any(
            stored.touching(part) for stored in self._stored for part in parts
        ):
            # so far each byte is as the one core that has stored to it left it
            self._images = [_Image(data.copy(), _marks(stored, data)) for stored in self._stored]
            self._changed = np.zeros(len(data), np.bool_)
        return [_bytes_of(part, data).copy() for part in parts] if self._images else []

    def end(
        self, core: int, instruction: Instruction, parts: Sequence[Access], before: list[Bytes],
        data: Bytes,
    ) -> None:  # fmt: skip
        """After it."""
        for part, old in zip(parts, before, strict=False):
            new = _bytes_of(part, data)
            known = np.logical_or.reduce([_bytes_of(part, image.mask) for image in self._images])
            _bytes_of(part, self._changed)[...] |= known & (new != old)
            _bytes_of(part, self._images[core].data)[...] = new
            _bytes_of(part, self._images[core].mask)[...] = True
        for part in parts:
            self._stored[core].add(part, instruction)
        self._lock.release()

    def abandon(self) -> None:
        """After a store that failed."""
        self._lock.release()

    def races(self) -> list[Race]:
        """Bytes that are not the same on both cores in the end, and reads of those that changed."""
        found = []
        for one, other in combinations(range(len(self._images)), 2):
            first, second = self._images[one], self._images[other]
            differ = first.mask & second.mask & (first.data != second.data)
            if differ.any():
                byte = int(differ.argmax())
                found.append(race_between(self._writer(one, byte), self._writer(other, byte)))
        for core, reads in enumerate(self._reads):
            for other, image in enumerate(self._images):
                if other != core:
                    found += self._unsteady(core, reads, other, image.mask & self._changed)
        return found

    def _unsteady(self, core: int, reads: Accesses, other: int, doubtful: Mask) -> list[Race]:
        if not doubtful.any():
            return []
        found = []
        for access, instruction in reads:
            marks = np.zeros(len(doubtful), np.bool_)
            _bytes_of(access, marks)[...] = True
            marks &= doubtful
            if marks.any():
                side = Side(core, instruction, access, False)
                found.append(race_between(side, self._writer(other, int(marks.argmax()))))
        return found

    def _writer(self, core: int, byte: int) -> Side:
        """The last store of `core` to a byte that it has stored to."""
        marks = np.zeros(len(self._changed), np.bool_)
        chosen = []
        for access, instruction in self._stored[core]:
            marks[...] = False
            _bytes_of(access, marks)[...] = True
            if marks[byte]:
                chosen.append((instruction.index, access, instruction))
        _, access, instruction = max(chosen, key=lambda entry: entry[0])
        return Side(core, instruction, access, True)


class Store:
    """One store, within `with`; see `SharedValues.store`."""

    def __init__(
        self,
        values: SharedValues,
        core: int,
        instruction: Instruction,
        parts: Sequence[Access],
        data: Bytes,
    ) -> None:
        self._values = values
        self._core = core
        self._instruction = instruction
        self._parts = parts
        self._data = data
        self._before: list[Bytes] = []

    def __enter__(self) -> None:
        self._before = self._values.begin(self._parts, self._data)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            self._values.abandon()
        else:
            self._values.end(self._core, self._instruction, self._parts, self._before, self._data)


def _marks(accesses: Accesses, data: Bytes) -> Mask:
    marks = np.zeros(len(data), np.bool_)
    for access, _ in accesses:
        _bytes_of(access, marks)[...] = True
    return marks


def _bytes_of(access: Access, data: npt.NDArray[T]) -> npt.NDArray[T]:
    """The bytes of an access as a view of those of its tensor."""
    counts = [count for _, count in access.steps]
    steps = [step for step, _ in access.steps]
    return as_strided(data[access.lo :], (*counts, access.run), (*steps, 1))
