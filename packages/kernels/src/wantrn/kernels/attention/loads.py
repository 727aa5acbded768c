"""Q, K and V from HBM, in the layouts that the two matmuls contract over."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.plan import LARGE_TILE, V_TILE
from wantrn.kernels.attention.spans import Section
from wantrn.kernels.nki import nisa


def load_rows_as_columns(dst: Any, src: Any, start: int, count: int, transposed: bool) -> None:
    """`dst[D, count]` from rows of `src` `[S, D]`, or from columns of `[D, S]`.

    `transposed`: `src` is `[S, D]`.
    """
    if transposed:
        nisa.dma_transpose(dst, src[start : start + count, :])
    else:
        nisa.dma_copy(dst, src[:, start : start + count])


def load_keys(dst: Any, src: Any, section: Section, transposed: bool) -> None:
    """The keys of a section into `dst` `[D, section]`, head dimension on partitions."""
    for at in range(0, section.length, LARGE_TILE):
        count = min(LARGE_TILE, section.length - at)
        part = dst[:, at : at + count]
        load_rows_as_columns(part, src, section.start + at, count, transposed)


def load_values(dst: Any, src: Any, section: Section) -> None:
    """The values of a section into `dst` `[V_TILE, blocks, D]`, keys on partitions."""
    d = src.shape[-1]
    for at in range(0, section.length, LARGE_TILE):
        count = min(LARGE_TILE, section.length - at)
        whole = count // V_TILE
        start, block = section.start + at, at // V_TILE
        if whole:
            rows = src[start : start + whole * V_TILE, :].reshape_dim(0, (whole, V_TILE))
            nisa.dma_copy(dst[:, block : block + whole, :], rows.permute((1, 0, 2)))
        rest = count - whole * V_TILE
        if rest:
            last = dst[0:rest, block + whole : block + whole + 1, :].reshape((rest, d))
            nisa.dma_copy(last, src[start + whole * V_TILE : start + count, :])
