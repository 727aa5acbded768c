"""Which bytes of a tensor have been written.

A set of bytes of a row is one Python integer whose bit `b` stands for byte `b`: unions, differences
and shifts of thousands of bytes are then single operations. Rows with equal sets that follow one
another are kept as one band.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import itemgetter

import numpy as np
import numpy.typing as npt

# (step, count): a pattern repeats `count` times, `step` bytes apart
Steps = tuple[tuple[int, int], ...]
# (first row, past the last row, set of bytes of each of them)
Band = tuple[int, int, int]

_end = itemgetter(1)


class Coverage:
    """A set of bytes of a table of `rows` x `width` bytes.

    On chip a row is a partition; in HBM it is a row of the tensor's last dimension. Sets of bytes
    are given as integers, see the module; `interval` and `strided` make them.

    Attributes:
        full: whether every byte is in the set
    """

    __slots__ = ("_bands", "full", "rows", "width")

    def __init__(self, rows: int, width: int, full: bool = False) -> None:
        self.rows = rows
        self.width = width
        self.full = full
        # disjoint, in order, none empty, neighbours with equal sets merged; unused when full
        self._bands: list[Band] = []

    @property
    def empty(self) -> bool:
        """Whether no byte is in the set."""
        return not self.full and not self._bands

    def add(self, p0: int, p1: int, mask: int) -> None:
        """Put in the bytes `mask` of rows `p0:p1`."""
        if self.full or not mask:
            return
        bands = self._bands
        if not bands:
            bands.append((p0, p1, mask))
        elif len(bands) == 1 and bands[0][0] == p0 and bands[0][1] == p1:
            # a tile that is written part by part
            mask |= bands[0][2]
            bands[0] = (p0, p1, mask)
        else:
            self._change(p0, p1, lambda have: have | mask)
            if len(bands) != 1:
                return
            p0, p1, mask = bands[0]
        # the length is known at once, and tells most of them apart
        if p0 == 0 and p1 == self.rows and mask.bit_length() == self.width:
            self.full = mask == (1 << self.width) - 1
            if self.full:
                bands.clear()

    def remove(self, p0: int, p1: int, mask: int) -> None:
        """Take out the bytes `mask` of rows `p0:p1`."""
        if self.full:
            self.full = False
            self._bands.append((0, self.rows, interval(0, self.width)))
        self._change(p0, p1, lambda have: have & ~mask)

    def covers(self, p0: int, p1: int, mask: int) -> bool:
        """Whether all of the bytes `mask` of rows `p0:p1` are in the set."""
        if self.full:
            return True
        bands = self._bands
        if len(bands) == 1 and bands[0][0] <= p0 and p1 <= bands[0][1]:
            return mask & bands[0][2] == mask
        return all(mask & have == mask for _, _, have in self.within(p0, p1))

    def touches(self, p0: int, p1: int, mask: int) -> bool:
        """Whether any of the bytes `mask` of rows `p0:p1` is in the set."""
        if self.full:
            return True
        if not self._bands:
            return False
        return any(mask & have for _, _, have in self.within(p0, p1))

    def shares(self, p0: int, p1: int, mask: int) -> tuple[bool, bool]:
        """Whether any, and whether all, of the bytes `mask` of rows `p0:p1` are in the set."""
        if self.full:
            return True, True
        bands = self._bands
        if not bands:
            return False, False
        first, last, have = bands[0]
        if len(bands) == 1 and first <= p0 and p1 <= last:
            common = mask & have
            return common != 0, common == mask
        return self.touches(p0, p1, mask), self.covers(p0, p1, mask)

    def missing(self, p0: int, p1: int, mask: int) -> list[Band]:
        """Those of the bytes `mask` of rows `p0:p1` that are not in the set."""
        if self.full:
            return []
        within = self.within(p0, p1)
        return [(a, b, mask & ~have) for a, b, have in within if mask & ~have]

    def bits(self) -> npt.NDArray[np.bool_]:
        """A `[rows, width]` table of what is in the set."""
        table = np.full((self.rows, self.width), self.full)
        size = -(-self.width // 8)
        for p0, p1, have in self._bands:
            packed = np.frombuffer(have.to_bytes(size, "little"), np.uint8)
            table[p0:p1] = np.unpackbits(packed, bitorder="little")[: self.width]
        return table

    def within(self, p0: int, p1: int) -> Iterator[Band]:
        """Rows `p0:p1` as bands, those with nothing in the set among them."""
        if self.full:
            yield p0, p1, interval(0, self.width)
            return
        bands = self._bands
        at = p0
        for position in range(bisect_right(bands, p0, key=_end), len(bands)):
            first, last, have = bands[position]
            if first >= p1:
                break
            if at < first:
                yield at, first, 0
                at = first
            yield at, min(last, p1), have
            at = last
        if at < p1:
            yield at, p1, 0

    def _change(self, p0: int, p1: int, new: Callable[[int], int]) -> None:
        """Replace the set of each of rows `p0:p1` by what `new` makes of it."""
        bands = self._bands
        changed = [(a, b, new(have)) for a, b, have in self.within(p0, p1)]
        # bands that overlap the rows or lie next to them: their rest may merge with the new ones
        start = bisect_right(bands, p0 - 1, key=_end)
        stop = start
        while stop < len(bands) and bands[stop][0] <= p1:
            stop += 1
        if start < stop and bands[start][0] < p0:
            changed.insert(0, (bands[start][0], p0, bands[start][2]))
        if start < stop and bands[stop - 1][1] > p1:
            changed.append((p1, bands[stop - 1][1], bands[stop - 1][2]))
        bands[start:stop] = _merged(changed)


def _merged(bands: list[Band]) -> list[Band]:
    """Bands that follow one another, without empty ones and with equal ones as one."""
    merged: list[Band] = []
    for first, last, have in bands:
        if not have:
            continue
        if merged and merged[-1][1] == first and merged[-1][2] == have:
            merged[-1] = (merged[-1][0], last, have)
        else:
            merged.append((first, last, have))
    return merged


def interval(lo: int, hi: int) -> int:
    """Bytes `lo:hi` of a row."""
    return ((1 << (hi - lo)) - 1) << lo


@lru_cache(maxsize=256)
def strided(lo: int, run: int, steps: Steps) -> int:
    """Runs of `run` bytes from byte `lo` of a row, repeated by `steps`."""
    mask = interval(lo, lo + run)
    for step, count in steps:
        done = 1 if step else count
        while done < count:
            # twice as many with each turn; what is put in twice does no harm
            more = min(done, count - done)
            mask |= mask << (more * step)
            done += more
    return mask


def row_bands(lo: int, run: int, steps: Steps, width: int) -> list[Band]:
    """The bytes of a strided pattern as bands of a table with rows of `width` bytes.

    The pattern is that of `nkisim.trace.Access`: runs of `run` bytes from `lo`, repeated by
    `steps`. Repetitions within a row, and of whole rows, take no more bands.
    """
    within: list[tuple[int, int]] = []
    extent, tall = run, 1
    starts = [lo]
    for step, count in sorted(steps):
        if step == 0:
            continue
        alone = tall == 1 and len(starts) == 1
        if alone and not within and step <= extent:
            # the repetitions follow one another without a gap
            run = extent = extent + step * (count - 1)
        elif alone and lo % width + extent + step * (count - 1) <= width:
            within.append((step, count))
            extent += step * (count - 1)
        elif step == width * tall and len(starts) == 1:
            tall *= count
        else:
            starts = [start + step * k for start in starts for k in range(count)]
    bands: list[Band] = []
    for start in starts:
        row, column = divmod(start, width)
        if column + extent <= width:
            bands.append((row, row + tall, strided(column, run, tuple(within))))
            continue
        for k in range(tall):
            if within:
                bands += _wrapped(row + k, strided(column, run, tuple(within)), width)
            else:
                bands += _long(row + k, column, run, width)
    return bands


def _wrapped(row: int, mask: int, width: int) -> list[Band]:
    """A pattern that goes on in the row below."""
    here = mask & interval(0, width)
    return [(row, row + 1, here), (row + 1, row + 2, mask >> width)]


def _long(row: int, column: int, run: int, width: int) -> list[Band]:
    """A run that goes on in the rows below."""
    bands: list[Band] = []
    if column:
        bands.append((row, row + 1, interval(column, width)))
        row += 1
        run -= width - column
    if run >= width:
        bands.append((row, row + run // width, interval(0, width)))
        row += run // width
    if run % width:
        bands.append((row, row + 1, interval(0, run % width)))
    return bands
