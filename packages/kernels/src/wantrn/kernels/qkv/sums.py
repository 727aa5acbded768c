"""Sums of squares of each token over all heads, and the factors that the norm makes of them."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import ncc, nisa, nl
from wantrn.kernels.qkv.memory import Memory
from wantrn.kernels.qkv.options import Options
from wantrn.kernels.qkv.plan import Plan
from wantrn.kernels.qkv.slabs import (
    Segment,
    Slab,
    TokenTile,
    later_segments,
    summed_segments,
)


class Sums(nl.NKIObject):
    """The columns of one core: `[TILE, .]`, tokens of a tile on partitions."""

    plan: Plan
    options: Options
    memory: Memory

    def begin(self) -> None:
        """Zeros where nothing will be summed: behind the last token, and what only fills up a
        collective. Without a norm, every factor is one."""
        factors = self.memory.factors.at(0)
        if self.plan.sizes.norm:
            nisa.memset(self.memory.partials.at(0), 0.0)
            nisa.memset(self.memory.sums.at(0), 0.0)
        else:
            half = factors.shape[1] // 2
            nisa.memset(factors[:, 0:half], 1.0)
            nisa.memset(factors[:, half : 2 * half], -1.0)

    def partials(self, index: int, tile: int, count: int) -> Any:
        """Of segment `index` and `count` tiles: `[TILE, count, slabs]`."""
        segments = summed_segments(self.plan.sizes)
        each = segments[index].partials
        start = tile * each
        for segment in segments[0:index]:
            start += self.plan.tiles * segment.partials
        found = self.memory.partials.at(0)[:, start : start + count * each]
        return found.reshape_dim(1, (count, each))

    def partial(self, slab: Slab, tile: TokenTile) -> Any:
        """Where the sum of a slab's squares goes: fp32 `[rows, 1]`; None if nobody needs it."""
        # segments that are summed are the first ones, so their numbers are their indices
        if slab.segment.number >= len(summed_segments(self.plan.sizes)):
            return None
        found = self.partials(slab.segment.number, tile.number, 1)
        return found[0 : tile.rows, 0, slab.number : slab.number + 1]

    def column(self, index: int, tile: int) -> int:
        """The column of segment `index` and a tile, of sums and factors."""
        return index * self.plan.tiles + tile

    def add_up(self, tile: int, count: int) -> None:
        """Sum the slabs of `count` tiles."""
        for index in range(len(later_segments(self.plan.sizes))):
            at = self.column(index, tile)
            total = self.memory.sums.at(0)[:, at : at + count]
            nisa.tensor_reduce(total, nl.add, self.partials(index, tile, count), axis=2)

    def totals(self, tile: TokenTile) -> Any:
        """The sums of a tile's tokens, of this rank alone: SBUF fp32 `[rows, segments]`."""
        found = self.memory.totals.take()[0 : tile.rows, :]
        for index in range(found.shape[1]):
            parts = self.partials(index, tile.number, 1)[0 : tile.rows, :, :]
            nisa.tensor_reduce(found[:, index : index + 1], nl.add, parts, axis=2)
        return found

    def exchange(self) -> None:
        """Sum over the ranks: one collective for all tokens, since its latency does not depend on
        how many there are."""
        ncc.all_reduce(
            srcs=[self.memory.sums.at(0)],
            dsts=[self.memory.all_sums.at(0)],
            replica_group=ncc.ReplicaGroup(self.options.replica_groups),
            op=nl.add,
        )

    def make_factors(self, tile: int, count: int) -> None:
        """`rsqrt(sum / columns of all ranks + eps)` of `count` tiles, and its negative."""
        sizes = self.plan.sizes
        totals = self.memory.all_sums if sizes.ranks > 1 else self.memory.sums
        factors = self.memory.factors.at(0)
        half = factors.shape[1] // 2
        for index, segment in enumerate(later_segments(sizes)):
            at = self.column(index, tile)
            made = factors[:, at : at + count]
            share = 1.0 / (segment.width * sizes.ranks)
            source = totals.at(0)[:, at : at + count]
            nisa.activation(made, nl.rsqrt, source, bias=self.options.eps, scale=share)
            if sizes.rope:
                negative = factors[:, half + at : half + at + count]
                nisa.tensor_scalar(negative, made, nl.multiply, -1.0)

    def factor(self, segment: Segment, tile: TokenTile, negative: bool) -> Any:
        """The factor of a tile's tokens for a segment, or its negative: fp32 `[rows, 1]`."""
        factors = self.memory.factors.at(0)
        at = self.column(segment.number, tile.number)
        if negative:
            at += factors.shape[1] // 2
        return factors[0 : tile.rows, at : at + 1]
