"""Where rows go: to the result, or, until they are finished, to wait in SBUF or in HBM."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.qkv.loads import Group
from wantrn.kernels.qkv.memory import Memory
from wantrn.kernels.qkv.plan import Plan, later_segments
from wantrn.kernels.qkv.slabs import TokenTile


class Output(nl.NKIObject):
    """The rows of one core.

    Attributes:
        out: the result in HBM, `[B * S, I]`, or `[heads, B * S, D]`
        origin: the first token of this core
        waiting: private HBM `[tokens, columns]`: rows that are still to be finished; None where
            they wait in SBUF, or there are none
    """

    out: Any
    plan: Plan
    memory: Memory
    origin: int
    waiting: Any = None

    def finished_later(self, group: Group) -> bool:
        """Whether the group's rows are no part of the result yet."""
        return group.number < self.plan.later_groups

    def begin_row(self, group: Group, tile: TokenTile) -> Any:
        """Where the rows of a group are put together: SBUF bf16 `[rows, group.width]`."""
        if self.finished_later(group) and self.plan.choice.held:
            row = self.memory.rows.at(tile.number)
            return row[0 : tile.rows, group.first : group.first + group.width]
        return self.memory.out.take()[0 : tile.rows, 0 : group.width]

    def end_row(self, group: Group, tile: TokenTile, row: Any) -> None:
        """Send the rows of a group on their way."""
        if not self.finished_later(group):
            self.store(group.first, tile, row)
        elif not self.plan.choice.held:
            nisa.dma_copy(self.waiting_part(tile, group.first, group.width), row)

    def waiting_part(self, tile: TokenTile, first: int, width: int) -> Any:
        """Columns of a tile in the waiting rows."""
        start = tile.first - self.origin
        return self.waiting[start : start + tile.rows, first : first + width]

    def read_back(self, tile: TokenTile) -> Any:
        """The rows to finish: SBUF bf16 `[rows, columns]`."""
        if self.plan.choice.held:
            return self.memory.rows.at(tile.number)[0 : tile.rows, :]
        columns = sum([segment.width for segment in later_segments(self.plan.sizes)])
        row = self.memory.rows.take()[0 : tile.rows, 0:columns]
        nisa.dma_copy(row, self.waiting_part(tile, 0, columns))
        return row

    def store_finished(self, tile: TokenTile, row: Any) -> None:
        """Finished rows, which are the first columns of the result."""
        self.store(0, tile, row)

    def store(self, first: int, tile: TokenTile, row: Any) -> None:
        """Rows `[rows, n]` to columns `first:first + n` of the result, by one transfer."""
        tokens = slice(tile.first, tile.first + tile.rows)
        if not self.plan.sizes.heads_first:
            nisa.dma_copy(self.out[tokens, first : first + row.shape[1]], row)
            return
        d = self.plan.sizes.head_dim
        heads = row.shape[1] // d
        dst = self.out[first // d : first // d + heads, tokens, :]
        nisa.dma_copy(dst.permute((1, 0, 2)), row.reshape_dim(1, (heads, d)))
