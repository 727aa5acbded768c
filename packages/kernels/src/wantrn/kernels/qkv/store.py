"""Where rows go: to the result and to caches, or, until they are finished, to wait in SBUF or in
HBM."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.qkv.caches import Caches
from wantrn.kernels.qkv.loads import Group
from wantrn.kernels.qkv.memory import Memory
from wantrn.kernels.qkv.plan import Plan
from wantrn.kernels.qkv.slabs import (
    TILE,
    Block,
    Run,
    TokenTile,
    later_segments,
    runs_of,
    segments_of,
)


class Output(nl.NKIObject):
    """The rows of one core. Those of a block lie in SBUF as `[TILE, heads, stride, D]`.

    Attributes:
        out: the result in HBM, `[B * S, I]`, or `[heads, B * S, D]`
        caches: where K and V go instead; None without any
        squared_sums: HBM fp32 `[B * S, segments]`; None where nobody asks for them
        later_heads: heads that are finished later, the first ones
        waiting: private HBM `[TILE * tiles, later_heads, D]`: rows that are still to be finished;
            None where they wait in SBUF, or there are none
        staged: the rows of the block that is under way: of the group, and of what is finished
    """

    out: Any
    plan: Plan
    memory: Memory
    later_heads: int
    caches: Caches | None = None
    squared_sums: Any = None
    waiting: Any = None
    staged: Any = None
    staged_later: Any = None

    def begin_row(self, group: Group, tile: TokenTile) -> Any:
        """Where the rows of a group are put together: SBUF bf16 `[rows, heads, D]`."""
        d = self.plan.sizes.head_dim
        heads = group.width // d
        if self.is_part_of_the_result(group):
            if tile.index == 0:
                self.staged = self._shaped(self.memory.out.take(), heads, tile.block.stride)
            return self.staged[0 : tile.rows, :, tile.index, :]
        if self.plan.choice.held:
            held = self._shaped(
                self.memory.rows.at(tile.block.number), self.later_heads, tile.block.stride
            )
            first = group.first // d
            return held[0 : tile.rows, first : first + heads, tile.index, :]
        return self._shaped(self.memory.out.take(), heads, 1)[0 : tile.rows, :, 0, :]

    def end_row(self, group: Group, tile: TokenTile, row: Any) -> None:
        """Send the rows of a group on their way."""
        if self.is_part_of_the_result(group):
            if tile.is_last():
                self._store(group.first, tile.block, self.staged)
        elif not self.plan.choice.held:
            first = group.first // self.plan.sizes.head_dim
            heads = slice(first, first + row.shape[1])
            nisa.dma_copy(self._waiting(tile)[:, heads, :], row)

    def read_back(self, tile: TokenTile) -> Any:
        """The rows to finish: SBUF bf16 `[rows, later_heads, D]`."""
        rows = self.memory.rows
        if self.plan.choice.held:
            held = self._shaped(rows.at(tile.block.number), self.later_heads, tile.block.stride)
            return held[0 : tile.rows, :, tile.index, :]
        if tile.index == 0:
            self.staged_later = self._shaped(rows.take(), self.later_heads, tile.block.stride)
        row = self.staged_later[0 : tile.rows, :, tile.index, :]
        nisa.dma_copy(row, self._waiting(tile))
        return row

    def store_finished(self, tile: TokenTile) -> None:
        """Store the finished rows of a block when its last tile is finished."""
        if not tile.is_last():
            return
        found = self.staged_later
        if self.plan.choice.held:
            slot = self.memory.rows.at(tile.block.number)
            found = self._shaped(slot, self.later_heads, tile.block.stride)
        self._store(0, tile.block, found)

    def store_sums(self, tile: TokenTile, totals: Any) -> None:
        """Store the sums of squares of a tile's tokens, `[rows, segments]`."""
        nisa.dma_copy(self.squared_sums[tile.tokens(), :], totals)

    def is_part_of_the_result(self, group: Group) -> bool:
        """Whether nothing is left to do with the group's rows."""
        return group.number >= self.plan.later_groups

    def _shaped(self, slot: Any, heads: int, stride: int) -> Any:
        d = self.plan.sizes.head_dim
        return slot[:, 0 : heads * stride * d].reshape_dim(1, (heads, stride, d))

    def _waiting(self, tile: TokenTile) -> Any:
        start = tile.number * TILE
        return self.waiting[start : start + tile.rows, :, :]

    def _store(self, first: int, block: Block, rows: Any) -> None:
        """A block's rows `[TILE, heads, stride, D]`, columns from `first` on, to where they go."""
        if self.caches == None:
            self._store_columns(first, block, rows)
            return
        d = self.plan.sizes.head_dim
        last = first + rows.shape[1] * d
        for segment in segments_of(self.plan.sizes):
            lo, hi = max(first, segment.first), min(last, segment.first + segment.width)
            if lo >= hi:
                continue
            part = rows[:, (lo - first) // d : (hi - first) // d, :, :]
            if segment.number == 0:
                self._store_columns(lo, block, part)
            else:
                self.caches.store(segment, lo - segment.first, block, part)

    def _store_columns(self, first: int, block: Block, rows: Any) -> None:
        """A block's rows to the columns of the result from `first` on."""
        for run in runs_of(block, 0, block.tokens):
            partitions = slice(run.partition, run.partition + run.partitions)
            part = rows[partitions, :, run.index : run.index + run.width, :]
            self._store_run(first, block.first + run.first, run, part)

    def _store_run(self, first: int, token: int, run: Run, rows: Any) -> None:
        """`[P, heads, width, D]`, partition `p` with tokens `token + p * width` and following."""
        count, heads, _, d = rows.shape
        tokens = slice(token, token + count * run.width)
        if self.plan.sizes.heads_first:
            dst = self.out[first // d : first // d + heads, tokens, :]
            dst = dst.reshape_dim(1, (count, run.width)).permute((1, 0, 2, 3))
        else:
            dst = self.out[tokens, first : first + heads * d]
            dst = dst.reshape_dim(0, (count, run.width)).reshape_dim(2, (heads, d))
            dst = dst.permute((0, 2, 1, 3))
        nisa.dma_copy(dst, rows)


def later_heads(plan: Plan) -> int:
    """Heads that are finished later."""
    widths = [segment.width for segment in later_segments(plan.sizes)]
    return sum(widths) // plan.sizes.head_dim
