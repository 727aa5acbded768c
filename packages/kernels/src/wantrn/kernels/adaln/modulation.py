"""Rows of gate, scale and shift, each spread over the tokens that it belongs to."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.adaln.plan import TILE
from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.slots import Slots


class Tile(nl.NKIObject):
    """Tokens `first:first + rows` of all; `number` on its core."""

    number: int
    first: int
    rows: int


class Run(nl.NKIObject):
    """Tokens `at:at + count` of a tile and their rows.

    Attributes:
        row: of the first of them
        each: they have consecutive rows; otherwise all have the same
    """

    at: int
    count: int
    row: int
    each: bool


def tiles_of(tokens: int, core: int, cores: int) -> list[Tile]:
    """The tiles of one core of a rank: a run of whole tiles, the odd one for the first."""
    count = -(-tokens // TILE)
    each = -(-count // cores)
    found: list[Tile] = []
    for index in range(core * each, min((core + 1) * each, count)):
        first = index * TILE
        found.append(Tile(number=len(found), first=first, rows=min(TILE, tokens - first)))
    return found


def runs_of(tile: Tile, shape: tuple[int, ...], positions: int) -> list[Run]:
    """A tile cut into runs.

    Args:
        shape: `(1 or B, G)`: row `g` of a sequence belongs to the `g`-th run of `S / G` tokens.
        positions: `S`.
    """
    batch, groups = shape
    if batch * groups == 1:
        return [Run(at=0, count=tile.rows, row=0, each=False)]
    length = positions // groups
    found: list[Run] = []
    at = 0
    while at < tile.rows:
        sequence, position = divmod(tile.first + at, positions)
        row = (sequence if batch > 1 else 0) * groups + position // length
        left = positions - position if length == 1 else length - position % length
        count = min(left, tile.rows - at)
        found.append(Run(at=at, count=count, row=row, each=length == 1))
        at += count
    return found


class Modulation(nl.NKIObject):
    """One of gate, mul and add.

    Attributes:
        source: HBM fp32 `[1 or B, G, H]`
        positions: `S`
        slots: SBUF fp32 `[TILE, H]`
        held: what the slot that was filled last holds
        row: the number of the row that all its partitions have; -1 if they differ
    """

    source: Any
    positions: int
    slots: Slots
    held: Any = None
    row: int = -1

    def of(self, tile: Tile) -> Any:
        """SBUF fp32 `[rows, H]`; loaded unless the tile before had the same row throughout."""
        shape = self.source.shape
        runs = runs_of(tile, (shape[0], shape[1]), self.positions)
        rows = self.source.flatten_dims(0, 1)
        if len(runs) == 1 and not runs[0].each:
            if self.row != runs[0].row:
                self.row = runs[0].row
                self.held = self.slots.take()
                self._load(self.held[:, 0 : shape[2]], rows, self.row, False)
        else:
            self.row = -1
            self.held = self.slots.take()
            for run in runs:
                part = self.held[run.at : run.at + run.count, 0 : shape[2]]
                self._load(part, rows, run.row, run.each)
        return self.held[0 : tile.rows, 0 : shape[2]]

    def _load(self, dst: Any, rows: Any, first: int, each: bool) -> None:
        count = dst.shape[0]
        if each:
            nisa.dma_copy(dst, rows[first : first + count, :])
        else:
            nisa.dma_copy(dst, rows[first : first + 1, :].broadcast(0, count))
