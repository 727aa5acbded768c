"""The projection to the result: tokens on partitions, columns along them."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.projections.memory import Memory
from wantrn.kernels.projections.operands import Operand, contract
from wantrn.kernels.projections.tiles import GROUP, Pass, cut
from wantrn.kernels.projections.weights import Block, spread


class Rows(nl.NKIObject):
    """The result of one core and what is applied to all its rows.

    Attributes:
        out: HBM `[B, S, H]`
        channel_scales: SBUF fp32 `[TILE, H]`, or None
        bias: SBUF `[TILE, H]`, or None
    """

    out: Any
    memory: Memory
    channel_scales: Any = None
    bias: Any = None

    def load(self, scales: Any, bias: Any) -> None:
        """Load the vectors along the columns, HBM `[1, H]` or None."""
        width = self.out.shape[2]
        if scales != None:
            self.channel_scales = self.memory.channel_scales.at(0)[:, 0:width]
            spread(self.channel_scales, scales)
        if bias != None:
            self.bias = self.memory.bias.at(0)[:, 0:width]
            spread(self.bias, bias)

    def project(self, operand: Operand, weights: Operand, block: Block, tokens: Pass) -> None:
        """The columns of a block for all tokens of a pass.

        Args:
            operand: `[TILE, depth, tokens]`.
        """
        packed = self.channel_scales != None
        for tile in tokens.tiles:
            at = tile.first - tokens.first
            even = tile.rows + tile.rows % 2 if packed else tile.rows
            row = self.memory.out.take()[0 : tile.rows, 0 : block.width]
            for lo, hi in cut(block.width, GROUP):
                psum = self.memory.group()
                contract(
                    psum[0:even, 0 : hi - lo],
                    operand,
                    slice(at, at + even),
                    weights,
                    slice(lo, hi),
                    self.memory.neutral_scales(),
                )
                self._evict(row[:, lo:hi], psum[0 : tile.rows, 0 : hi - lo], block.first + lo)
            dst = self.out[tile.batch, tile.first : tile.first + tile.rows, :]
            nisa.dma_copy(dst[:, block.first : block.first + block.width], row)

    def _evict(self, dst: Any, values: Any, first: int) -> None:
        """`values * channel scale + bias`, each step in fp32, rounded once.

        Both steps by Vector would take longer than the products. GpSimd has nothing else to do, and
        adds two of three biases, from SBUF, since it does not reach PSUM.

        Args:
            dst: SBUF bf16 `[rows, n]`.
            values: PSUM fp32 `[rows, n]`.
            first: column of the first value.
        """
        rows, columns = dst.shape
        part = slice(first, first + columns)
        if self.channel_scales != None:
            scales = self.channel_scales[0:rows, part]
            if self.bias == None:
                nisa.tensor_tensor(dst, values, scales, nl.multiply)
                return
            by_gpsimd = self.memory.groups % 3 != 0
            scaled = self.memory.work.take()[0:rows, 0:columns] if by_gpsimd else values
            nisa.tensor_tensor(scaled, values, scales, nl.multiply)
            engine = nisa.engine.gpsimd if by_gpsimd else nisa.engine.vector
            nisa.tensor_tensor(dst, scaled, self.bias[0:rows, part], nl.add, engine=engine)
        elif self.bias != None:
            nisa.tensor_tensor(dst, values, self.bias[0:rows, part], nl.add)
        else:
            nisa.tensor_copy(dst, values, engine=nisa.engine.scalar)
