"""Blocks of queries, and what is loaded for them: the queries, and blocks of a shard."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.ring.division import Unit
from wantrn.kernels.ring.exchange import Shards
from wantrn.kernels.ring.plan import BLOCK_GROUPS
from wantrn.kernels.ring.queries import Queries
from wantrn.kernels.ring.rank import Rank
from wantrn.kernels.sbuf import PARTITIONS
from wantrn.kernels.slots import slots


class Block(nl.NKIObject):
    """A block of queries of a unit, in one step.

    Attributes:
        unit: of which.
        first, groups: groups of 128 queries.
        step: of the ring, from 0.
        place: of its first group among the sums that are resident.
        last: whether no step comes after.
    """

    def __init__(self, rank: Rank, unit: Unit, first: int, step: int) -> None:
        shape = rank.plan.shape
        self.unit = unit
        self.first = first
        self.groups = min(BLOCK_GROUPS, unit.first + unit.groups - first)
        self.step = step
        self.last = step + 1 == shape.ranks
        number = (first - unit.first) // BLOCK_GROUPS
        if shape.ranks > 1:
            self.place = unit.resident + first - unit.first
        else:
            # nothing is kept: two places in turn
            self.place = (unit.slot + number) % 2 * min(BLOCK_GROUPS, shape.query_groups())

    def tokens(self) -> Any:
        """Its queries, as a slice."""
        return nl.ds(self.first * PARTITIONS, self.groups * PARTITIONS)


def blocks_of(rank: Rank, units: tuple[Unit, ...], step: int) -> list[Block]:
    """All blocks of a core in a step."""
    found = []
    for unit in units:
        for first in range(unit.first, unit.first + unit.groups, BLOCK_GROUPS):
            found.append(Block(rank, unit, first, step))
    return found


class Loads(nl.NKIObject):
    """Two buffers of each operand, as the plan has them: one is loaded while the other is used."""

    def __init__(self, rank: Rank) -> None:
        plan, shape = rank.plan, rank.plan.shape
        self.queries = slots(2, (shape.head_dim, plan.block_columns()), rank.dtype, nl.sbuf)
        keys = (shape.head_dim, plan.block_tiles * PARTITIONS)
        self.keys = slots(2, keys, rank.dtype, nl.sbuf)
        values = (PARTITIONS, plan.block_tiles, shape.columns())
        self.values = slots(2, values, rank.dtype, nl.sbuf)

    def load_queries(self, queries: Queries, block: Block) -> Any:
        """SBUF `[D, 128 groups]`."""
        turned = self.queries.take()[:, 0 : block.groups * PARTITIONS]
        nisa.dma_copy(turned, queries.turned[block.unit.head][:, block.tokens()])
        return turned

    def load_shard(self, shards: Shards, block: Block, tiles: tuple[int, int]) -> tuple[Any, Any]:
        """Keys `[D, 128 n]` and values `[128, n, D + 1]` of the tiles `tiles[0]` to `tiles[1]`."""
        start, end = tiles
        shard, slot = block.step % len(shards.keys), block.unit.slot
        keys = self.keys.take()[:, 0 : (end - start) * PARTITIONS]
        source = shards.keys[shard][slot]
        nisa.dma_copy(keys, source[:, start * PARTITIONS : end * PARTITIONS])
        values = self.values.take()[:, 0 : end - start, :]
        nisa.dma_copy(values, shards.values[shard][slot][:, start:end, :])
        return keys, values
