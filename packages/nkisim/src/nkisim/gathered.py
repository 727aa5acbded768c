"""Operands of matmuls, gathered in fp32 until their products are computed, and kept for later ones.

A tiled matmul multiplies the same operands again and again: each part of the stationary matrix by
every part of the moving one. Gathering them took a fifth of its time where nothing was kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nkisim.enums import MemoryRegion
from nkisim.memory_view import MemoryView

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

# Rows of contraction that are gathered before they are multiplied, and bytes of one operand. One
# product of 2048 rows takes about half the time of sixteen of 128.
_MAX_ROWS = 2048
_MAX_BYTES = 16 << 20
# of one instruction: 128 partitions of four values each (MX)
_MIN_ROWS = 512
# How many of one width wait for their next use, and bytes of all of them. More would find more
# again, and slow down what has nothing to find: they would no longer stay in the caches.
_KEPT = 8
_KEPT_BYTES = 64 << 20

# Equal marks mean equal values.
Mark = tuple[Any, ...]


class Operand(NamedTuple):
    """One operand of one matmul, which may not have to be read.

    Attributes:
        rows, columns: its shape
        values: gives it, in any dtype
        mark: what tells its values; None where nothing does
    """

    rows: int
    columns: int
    values: Callable[[], Array]
    mark: Mark | None = None

    @classmethod
    def of(cls, values: Array) -> Operand:
        """One whose values are at hand."""
        rows, columns = values.shape
        return cls(rows, columns, lambda: values)


def mark(tensor: MemoryView) -> Mark | None:
    """What tells the values of an operand in SBUF, as they are now.

    None where others may change them without this tensor: another one at the same address, or an
    index.
    """
    storage = tensor.storage
    place = storage.place
    if place.addressed or tensor.dynamic is not None or place.region is not MemoryRegion.sbuf:
        return None
    view = (tensor.offset, tensor.shape, tensor.strides, tensor.dtype)
    return (place.serial, storage.version, *view)


class Gathered:
    """Operands of equal width one below the other, in fp32.

    What an earlier chain of matmuls has left is used again as far as it is the same.
    """

    __slots__ = ("_blocks", "_next", "_values", "rows")

    def __init__(self, rows: int, columns: int) -> None:
        self._values = np.empty((rows, columns), np.float32)
        # the last row and the mark of each operand that is there
        self._blocks: list[tuple[int, Mark | None]] = []
        self._next = 0
        self.rows = 0

    @property
    def columns(self) -> int:
        return self._values.shape[1]

    def begin(self) -> None:
        """Start over with no rows."""
        self._next = self.rows = 0

    @property
    def first_mark(self) -> Mark | None:
        """Of the first operand that is there."""
        return self._blocks[0][1] if self._blocks else None

    def has_room(self, operand: Operand) -> bool:
        return self.rows + operand.rows <= len(self._values)

    def append(self, operand: Operand) -> None:
        """Put `operand` below what is there."""
        end = self.rows + operand.rows
        block = (end, operand.mark)
        blocks, at = self._blocks, self._next
        if operand.mark is None or at >= len(blocks) or blocks[at] != block:
            del blocks[at:]
            self._values[self.rows : end] = operand.values()
            blocks.append(block)
        self._next = at + 1
        self.rows = end

    def values(self) -> Float32:
        """All operands, `[rows, columns]`."""
        return self._values[: self.rows]


class GatheredPool:
    """What the chains of a core gather into; fresh pages are slow, and what is there may serve.

    A chain takes over what begins with its own first operand, or else what was used last, which is
    in the caches. One more is made only when an operand comes back that one more would have kept.
    """

    def __init__(self) -> None:
        self._shelves: dict[int, _Shelf] = {}

    def take(self, first: Operand) -> Gathered:
        """One to begin with `first`."""
        shelf = self._shelves.get(first.columns)
        if shelf is None:
            shelf = self._shelves[first.columns] = _Shelf(first.columns)
        gathered = shelf.take(first.mark)
        gathered.begin()
        return gathered

    def give_back(self, gathered: Gathered) -> None:
        self._shelves[gathered.columns].put(gathered)


class _Shelf:
    """Those of one width that wait for their next use."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._rows = max(_MIN_ROWS, min(_MAX_ROWS, _MAX_BYTES // (4 * columns)))
        self._most = max(1, min(_KEPT, _KEPT_BYTES // (4 * columns * self._rows)))
        # by the mark of their first operand, the last used at the end
        self._free: dict[Mark | None, Gathered] = {}
        # the last first operands; each may stand there once
        self._seen: dict[Mark | None, None] = {}

    def take(self, mark: Mark | None) -> Gathered:
        free = self._free
        found = None if mark is None else free.pop(mark, None)
        if found is not None:
            return found
        missed = mark is not None and mark in self._seen and len(free) < self._most
        if free and not missed:
            return free.popitem()[1]
        return Gathered(self._rows, self._columns)

    def put(self, gathered: Gathered) -> None:
        mark = gathered.first_mark
        self._free[mark] = gathered
        seen = self._seen
        seen.pop(mark, None)
        seen[mark] = None
        if len(seen) > self._most:
            del seen[next(iter(seen))]
