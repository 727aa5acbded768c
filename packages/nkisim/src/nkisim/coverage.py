"""Which bytes of a tensor have been written, as a short list of rectangles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# (first row, past the last row, first byte, past the last byte)
Rectangle = tuple[int, int, int, int]

# Tiles are written in strips that merge, so that one or two rectangles are the rule. Scattered
# writes would make the list long and each test slow; a bit for each byte takes over then.
_MAX_RECTANGLES = 48


class Coverage:
    """A set of bytes of a table of `rows` x `width` bytes.

    On chip a row is a partition; in HBM it is a row of the tensor's last dimension.
    """

    __slots__ = ("_bits", "_missing", "_rectangles", "full", "rows", "width")

    def __init__(self, rows: int, width: int, full: bool = False) -> None:
        self.rows = rows
        self.width = width
        self.full = full
        self._rectangles: list[Rectangle] = []
        self._bits: npt.NDArray[np.bool_] | None = None
        self._missing = 0

    @property
    def empty(self) -> bool:
        """Whether nothing is covered."""
        if self._bits is not None:
            return self._missing == self._bits.size
        return not self.full and not self._rectangles

    def add(self, p0: int, p1: int, lo: int, hi: int) -> None:
        """Cover rows `p0:p1`, bytes `lo:hi`."""
        if self.full:
            return
        if self._bits is not None:
            part = self._bits[p0:p1, lo:hi]
            self._missing -= part.size - int(np.count_nonzero(part))
            part[:] = True
            self._settle()
            return
        rectangles = self._rectangles
        position = 0
        while position < len(rectangles):
            a0, a1, alo, ahi = rectangles[position]
            if a0 <= p0 and p1 <= a1 and alo <= lo and hi <= ahi:
                return
            beside = a0 == p0 and a1 == p1 and alo <= hi and lo <= ahi
            below = alo == lo and ahi == hi and a0 <= p1 and p0 <= a1
            inside = p0 <= a0 and a1 <= p1 and lo <= alo and ahi <= hi
            if beside or below or inside:
                p0, p1, lo, hi = min(a0, p0), max(a1, p1), min(alo, lo), max(ahi, hi)
                rectangles[position] = rectangles[-1]
                rectangles.pop()
                position = 0
            else:
                position += 1
        if p0 == 0 and lo == 0 and p1 == self.rows and hi == self.width:
            self.full = True
            self._rectangles = []
            return
        rectangles.append((p0, p1, lo, hi))
        if len(rectangles) > _MAX_RECTANGLES:
            self._to_bits()

    def remove(self, p0: int, p1: int, lo: int, hi: int) -> None:
        """Uncover rows `p0:p1`, bytes `lo:hi`."""
        if self._bits is not None:
            part = self._bits[p0:p1, lo:hi]
            self._missing += int(np.count_nonzero(part))
            part[:] = False
            return
        if self.full:
            self.full = False
            self._rectangles = [(0, self.rows, 0, self.width)]
        gone = (p0, p1, lo, hi)
        self._rectangles = [piece for old in self._rectangles for piece in _minus(old, gone)]
        if len(self._rectangles) > _MAX_RECTANGLES:
            self._to_bits()

    def covers(self, p0: int, p1: int, lo: int, hi: int) -> bool:
        """Whether all of rows `p0:p1`, bytes `lo:hi` is covered."""
        if self.full:
            return True
        if self._bits is not None:
            return bool(self._bits[p0:p1, lo:hi].all())
        for a0, a1, alo, ahi in self._rectangles:
            if a0 <= p0 and p1 <= a1 and alo <= lo and hi <= ahi:
                return True
        left = [(p0, p1, lo, hi)]
        for covered in self._rectangles:
            left = [piece for old in left for piece in _minus(old, covered)]
        return not left

    def touches(self, p0: int, p1: int, lo: int, hi: int) -> bool:
        """Whether any byte of rows `p0:p1`, bytes `lo:hi` is covered."""
        if self.full:
            return True
        if self._bits is not None:
            return bool(self._bits[p0:p1, lo:hi].any())
        for a0, a1, alo, ahi in self._rectangles:
            if a0 < p1 and p0 < a1 and alo < hi and lo < ahi:
                return True
        return False

    def bits(self) -> npt.NDArray[np.bool_]:
        """A `[rows, width]` table of what is covered."""
        if self._bits is not None:
            return self._bits
        table = np.full((self.rows, self.width), self.full)
        for p0, p1, lo, hi in self._rectangles:
            table[p0:p1, lo:hi] = True
        return table

    def _to_bits(self) -> None:
        self._bits = self.bits()
        self._missing = self._bits.size - int(np.count_nonzero(self._bits))
        self._rectangles = []
        self._settle()

    def _settle(self) -> None:
        if self._missing == 0:
            self.full = True
            self._bits = None


def _minus(old: Rectangle, gone: Rectangle) -> list[Rectangle]:
    """What is left of `old` without `gone`: up to four rectangles."""
    p0, p1, lo, hi = old
    q0, q1, qlo, qhi = gone
    if q0 >= p1 or p0 >= q1 or qlo >= hi or lo >= qhi:
        return [old]
    pieces = []
    if p0 < q0:
        pieces.append((p0, q0, lo, hi))
    if q1 < p1:
        pieces.append((q1, p1, lo, hi))
    top, bottom = max(p0, q0), min(p1, q1)
    if lo < qlo:
        pieces.append((top, bottom, lo, qlo))
    if qhi < hi:
        pieces.append((top, bottom, qhi, hi))
    return pieces


def rectangles(
    lo: int, run: int, steps: tuple[tuple[int, int], ...], width: int
) -> list[Rectangle]:
    """The bytes of a strided pattern as rectangles of a table with rows of `width` bytes.

    The pattern is that of `nkisim.trace.Access`: runs of `run` bytes from `lo`, repeated by `steps`.
    A step of a whole row makes one tall rectangle, so that a tile of a matrix is one.
    """
    tall = 1
    starts = [lo]
    for step, count in steps:
        if step == width and tall == 1:
            tall = count
        elif step != 0:
            starts = [start + step * k for start in starts for k in range(count)]
    found = []
    for start in starts:
        row, column = divmod(start, width)
        if column + run <= width:
            found.append((row, row + tall, column, column + run))
        else:
            found.extend(_wrapped(row, column, run, width, tall))
    return found


def _wrapped(row: int, column: int, run: int, width: int, tall: int) -> list[Rectangle]:
    """A run that goes past the end of its row."""
    pieces = []
    for k in range(tall):
        at, left, offset = row + k, run, column
        if offset:
            pieces.append((at, at + 1, offset, width))
            left -= width - offset
            at += 1
        if left >= width:
            pieces.append((at, at + left // width, 0, width))
            at += left // width
            left %= width
        if left:
            pieces.append((at, at + 1, 0, left))
    return pieces
