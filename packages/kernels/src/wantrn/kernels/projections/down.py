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
        scales, bias: HBM `[1, H]`, or None
        held_scales, held_bias: SBUF `[TILE, H]`, the same in every partition
    """

    out: Any
    memory: Memory
    scales: Any = None
    bias: Any = None
    held_scales: Any = None
    held_bias: Any = None

    def load(self, block: Block) -> None:
        """Load the vectors along the columns of a block."""
        columns = slice(block.first, block.first + block.width)
        if self.scales != None:
            self.held_scales = self.memory.channel_scales.at(0)
            spread(self.held_scales[:, columns], self.scales[:, columns])
        if self.bias != None:
            self.held_bias = self.memory.bias.at(0)
            spread(self.held_bias[:, columns], self.bias[:, columns])

    def project(self, operand: Operand, weights: Operand, block: Block, tokens: Pass) -> None:
        """The columns of a block for all tokens of a pass.

        Args:
            operand: `[TILE, depth, tokens]`.
        """
        packed = self.scales != None
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
        if self.scales != None:
            scales = self.held_scales[0:rows, part]
            if self.bias == None:
                nisa.tensor_tensor(dst, values, scales, nl.multiply)
                return
            by_gpsimd = self.memory.groups.taken % 3 != 0
            scaled = self.memory.work.take()[0:rows, 0:columns] if by_gpsimd else values
            nisa.tensor_tensor(scaled, values, scales, nl.multiply)
            engine = nisa.engine.gpsimd if by_gpsimd else nisa.engine.vector
            nisa.tensor_tensor(dst, scaled, self.held_bias[0:rows, part], nl.add, engine=engine)
        elif self.bias != None:
            nisa.tensor_tensor(dst, values, self.held_bias[0:rows, part], nl.add)
        else:
            nisa.tensor_copy(dst, values, engine=nisa.engine.scalar)
