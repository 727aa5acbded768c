"""Tokens of `mlp` from HBM, contraction on partitions."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.projections.memory import Memory
from wantrn.kernels.projections.operands import Operand, as_words, fill_tail
from wantrn.kernels.projections.options import MlpSizes
from wantrn.kernels.projections.tiles import TILE, Pass, Tile
from wantrn.kernels.projections.weights import spread
from wantrn.kernels.row_mx import VALUES
from wantrn.kernels.words import words


class Tokens(nl.NKIObject):
    """The tokens of one core.

    Attributes:
        x: HBM `[B * S, H]` bf16, or as fp32 words `[B * S, H / 4 + 1]` of packed rows
        first: the first token of this core
        scales: private HBM fp32 `[1, tokens]`: the scales of packed rows side by side; or None
    """

    x: Any
    sizes: MlpSizes
    memory: Memory
    first: int
    scales: Any = None

    def gather_scales(self, tiles: list[Tile]) -> None:
        """Put the scales of packed rows side by side.

        Tokens are along the free axis, so every partition needs the scales of all; read from the
        rows themselves that would be a transfer of four bytes for each.
        """
        if not self.sizes.packed:
            return
        count = tiles[-1].first + tiles[-1].rows - self.first
        column = self.sizes.hidden // VALUES
        self.scales = nl.ndarray((1, count), nl.float32, buffer=nl.private_hbm)
        source = self.x[self.first : self.first + count, column : column + 1]
        nisa.dma_copy(self.scales.reshape((count, 1)), source)

    def load(self, tokens: Pass) -> tuple[Operand, Any]:
        """The tokens of a pass, `[TILE, depth, tokens]`, and their scales in every partition, fp32
        `[TILE, tokens]` or None.

        Four neighbouring codes of a packed row are one word of 32 bits, and so is the element of
        the MX matmul that they become.
        """
        count = words(self.sizes.hidden, self.sizes.packed)
        depth = -(-count // TILE)
        slot = self.memory.tokens.at(0)[:, 0 : depth * tokens.even]
        slot = slot.reshape_dim(1, (depth, tokens.even))
        if tokens.even > tokens.count:
            nisa.memset(slot[:, :, tokens.count : tokens.even], 0.0)
        for tile in tokens.tiles:
            at = tile.first - tokens.first
            part = slot[:, :, at : at + tile.rows]
            self._load_tile(part, self.x[tile.first : tile.first + tile.rows, 0:count])
        if self.sizes.packed:
            fill_tail(slot, None, count)
        operand = Operand(words=count, data=as_words(slot, self.sizes.packed))
        return operand, self._load_scales(tokens)

    def _load_tile(self, dst: Any, rows: Any) -> None:
        count = rows.shape[1]
        whole = count // TILE
        if whole:
            source = rows[:, 0 : whole * TILE].reshape_dim(1, (whole, TILE))
            nisa.dma_transpose(dst[:, 0:whole, :], source)
        rest = count - whole * TILE
        if rest:
            nisa.dma_transpose(dst[0:rest, whole, :], rows[:, whole * TILE : count])

    def _load_scales(self, tokens: Pass) -> Any:
        if self.scales == None:
            return None
        found = self.memory.row_scales.at(0)[:, 0 : tokens.even]
        if tokens.even > tokens.count:
            nisa.memset(found[:, tokens.count : tokens.even], 0.0)
        at = tokens.first - self.first
        spread(found[:, 0 : tokens.count], self.scales[:, at : at + tokens.count])
        return found
