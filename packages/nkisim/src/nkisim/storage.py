"""The memory behind a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nkisim.address_map import AddressMap
from nkisim.coverage import Band, Coverage, interval, row_bands, strided
from nkisim.trace import Access, Instruction, Place

if TYPE_CHECKING:
    from nkisim.psum import Accumulation

Bytes = npt.NDArray[np.uint8]

# NaN in every floating-point type (and -1 in signed integers), so that reading what nothing wrote
# shows even where the rule is off
POISON = 0xFF


class Storage:
    """One allocated tensor: its place, its bytes, and which of them were written.

    On chip, byte `b` of partition `p` (counted from the tensor's first) is at
    `data[base + p * pitch + b]`: an addressed tensor is a window into the memory of its core, any
    other has memory of its own. In HBM, `pitch` is 0.

    Attributes:
        data: flat bytes, or None in a run without numerics
        fresh: nothing has been stored in `data` yet, and it holds anything at all; see `settle`
        coverage: what was written; all of an argument
        neighbours: of a tensor that the kernel placed: the others of its memory
        lost, clobbered_by: what was ever written and then overwritten through another tensor, and
            the last instruction that did so; it is lost as long as `coverage` is without it
        accumulation: of PSUM only: what matmuls have written and not yet added up
        version: how many instructions have written through this tensor; each has stored what it
            writes before the core issues the next one
    """

    __slots__ = (
        "__weakref__", "_alone", "accumulation", "base", "clobbered_by", "coverage", "data",
        "fresh", "lost", "neighbours", "pitch", "place", "version",
    )  # fmt: skip

    def __init__(self, place: Place, data: Bytes | None, base: int, pitch: int) -> None:
        self.place = place
        self.data = data
        self.fresh = False
        self.base = base
        self.pitch = pitch
        if pitch:
            self.coverage = Coverage(place.partitions, place.bytes_per_partition)
        else:
            row = place.shape[-1] * place.dtype.itemsize
            self.coverage = Coverage(place.bytes_per_partition // row, row)
        # `entered` of the neighbours when none of them had contents at these addresses
        self._alone = -1
        self.neighbours: AddressMap | None = None
        self.lost: Coverage | None = None
        self.clobbered_by: Instruction | None = None
        self.accumulation: Accumulation | None = None
        self.version = 0

    def bands(self, access: Access) -> list[Band]:
        """`access` as bands of the coverage table; on chip it is one."""
        if self.pitch:
            base = self.place.base_partition
            mask = strided(access.lo, access.run, access.steps)
            return [(access.p0 - base, access.p1 - base, mask)]
        return row_bands(access.lo, access.run, access.steps, self.coverage.width)

    def settle(self) -> None:
        """Poison memory that is `fresh`, unless the first instruction that writes fills all of it.

        To be called after that instruction was issued and before anything looks at the memory; most
        tiles are filled by it, and then need not be filled twice.
        """
        if self.fresh and self.data is not None and not self.coverage.full:
            self.data.fill(POISON)
        self.fresh = False

    def mark_written(self, access: Access, by: Instruction) -> None:
        """Note that `access` was written; whoever shares its bytes has lost them."""
        coverage = self.coverage
        if self.neighbours is not None:
            self._take_over(self.neighbours, access, by)
        if coverage.full:
            return
        if access.dynamic:
            # which bytes is known only on the device: none of them can be called unwritten
            coverage.add(0, coverage.rows, interval(0, coverage.width))
        elif self.pitch and not access.steps:
            base = self.place.base_partition
            coverage.add(access.p0 - base, access.p1 - base, interval(access.lo, access.hi))
        else:
            for band in self.bands(access):
                coverage.add(*band)

    def was_written(self, access: Access) -> bool:
        """Whether every byte of `access` was written through this tensor, and is still there."""
        coverage = self.coverage
        if coverage.full or access.dynamic:
            return True
        if self.pitch and not access.steps:
            base = self.place.base_partition
            run = interval(access.lo, access.hi)
            return coverage.covers(access.p0 - base, access.p1 - base, run)
        return all(coverage.covers(*band) for band in self.bands(access))

    def breach(self, access: Access) -> str:
        """The rule that reading `access` breaks, not all of which `was_written`.

        `overwritten`: some bytes were written, then overwritten through another tensor. `aliased`:
        what is missing was written through other tensors, which the kernel still holds. Else
        `uninitialized`.
        """
        missing = [part for band in self.bands(access) for part in self.coverage.missing(*band)]
        if self.lost is not None and any(self.lost.touches(*part) for part in missing):
            return "overwritten"
        rest = Coverage(self.coverage.rows, self.coverage.width)
        for part in missing:
            rest.add(*part)
        for other in self.alive_neighbours():
            for part in missing:
                for held in _seen_from(self, other, part):
                    rest.remove(*held)
        return "aliased" if rest.empty else "uninitialized"

    def alive_neighbours(self) -> list[Storage]:
        """The other tensors at these addresses through which something there was written."""
        return [] if self.neighbours is None else self.neighbours.others(self)

    def _take_over(self, neighbours: AddressMap, access: Access, by: Instruction) -> None:
        """`access` is written: the other tensors at its addresses lose what they had there."""
        if self.coverage.empty:
            neighbours.enter(self)
        if access.dynamic or self._alone == neighbours.entered:
            return
        others = neighbours.others(self)
        if not others and self.lost is None:
            self._alone = neighbours.entered
        for other in others:
            for band in self.bands(access):
                other._lose(_translated(self.place, other.place, band), by)

    def _lose(self, band: Band, by: Instruction) -> None:
        p0, p1, mask = band
        if p0 >= p1 or not self.coverage.touches(p0, p1, mask):
            return
        if self.lost is None:
            self.lost = Coverage(self.coverage.rows, self.coverage.width)
        for first, last, have in self.coverage.within(p0, p1):
            self.lost.add(first, last, have & mask)
        self.coverage.remove(p0, p1, mask)
        self.clobbered_by = by
        if self.coverage.empty and self.neighbours is not None:
            self.neighbours.leave(self)


def _translated(mine: Place, theirs: Place, band: Band) -> Band:
    """Bytes of one addressed tensor as those of another one; no rows where they share none."""
    assert mine.address is not None and theirs.address is not None
    p0, p1, mask = band
    down = mine.base_partition - theirs.base_partition
    shift = mine.address - theirs.address
    mask = mask << shift if shift >= 0 else mask >> -shift
    within = mask & interval(0, theirs.bytes_per_partition)
    return max(p0 + down, 0), min(p1 + down, theirs.partitions), within


def _seen_from(one: Storage, other: Storage, band: Band) -> list[Band]:
    """Those bytes of a band of `one` that were written through `other`."""
    p0, p1, mask = _translated(one.place, other.place, band)
    if p0 >= p1:
        return []
    held = [(a, b, have & mask) for a, b, have in other.coverage.within(p0, p1)]
    return [_translated(other.place, one.place, part) for part in held]


def fresh_storage(place: Place, numerics: bool) -> Storage:
    """A new tensor on chip that has memory of its own."""
    width = place.bytes_per_partition
    storage = Storage(
        place, np.empty(place.partitions * width, np.uint8) if numerics else None, 0, width
    )
    storage.fresh = numerics
    return storage


def poisoned(size: int) -> Bytes:
    """`size` bytes that nothing has written yet."""
    data = np.empty(size, np.uint8)
    data.fill(POISON)
    return data


def flat_bytes(array: npt.NDArray[Any]) -> Bytes:
    """The bytes of a C-contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8)
