"""What becomes of the sums of a block of queries: results, and what is known of their accuracy."""

from __future__ import annotations

import math
from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.ring.loads import Block
from wantrn.kernels.ring.plan import BLOCK_GROUPS
from wantrn.kernels.ring.rank import Rank
from wantrn.kernels.sbuf import PARTITIONS
from wantrn.kernels.slots import slots

# Scalar takes logarithms from 2^-64 to 2^64. Sums of exponentials below their bound are between
# this and the number of keys; times 2^40 they are all in its range.
LEAST_SUM = 2.0**-100
_LOG_SHIFT = 40


class Results(nl.NKIObject):
    """What a kernel returns.

    Attributes:
        out: shared HBM `[B, S, N, D]`.
        lse: shared HBM fp32 `[B, N, S]`, or None.
        least: shared HBM fp32 `[cores, B * N]`: the least sum of exponentials of a query of this
            rank, among those of either core; 1 where a core has no query of the head.
    """

    def __init__(self, rank: Rank, q: Any) -> None:
        shape = rank.plan.shape
        batch, queries, heads, _ = q.shape
        self.heads = heads
        self.out = nl.ndarray(q.shape, rank.dtype, buffer=nl.shared_hbm, name="ring_out")
        self.lse: Any = None
        if rank.options.lse:
            self.lse = nl.ndarray(
                (batch, heads, queries), nl.float32, buffer=nl.shared_hbm, name="ring_lse"
            )
        self.least = nl.ndarray(
            (shape.cores, shape.heads), nl.float32, buffer=nl.shared_hbm, name="ring_least_sums"
        )
        groups = min(BLOCK_GROUPS, shape.query_groups())
        self.tiles = slots(2, (PARTITIONS, groups, shape.head_dim), rank.dtype, nl.sbuf)
        self.shares = slots(2, (PARTITIONS, groups), nl.float32, nl.sbuf)
        blocks = -(-shape.query_groups() // BLOCK_GROUPS)
        self.sums = nl.ndarray((PARTITIONS, shape.heads, blocks), nl.float32, buffer=nl.sbuf)
        nisa.memset(self.sums, 1.0)

    def returned(self, measured: bool) -> Any:
        """As the kernel returns it: out, the least sums if they were measured, lse if wanted."""
        found = [self.out]
        if measured:
            found.append(self.least)
        if self.lse != None:
            found.append(self.lse)
        return found[0] if len(found) == 1 else tuple(found)


def finish_block(rank: Rank, results: Results, block: Block, sums: Any) -> None:
    """Divide the sums of a block of queries by those of their weights, and store them.

    Args:
        block: in the last step.
        sums: SBUF fp32 `[128, groups, D + 1]`.
    """
    unit, groups, head_dim = block.unit, block.groups, rank.plan.shape.head_dim
    weights = sums[:, :, head_dim]
    number = (block.first - unit.first) // BLOCK_GROUPS
    nisa.tensor_reduce(results.sums[:, unit.head, number : number + 1], nl.minimum, weights, axis=1)
    share = results.shares.take()[:, 0:groups]
    # a sum of zero is reported, and must not become a NaN
    nisa.tensor_scalar(share, weights, nl.maximum, LEAST_SUM)
    nisa.reciprocal(share, share)
    tile = results.tiles.take()[:, 0:groups, :]
    wide = share.expand_dim(2).broadcast(2, head_dim)
    # GpSimd has nothing else to do in the last step, and the others have
    nisa.tensor_tensor(tile, sums[:, :, 0:head_dim], wide, nl.multiply, engine=nisa.engine.gpsimd)
    batch, head = unit.head // results.heads, unit.head % results.heads
    store_tokens(results.out[batch, :, head, :], tile, block.first * PARTITIONS)


def store_tokens(dst: Any, src: Any, first: int) -> None:
    """Partitions to tokens, as `load_tokens` without heads; what is beyond the last is left out.

    Args:
        dst: HBM `[S, D]`.
        src: SBUF `[128, T, D]`.
        first: token of `[0, 0]`.
    """
    here = min(dst.shape[0] - first, src.shape[1] * PARTITIONS)
    full, rest = here // PARTITIONS, here % PARTITIONS
    if full > 0:
        rows = dst[first : first + full * PARTITIONS]
        turned = rows.reshape_dim(0, (full, PARTITIONS)).permute((1, 0, 2))
        nisa.dma_copy(turned, src[:, 0:full])
    if rest > 0:
        nisa.dma_copy(dst[first + full * PARTITIONS : first + here], src[0:rest, full])


def store_lse(
    rank: Rank, results: Results, block: Block, sums: Any, tops: tuple[Any, float]
) -> None:
    """`log(sum of weights)` of a block of queries, plus what the weights are relative to.

    Sums are transposed before anything else, so that the store is rows.

    Args:
        sums: SBUF fp32 `[128, groups, D + 1]`.
        tops: SBUF fp32 `[groups, 128]`, and a factor of it.
    """
    unit, first, groups = block.unit, block.first, block.groups
    head_dim = rank.plan.shape.head_dim
    safe = nl.ndarray((PARTITIONS, groups), nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(safe, sums[:, :, head_dim], nl.maximum, LEAST_SUM)
    turned = nl.ndarray((groups, PARTITIONS), nl.float32, buffer=nl.psum)
    nisa.nc_transpose(turned, safe)
    logs = nl.ndarray((groups, PARTITIONS), nl.float32, buffer=nl.sbuf)
    nisa.activation(logs, nl.log, turned, scale=2.0**_LOG_SHIFT)
    nisa.tensor_scalar(logs, logs, nl.subtract, _LOG_SHIFT * math.log(2.0))
    nisa.scalar_tensor_tensor(logs, tops[0], nl.multiply, tops[1], nl.add, logs)
    batch, head = unit.head // results.heads, unit.head % results.heads
    rows, length = results.lse[batch, head], results.lse.shape[2]
    here = min(length - first * PARTITIONS, groups * PARTITIONS)
    full, rest = here // PARTITIONS, here % PARTITIONS
    start = first * PARTITIONS
    if full > 0:
        whole = rows[start : start + full * PARTITIONS].reshape((full, PARTITIONS))
        nisa.dma_copy(whole, logs[0:full, :])
    if rest > 0:
        start += full * PARTITIONS
        last = rows[start : start + rest].reshape((1, rest))
        nisa.dma_copy(last, logs[full : full + 1, 0:rest])


def store_least(rank: Rank, results: Results) -> None:
    """The least sums of weights by head: over blocks, and over partitions by a transpose."""
    heads = rank.plan.shape.heads
    least = nl.ndarray((PARTITIONS, heads), nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(least, nl.minimum, results.sums, axis=2)
    for first in range(0, heads, PARTITIONS):
        count = min(PARTITIONS, heads - first)
        turned = nl.ndarray((count, PARTITIONS), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(turned, least[:, first : first + count])
        column = nl.ndarray((count, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(column, nl.minimum, turned, axis=1)
        dst = results.least[rank.core, first : first + count].reshape((count, 1))
        nisa.dma_copy(dst, column)
