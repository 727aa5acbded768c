"""K and V straight into caches: rows of all heads of a token, one behind the other."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.qkv.memory import Memory
from wantrn.kernels.qkv.slabs import Block, Run, Segment, runs_of


class Caches(nl.NKIObject):
    """Where K and V of one core go.

    Attributes:
        k, v: HBM bf16 `[B, rows, N_kv * D]`, or with slots `[blocks, rows of a block, N_kv * D]`
        starts: the row of each sequence's first token; empty if that is row 0
        slots: HBM int32 `[B * S, 1]`: for each token, its row among those of all blocks; or None
        tokens: `S`
    """

    k: Any
    v: Any
    starts: tuple[int, ...]
    slots: Any
    tokens: int
    memory: Memory

    def store(self, segment: Segment, column: int, block: Block, rows: Any) -> None:
        """A block's rows `[TILE, heads, stride, D]` of a segment, columns from `column` on."""
        cache = self.k if segment.number == 1 else self.v
        if self.slots != None:
            self._scatter(cache, column, block, rows)
            return
        done = 0
        while done < block.tokens:
            # tokens of all sequences follow one another; rows of their caches do not
            sequence = (block.first + done) // self.tokens
            position = (block.first + done) % self.tokens
            count = min(block.tokens - done, self.tokens - position)
            start = self.starts[sequence] if self.starts != () else 0
            for run in runs_of(block, done, count):
                row = start + position + run.first - done
                _store_run(cache[sequence, :, :], row, column, run, rows)
            done += count

    def _scatter(self, cache: Any, column: int, block: Block, rows: Any) -> None:
        """Each token to its slot, one tile after the other."""
        heads, d = rows.shape[1], rows.shape[3]
        all_rows = cache.flatten_dims(0, 1)
        width = all_rows.shape[1]
        for index in range(block.stride):
            count = -(-(block.tokens - index) // block.stride)
            first = block.first + index
            tokens = slice(first, first + (count - 1) * block.stride + 1, block.stride)
            chosen = self.memory.row_slots.take()[0:count, :]
            nisa.dma_copy(chosen, self.slots[tokens, :])
            dst = all_rows.ap(
                [[width, count], [d, heads], [1, d]], offset=column, vector_offset=chosen
            )
            nisa.dma_copy(dst, rows[0:count, :, index, :])


def _store_run(cache: Any, row: int, column: int, run: Run, rows: Any) -> None:
    """A run of tokens to the rows of a sequence's cache `[rows, N_kv * D]` from `row` on."""
    heads, d = rows.shape[1], rows.shape[3]
    partitions = slice(run.partition, run.partition + run.partitions)
    src = rows[partitions, :, run.index : run.index + run.width, :]
    dst = cache[row : row + run.partitions * run.width, column : column + heads * d]
    dst = dst.reshape_dim(0, (run.partitions, run.width)).reshape_dim(2, (heads, d))
    nisa.dma_copy(dst.permute((0, 2, 1, 3)), src)
