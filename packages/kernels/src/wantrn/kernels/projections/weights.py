"""Weights in blocks of columns, from HBM to SBUF in the order of their use."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.projections.operands import Operand, as_words, fill_tail
from wantrn.kernels.projections.tiles import TILE
from wantrn.kernels.row_mx import VALUES
from wantrn.kernels.slots import Slots


class Block(nl.NKIObject):
    """Columns `first:first + width` of a weight.

    Attributes:
        source: HBM `[words, I]` bf16, or `[words, I, 4]` FP8
        words: rows that are contracted
    """

    source: Any
    words: int
    first: int
    width: int


class Stream(nl.NKIObject):
    """The blocks of all passes. Where there are as many slots as blocks, each is loaded once.

    Attributes:
        blocks: of one pass, in the order of their use
        passes: how many
        slots: SBUF `[TILE, n]` of the weight's dtype
        packed: FP8
        loaded: how many loads there have been
    """

    blocks: list[Block]
    passes: int
    slots: Slots
    packed: bool
    loaded: int = 0

    def resident(self) -> bool:
        """Whether all blocks stay."""
        return len(self.slots.tensors) == len(self.blocks)

    def use(self, number: int) -> Operand:
        """Use `number` of a block, counted over all passes: `[TILE, depth, width]`.

        What is used next is loaded behind it if there is a slot: the uses before must have been
        issued.
        """
        self.load_upto(number + min(len(self.slots.tensors), 2))
        block = self.blocks[number % len(self.blocks)]
        return Operand(words=block.words, data=as_words(self._shaped(number, block), self.packed))

    def load_upto(self, count: int) -> None:
        """Load blocks, in the order of their use, up to number `count` of all uses."""
        uses = len(self.blocks) * (1 if self.resident() else self.passes)
        while self.loaded < min(count, uses):
            self._load(self.loaded)
            self.loaded += 1

    def _shaped(self, number: int, block: Block) -> Any:
        depth = -(-block.words // TILE)
        row = block.width * (VALUES if self.packed else 1)
        return self.slots.at(number)[:, 0 : depth * row].reshape_dim(1, (depth, row))

    def _load(self, number: int) -> None:
        """Codes of FP8 are moved as bytes; four of them are an element of the product."""
        block = self.blocks[number % len(self.blocks)]
        each = VALUES if self.packed else 1
        source = block.source.flatten_dims(1, 2) if self.packed else block.source
        columns = slice(block.first * each, (block.first + block.width) * each)
        dst = self._shaped(number, block)
        for depth, at in enumerate(range(0, block.words, TILE)):
            rows = min(TILE, block.words - at)
            nisa.dma_copy(dst[0:rows, depth, :], source[at : at + rows, columns])
        if self.packed:
            fill_tail(dst, None, block.words)


def blocks_of(source: Any, depth_words: int, width: int) -> list[Block]:
    """A weight cut into blocks of `width` columns, and what is left."""
    return [
        Block(
            source=source,
            words=depth_words,
            first=at,
            width=min(width, source.shape[1] - at),
        )
        for at in range(0, source.shape[1], width)
    ]


def spread(dst: Any, row: Any) -> None:
    """A row `[1, n]` of HBM into every partition of `[TILE, n]`."""
    nisa.dma_copy(dst, row.broadcast(0, TILE))
