"""From tokens to rows: products in PSUM; scales, bias, squares and rounding on their way out."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.qkv.loads import Group
from wantrn.kernels.qkv.memory import Memory
from wantrn.kernels.qkv.options import Sizes
from wantrn.kernels.qkv.slabs import Slab, depth_tiles


def multiply(
    psum: Any, tokens: Any, group: Group, slab: Slab, rows: int, memory: Memory, sizes: Sizes
) -> None:
    """Contract all of `H`, tile by tile in its order, into PSUM fp32 `[rows, slab.width]`.

    Args:
        tokens: SBUF `[TILE, depth, TILE]`.
        rows: tokens; with packed operands one more if that makes them even.
    """
    even = rows + rows % 2 if sizes.packed else rows
    at = slab.first - group.first
    weights = group.weights.view(nl.float8_e4m3fn_x4) if sizes.packed else group.weights
    left = tokens.view(nl.float8_e4m3fn_x4) if sizes.packed else tokens
    started = False
    for depth, runs in enumerate(depth_tiles(sizes.words())):
        for start, count in runs:
            partitions = slice(start, start + count)
            stationary = left[partitions, depth, 0:even]
            for lo, hi in slab.pieces():
                moving = weights[partitions, depth, at + lo : at + hi]
                neutral = memory.neutral.at(0)[partitions, :] if sizes.packed else None
                product(psum[0:even, lo:hi], stationary, moving, neutral, started)
            started = True


def product(dst: Any, stationary: Any, moving: Any, neutral: Any, accumulate: bool) -> None:
    """One matmul of bf16, or of FP8 with block scales of one: `neutral`, `[K, 512]` or None."""
    if neutral == None:
        nisa.nc_matmul(dst, stationary, moving, accumulate=accumulate)
        return
    rows, columns = dst.shape
    nisa.nc_matmul_mx(
        dst,
        stationary=stationary,
        moving=moving,
        stationary_scale=neutral[:, 0:rows],
        moving_scale=neutral[:, 0:columns],
        accumulate=accumulate,
    )


def evict(
    dst: Any, psum: Any, row_scale: Any, partial: Any, group: Group, slab: Slab, memory: Memory
) -> None:
    """Finish the values of a slab and round them once, to bf16.

    In this order, each step in fp32: times the token's scale, times the channel's scale, plus the
    bias; the squares of that are summed; times the norm's weight. The weight of the norm comes here
    and not after the norm, since here the engines wait for products; the sum does not include it.
    Every step reads one operand of PSUM and one of SBUF: two of SBUF would take twice as long.

    Args:
        dst: SBUF bf16 `[rows, heads, D]`.
        psum: `[TILE, SLAB]`.
        row_scale: SBUF fp32 `[rows, 1]`, or None.
        partial: where the sum of squares goes, SBUF fp32 `[rows, 1]`; None where it is not needed.
    """
    rows = dst.shape[0]
    values = psum[0:rows, 0 : slab.width]
    columns = slice(slab.first - group.first, slab.first - group.first + slab.width)
    factors = []
    if row_scale != None:
        nisa.activation(values, nl.copy, values, scale=row_scale)
        factors.append((group.channel_scales, nl.multiply))
    if group.bias != None:
        factors.append((group.bias, nl.add))
    squared = partial != None
    normed = slab.segment.finished_later and group.gamma != None
    for index, (vector, op) in enumerate(factors):
        last = index == len(factors) - 1 and not (normed or squared)
        row = vector[0:rows, columns]
        nisa.tensor_tensor(dst if last else values, values, row, op)
    if squared:
        squares = memory.squares.at(0)[0:rows, 0 : slab.width]
        nisa.activation_reduce(
            squares,
            nl.square,
            values,
            reduce_op=nl.add,
            reduce_res=partial,
        )
    if normed:
        nisa.tensor_tensor(dst, values, group.gamma[0:rows, columns], nl.multiply)
    elif squared or not factors:
        nisa.tensor_copy(dst, values)
