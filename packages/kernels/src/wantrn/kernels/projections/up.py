"""The first projection of `mlp` and its GELU: channels on partitions, tokens along them.

That is how the second projection contracts them, so nothing is transposed in between, and scale and
bias of a channel are numbers of a partition, which the activation applies on its way.
"""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.projections.memory import Memory
from wantrn.kernels.projections.operands import Operand, contract, fill_tail
from wantrn.kernels.projections.options import MlpSizes
from wantrn.kernels.projections.tiles import GROUP, TILE, Pass, cut
from wantrn.kernels.projections.weights import Block
from wantrn.kernels.row_mx import VALUES
from wantrn.kernels.words import words


class Channels(nl.NKIObject):
    """What is between the projections, on one core.

    Attributes:
        scales, bias: SBUF `[TILE, depth, per]` with `per` channels side by side in a partition: 4
            with FP8, otherwise 1; channel `(TILE * t + p) * per + q` is `[p, t, q]`. Or None.
    """

    sizes: MlpSizes
    memory: Memory
    scales: Any = None
    bias: Any = None

    def per(self) -> int:
        """Channels side by side."""
        return VALUES if self.sizes.packed else 1

    def depth(self) -> int:
        """Tiles of the second contraction."""
        return -(-self.sizes.inner // (TILE * self.per()))

    def load(self, scales: Any, bias: Any) -> None:
        """Load the vectors along the channels, HBM `[1, F]` or None."""
        if scales != None:
            self.scales = self._column(self.memory.up_scales.at(0), scales)
        if bias != None:
            self.bias = self._column(self.memory.up_bias.at(0), bias)

    def _column(self, slot: Any, vector: Any) -> Any:
        per = self.per()
        dst = slot[:, 0 : self.depth() * per].reshape_dim(1, (self.depth(), per))
        unit = TILE * per
        whole = self.sizes.inner // unit
        if whole:
            part = vector[0, 0 : whole * unit].reshape_dim(0, (whole, TILE, per))
            nisa.dma_copy(dst[:, 0:whole, :], part.permute((1, 0, 2)))
        rest = (self.sizes.inner - whole * unit) // per
        if rest:
            part = vector[0, whole * unit : self.sizes.inner].reshape_dim(0, (rest, per))
            nisa.dma_copy(dst[0:rest, whole, :], part)
        return dst

    def operand(self, tokens: Pass) -> Operand:
        """What the second projection contracts, still to be computed: `[TILE, depth, tokens]`."""
        count = words(self.sizes.inner, self.sizes.packed)
        if not self.sizes.packed:
            return Operand(words=count, data=self._shaped(self.memory.inner, tokens))
        codes = self._shaped(self.memory.codes, tokens)
        scales = self._shaped(self.memory.code_scales, tokens)
        fill_tail(codes, scales, count)
        return Operand(words=count, data=codes, scales=scales)

    def _shaped(self, slots: Any, tokens: Pass) -> Any:
        shape = (self.depth(), tokens.even)
        return slots.at(0)[:, 0 : shape[0] * shape[1]].reshape_dim(1, shape)

    def project(
        self, found: Operand, x: tuple[Operand, Any], weights: Operand, block: Block, tokens: Pass
    ) -> None:
        """The channels of a block for all tokens of a pass.

        Args:
            found: from `operand`, where they go.
            x: `[TILE, depth, tokens]`, and the scales of its rows, SBUF fp32 `[TILE, tokens]`, or
                None.
        """
        unit = TILE * self.per()
        for at, stop in cut(block.width, unit):
            rows = (stop - at) // self.per()
            tile = (block.first + at) // unit
            for lo, hi in cut(tokens.even, GROUP):
                if not self.sizes.packed:
                    dst = found.data[0:rows, tile, lo:hi]
                    self._tile(dst, x, weights, (at, tile, 0), (lo, hi))
                    continue
                staged = self.memory.staged.take()[0:rows, 0 : VALUES * (hi - lo)]
                values = staged.reshape_dim(1, (hi - lo, VALUES))
                for q in range(VALUES):
                    dst = values[:, :, q]
                    self._tile(dst, x, weights, (at, tile, q), (lo, hi))
                codes = found.data[0:rows, tile, lo:hi]
                nisa.quantize_mx(codes, staged, found.scales[:, tile, lo:hi])

    def _tile(
        self,
        dst: Any,
        x: tuple[Operand, Any],
        weights: Operand,
        place: tuple[int, int, int],
        part: tuple[int, int],
    ) -> None:
        """`gelu((products * row scale) * channel scale + bias)`, rounded to bf16.

        Args:
            dst: SBUF bf16 `[rows, tokens]`.
            place: the first column in the block, the tile, and which of `per` channels.
            part: the tokens, from and to.
        """
        at, tile, q = place
        operand, row_scales = x
        rows, per = dst.shape[0], self.per()
        psum = self.memory.group()[0:rows, 0 : part[1] - part[0]]
        columns = slice(at + q, at + q + (rows - 1) * per + 1, per)
        contract(
            psum, weights, columns, operand, slice(part[0], part[1]), self.memory.neutral_scales()
        )
        scale: Any = 1.0
        if row_scales != None:
            nisa.tensor_tensor(psum, psum, row_scales[0:rows, part[0] : part[1]], nl.multiply)
            scale = self.scales[0:rows, tile, q : q + 1]
        bias = None if self.bias == None else self.bias[0:rows, tile, q : q + 1]
        nisa.activation(dst, nl.gelu_apprx_tanh, psum, bias=bias, scale=scale)
