"""How tokens, contractions and columns are cut. None of it changes a bit of a result."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nl
from wantrn.kernels.sbuf import PARTITIONS

# tokens of a tile, and rows of a weight that are contracted at once: one for each partition
TILE = PARTITIONS
# Columns that leave PSUM in one instruction: two banks, since the fixed part of an instruction is
# 60 cycles.
GROUP = 1024
# partitions that the MX matmul does not take
TAIL = 96


class Tile(nl.NKIObject):
    """Tokens `first:first + rows` of sequence `batch`."""

    batch: int
    first: int
    rows: int


class Pass(nl.NKIObject):
    """Tiles of one sequence that follow one another, for which each weight is loaded once.

    Attributes:
        tiles: all full but the last
        batch, first, count: the sequence and its tokens `first:first + count`
        even: as many tokens, and one more where the MX matmul needs that
    """

    tiles: list[Tile]
    batch: int
    first: int
    count: int
    even: int


def tiles_of(batch: int, tokens: int, core: int, cores: int) -> list[Tile]:
    """The tiles of one core of a rank: a run of all tiles, the odd one for the first."""
    each = -(-tokens // TILE)
    share = -(-batch * each // cores)
    found: list[Tile] = []
    for number in range(core * share, min((core + 1) * share, batch * each)):
        sequence, index = divmod(number, each)
        first = index * TILE
        found.append(Tile(batch=sequence, first=first, rows=min(TILE, tokens - first)))
    return found


def passes_of(tiles: list[Tile], most: int, packed: bool) -> list[Pass]:
    """Tiles in passes of at most `most`; a pass ends with its sequence."""
    groups: list[list[Tile]] = []
    for tile in tiles:
        if not groups or len(groups[-1]) == most or groups[-1][-1].batch != tile.batch:
            groups.append([])
        groups[-1].append(tile)
    found: list[Pass] = []
    for group in groups:
        count = group[-1].first + group[-1].rows - group[0].first
        even = count + count % 2 if packed else count
        found.append(
            Pass(tiles=group, batch=group[0].batch, first=group[0].first, count=count, even=even)
        )
    return found


def depth_tiles(words: int, packed: bool) -> list[tuple[int, int]]:
    """Rows of a weight that are contracted at once: the first, and how many.

    The MX matmul takes 32, 64 or 128 partitions: a last tile of 96 is filled up with zeros.
    """
    found: list[tuple[int, int]] = []
    for at in range(0, words, TILE):
        rows = min(TILE, words - at)
        found.append((at, TILE if packed and rows == TAIL else rows))
    return found


def tail_of(words: int, packed: bool) -> Any:
    """The partitions of the last tile that are filled up with zeros; None without."""
    return slice(TAIL, TILE) if packed and words % TILE == TAIL else None


def cut(count: int, most: int) -> list[tuple[int, int]]:
    """`0:count` in pieces of at most `most`, from and to."""
    return [(at, min(at + most, count)) for at in range(0, count, most)]
