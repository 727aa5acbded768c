"""Operands of a matmul in SBUF, and the contraction of two of them."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.projections.tiles import TILE, depth_tiles, tail_of
from wantrn.kernels.psum import BANK

# a byte `e` stands for `2 ** (e - 127)`; see `wantrn.kernels.row_mx`
NEUTRAL = 127


class Operand(nl.NKIObject):
    """Contraction on partitions.

    Attributes:
        words: rows that are contracted
        data: SBUF `[TILE, ceil(words / TILE), n]`, bf16 or float8_e4m3fn_x4
        scales: SBUF uint8 as `data`, block scales of MX as `quantize_mx` gives them. None for bf16,
            and where all are neutral.
    """

    words: int
    data: Any
    scales: Any = None


def contract(
    psum: Any, left: Operand, rows: slice, right: Operand, columns: slice, neutral: Any
) -> None:
    """`left[:, rows].T @ right[:, columns]`, tile by tile of the contraction in its order.

    Args:
        psum: fp32 `[rows, columns]`, overwritten.
        neutral: SBUF uint8 `[TILE, BANK]` of scales that stand for 1; None with bf16.
    """
    for depth, (_, count) in enumerate(depth_tiles(left.words, neutral != None)):
        stationary = left.data[0:count, depth, rows]
        for at in range(columns.start, columns.stop, BANK):
            part = slice(at, min(at + BANK, columns.stop))
            dst = psum[:, at - columns.start : part.stop - columns.start]
            moving = right.data[0:count, depth, part]
            if neutral == None:
                nisa.nc_matmul(dst, stationary, moving, accumulate=depth > 0)
            else:
                nisa.nc_matmul_mx(
                    dst,
                    stationary=stationary,
                    moving=moving,
                    stationary_scale=_scales(left, stationary, depth, rows, neutral),
                    moving_scale=_scales(right, moving, depth, part, neutral),
                    accumulate=depth > 0,
                )


def _scales(operand: Operand, part: Any, depth: int, columns: slice, neutral: Any) -> Any:
    """Block scales of `part`, `columns` of an operand."""
    if operand.scales == None:
        return neutral[0 : part.shape[0], 0 : part.shape[1]]
    return operand.scales[0 : part.shape[0], depth, columns]


def fill_tail(data: Any, scales: Any, words: int) -> None:
    """Zeros in the partitions of the last tile that no word comes to, where there are such.

    Args:
        data: SBUF `[TILE, depth, n]` of FP8 words, or fp32 for them.
        scales: block scales as `data`, or None.
    """
    tail = tail_of(words, True)
    if tail == None:
        return
    last = words // TILE
    nisa.memset(data.view(nl.float32)[tail, last, :], 0.0, engine=nisa.engine.gpsimd)
    if scales != None:
        nisa.memset(scales[tail, last, :], NEUTRAL, engine=nisa.engine.gpsimd)


def set_neutral(neutral: Any) -> None:
    """Fill a tile of block scales, if there is one, with such that stand for 1."""
    if neutral != None:
        nisa.memset(neutral, NEUTRAL)


def as_words(tensor: Any, packed: bool) -> Any:
    """FP8 codes as elements of four; bf16 as they are."""
    return tensor.view(nl.float8_e4m3fn_x4) if packed else tensor
