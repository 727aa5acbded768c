"""Layouts whose groups follow the links between the chips of a Trn2 instance."""

from __future__ import annotations

from collections.abc import Iterator

from wantrn.parallel.degrees import Degrees
from wantrn.parallel.layout import Layout
from wantrn.parallel.torus import Torus

TRN2 = Torus(rows=4, columns=4, cores=4)
"""A Trn2 instance: 16 chips, 4 logical cores each (LNC2)."""

_SIDE = 8


def trn2_layout(degrees: Degrees) -> Layout:
    """The groups of a run on one Trn2 instance, so that each group is a ring of links.

    The first of these whose groups are all rings; degrees that are powers of two always have one:

    1. With cp 8 and tp * cfg 8, or with tp 8: ranks in a mesh of 8 x 8, where a row is two linked
       chips, and a column one core of each of eight chips. In the first case the columns share a
       sequence, and rows are cut in groups of tp. In the second, rows are groups of tp; in a column
       neighbours share a guidance, and ranks ``cfg`` rows apart a sequence.
    2. The arithmetic order.
    3. The arithmetic order with the chips of rows, and rows, in the order of a Gray code.

    Groups of ``dp`` need no ring, as nothing goes between them.

    Raises:
        ValueError: more ranks than the instance has, or degrees for which none of these has rings
            only; the text says which group of the first is none, and why.
    """
    if degrees.world > TRN2.world:
        raise ValueError(
            f"a Trn2 instance has {TRN2.world} ranks, the degrees make {degrees.world}"
        )
    flaws = []
    for layout in _candidates(degrees):
        flaw = _flaw(layout)
        if flaw is None:
            return layout
        flaws.append(flaw)
    raise ValueError(f"a Trn2 instance has no layout for these degrees: {flaws[0]}")


def _candidates(degrees: Degrees) -> Iterator[Layout]:
    """Layouts to choose from, the preferred first."""
    arithmetic = Layout.arithmetic(degrees)
    if degrees.cp == _SIDE and degrees.tp * degrees.cfg == _SIDE:
        yield arithmetic.moved(_by_columns(degrees))
    # without both rows of a torus row, the world would have gaps
    elif degrees.tp == _SIDE and degrees.world % (2 * _SIDE) == 0:
        yield arithmetic.moved(_by_rows(degrees))
    yield arithmetic
    if degrees.world & (degrees.world - 1) == 0:
        yield arithmetic.moved([_by_gray_code(place) for place in range(degrees.world)])


def _mesh() -> list[list[int]]:
    """Ranks in 8 rows and 8 columns.

    A row of the torus makes two of the mesh: its outer chips, linked around the edge, and its inner
    ones. So the left half of the mesh has the torus's left half, and the right half its right.
    """
    rows = []
    for first in range(0, TRN2.rows * TRN2.columns, TRN2.columns):
        for left, right in ((first, first + 3), (first + 1, first + 2)):
            chips = [range(chip * TRN2.cores, (chip + 1) * TRN2.cores) for chip in (left, right)]
            rows.append([rank for chip in chips for rank in chip])
    return rows


def _by_columns(degrees: Degrees) -> list[int]:
    """The rank at each place of the arithmetic order, where columns share a sequence."""
    mesh = _mesh()
    return [
        mesh[cp][cfg * degrees.tp + tp]
        for cfg in range(degrees.cfg)
        for cp in range(degrees.cp)
        for tp in range(degrees.tp)
    ]


def _by_rows(degrees: Degrees) -> list[int]:
    """The rank at each place of the arithmetic order, where rows are groups of tp."""
    mesh = _mesh()
    return [
        rank
        for dp in range(degrees.dp)
        for cfg in range(degrees.cfg)
        for cp in range(degrees.cp)
        for rank in mesh[(dp * degrees.cp + cp) * degrees.cfg + cfg]
    ]


def _by_gray_code(place: int) -> int:
    """The rank at a place of the arithmetic order, where chips stand in the order 0, 1, 3, 2.

    Chips whose places differ in one bit are linked then, as a ring of four is a square. So groups
    whose places differ in some bits are a pair, a row, a column or a rectangle.
    """
    chip, core = divmod(place, TRN2.cores)
    row, column = divmod(chip, TRN2.columns)
    return ((row ^ row >> 1) * TRN2.columns + (column ^ column >> 1)) * TRN2.cores + core


def _flaw(layout: Layout) -> str | None:
    """What is no ring of links."""
    for axis in ("tp", "ulysses", "ring", "cp", "cfg"):
        for group in getattr(layout, axis):
            flaw = TRN2.ring_flaw(group)
            if flaw is not None:
                return f"{axis} would have the ranks {list(group)}, but {flaw}"
    return None
