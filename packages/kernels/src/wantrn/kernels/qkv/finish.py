"""Norm and rotation, when the rows of Q and K are complete.

A token's factor multiplies the small tables of cosines and sines instead of the wide rows, and the
tables stand in PSUM, where an engine reads them beside a row in SBUF at no extra time. Four wide
operations rotate all heads of a segment, however many there are, and of Q and K together if they
have as many:

    straight = row * cos
    crossed  = [row_hi * -sin, row_lo * sin]      (two: one for each half)
    row      = straight + crossed
"""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.qkv.heads import (
    head_vectors,
    normalise_heads,
    weigh_heads,
    weigh_tables,
)
from wantrn.kernels.qkv.slabs import Segment, TokenTile, alike_segments
from wantrn.kernels.qkv.sums import Sums


def finish_rows(row: Any, angles: Any, tile: TokenTile, sums: Sums) -> None:
    """Normalise and rotate a tile's rows in place.

    Args:
        row: SBUF bf16 `[rows, heads, D]` of all segments that are finished later.
        angles: SBUF fp32 `[TILE, 2, D / 2]`; None without rotation.
    """
    sizes = sums.plan.sizes
    d = sizes.head_dim
    for alike in alike_segments(sizes):
        first, heads = alike[0].first // d, alike[0].width // d
        x = row[:, first : first + len(alike) * heads, :].reshape_dim(1, (len(alike), heads))
        if angles != None or sizes.per_head:
            _finish_wide(x, alike, angles, tile, sums)
            continue
        for index, segment in enumerate(alike):
            part, factor = x[:, index, :, :], sums.factor(segment, tile, False)
            # Scalar has less to do than Vector here
            nisa.tensor_scalar(part, part, nl.multiply, factor, engine=nisa.engine.scalar)


def _finish_wide(x: Any, alike: list[Segment], angles: Any, tile: TokenTile, sums: Sums) -> None:
    """Rotate all heads of `x` `[rows, segments, heads, D]` in place, each normalised before if the
    norm is one of single heads."""
    rows, segments, heads, d = x.shape
    shape, memory = (segments, heads, d), sums.memory
    straight = memory.straight.take()[0:rows, 0 : segments * heads * d].reshape_dim(1, shape)
    crossed = memory.crossed.take()[0:rows, 0 : segments * heads * d].reshape_dim(1, shape)
    source: Any = x
    gamma: Any = None
    beta: Any = None
    if sums.plan.sizes.per_head:
        normalise_heads(straight, x, crossed, sums)
        source, gamma = straight, head_vectors(memory.head_gamma, alike, rows, d)
    if sums.plan.sizes.shifted:
        beta = head_vectors(memory.head_beta, alike, rows, d)
    if angles == None:
        weigh_heads(x, source, gamma, beta)
        return
    tables = _tables(alike, angles, tile, sums)
    if beta != None:
        # what is added is rotated too
        weigh_heads(source, source, gamma, beta)
    elif gamma != None:
        weigh_tables(tables, gamma)
    _rotate(x, source, tables, straight, crossed)


def _tables(alike: list[Segment], angles: Any, tile: TokenTile, sums: Sums) -> Any:
    """Factor times `[cos, cos]` and `[-sin, sin]` for each segment: PSUM fp32
    `[rows, segments, 2, D]`."""
    rows, d = tile.rows, sums.plan.sizes.head_dim
    half = d // 2
    tables = sums.memory.table(len(alike), d)[0:rows, :, :, :]
    cos, sin = angles[0:rows, 0:1, :], angles[0:rows, 1, :]
    for index, segment in enumerate(alike):
        factor = sums.factor(segment, tile, False)
        both = tables[:, index, 0, :].reshape_dim(1, (2, half))
        nisa.activation(both, nl.copy, cos.broadcast(1, 2), scale=factor)
        low = tables[:, index, 1, 0:half]
        nisa.activation(low, nl.copy, sin, scale=sums.factor(segment, tile, True))
        nisa.activation(tables[:, index, 1, half:d], nl.copy, sin, scale=factor)
    return tables


def _rotate(x: Any, source: Any, tables: Any, straight: Any, crossed: Any) -> None:
    """`source` rotated into `x`, both `[rows, segments, heads, D]`; it may be `straight` itself."""
    heads, d = x.shape[2], x.shape[3]
    half = d // 2
    cos = tables[:, :, 0:1, :].broadcast(2, heads)
    sin = tables[:, :, 1:2, :].broadcast(2, heads)
    for to, come in ((0, half), (half, 0)):
        nisa.tensor_tensor(
            crossed[:, :, :, to : to + half],
            source[:, :, :, come : come + half],
            sin[:, :, :, to : to + half],
            nl.multiply,
        )
    nisa.tensor_tensor(straight, source, cos, nl.multiply)
    # GpSimd has nothing else to do, and Vector has
    nisa.tensor_tensor(x, straight, crossed, nl.add, engine=nisa.engine.gpsimd)
