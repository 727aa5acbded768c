"""The memory behind a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nkisim.address_map import AddressMap
from nkisim.coverage import Coverage, rectangles
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
        coverage: what was written; None where nobody asks (inputs)
        neighbours: of a tensor that the kernel placed: the others of its memory
        accumulation: of PSUM only: what matmuls have written and not yet added up
    """

    __slots__ = (
        "__weakref__", "accumulation", "base", "clobbered_by", "coverage", "data", "neighbours",
        "pitch", "place",
    )  # fmt: skip

    def __init__(self, place: Place, data: Bytes | None, base: int, pitch: int) -> None:
        self.place = place
        self.data = data
        self.base = base
        self.pitch = pitch
        self.coverage: Coverage = _coverage(place)
        self.neighbours: AddressMap | None = None
        self.clobbered_by: Instruction | None = None
        self.accumulation: Accumulation | None = None

    def boxes(self, access: Access) -> list[tuple[int, int, int, int]]:
        """`access` as rectangles of the coverage table."""
        if self.place.on_chip:
            base = self.place.base_partition
            p0, p1 = access.p0 - base, access.p1 - base
            if not access.steps:
                return [(p0, p1, access.lo, access.hi)]
            starts = [access.lo]
            for step, count in access.steps:
                if step:
                    starts = [start + step * k for start in starts for k in range(count)]
            return [(p0, p1, start, start + access.run) for start in starts]
        return rectangles(access.lo, access.run, access.steps, self.coverage.width)

    def mark_written(self, access: Access, by: Instruction) -> None:
        """Note that `access` was written; whoever shares its bytes has lost them."""
        coverage = self.coverage
        if self.neighbours is not None:
            if coverage.empty:
                self.neighbours.enter(self)
            for other in self.neighbours.others(self):
                self._clobber(other, access, by)
        if not coverage.full:
            if access.dynamic:
                # which bytes is known only on the device: none of them can be called unwritten
                coverage.add(0, coverage.rows, 0, coverage.width)
            elif not access.steps and self.place.on_chip:
                base = self.place.base_partition
                coverage.add(access.p0 - base, access.p1 - base, access.lo, access.hi)
            else:
                for box in self.boxes(access):
                    coverage.add(*box)

    def was_written(self, access: Access) -> bool:
        """Whether every byte of `access` was written through this tensor, and is still there."""
        coverage = self.coverage
        if coverage.full or access.dynamic:
            return True
        if not access.steps and self.place.on_chip:
            base = self.place.base_partition
            return coverage.covers(access.p0 - base, access.p1 - base, access.lo, access.hi)
        return all(coverage.covers(*box) for box in self.boxes(access))

    def alive_neighbours(self) -> list[Storage]:
        """The other tensors at these addresses through which something there was written."""
        return [] if self.neighbours is None else self.neighbours.others(self)

    def _clobber(self, other: Storage, access: Access, by: Instruction) -> None:
        """`access` of this tensor was written: `other` has lost what it had there."""
        mine, theirs = self.place, other.place
        assert mine.address is not None and theirs.address is not None
        p0 = max(access.p0, theirs.base_partition) - theirs.base_partition
        p1 = min(access.p1, theirs.base_partition + theirs.partitions) - theirs.base_partition
        if p0 >= p1:
            return
        shift = mine.address - theirs.address
        touched = False
        for _, _, lo, hi in self.boxes(access):
            lo, hi = max(lo + shift, 0), min(hi + shift, theirs.bytes_per_partition)
            if lo < hi and other.coverage.touches(p0, p1, lo, hi):
                other.coverage.remove(p0, p1, lo, hi)
                touched = True
        if touched:
            other.clobbered_by = by
            if other.coverage.empty and other.neighbours is not None:
                other.neighbours.leave(other)


def _coverage(place: Place) -> Coverage:
    if place.on_chip:
        return Coverage(place.partitions, place.bytes_per_partition)
    width = place.shape[-1] * place.dtype.itemsize
    return Coverage(place.bytes_per_partition // width, width)


def poisoned(size: int) -> Bytes:
    """`size` bytes that nothing has written yet."""
    data = np.empty(size, np.uint8)
    data.fill(POISON)
    return data


def flat_bytes(array: npt.NDArray[Any]) -> Bytes:
    """The bytes of a C-contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8)
