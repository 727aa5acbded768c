"""The norm over all heads and the rotation, when the rows of Q and K are complete.

A token's factor multiplies the small tables of cosines and sines instead of the wide rows, and the
tables stand in PSUM, where an engine reads them beside a row in SBUF at no extra time. Four wide
operations rotate all heads of a segment, however many there are:

    straight = row * cos
    crossed  = [row_hi * -sin, row_lo * sin]      (two: one for each half)
    row      = straight + crossed
"""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.qkv.memory import Memory
from wantrn.kernels.qkv.options import Sizes
from wantrn.kernels.qkv.plan import later_segments
from wantrn.kernels.qkv.slabs import TokenTile
from wantrn.kernels.qkv.sums import Sums


def finish_rows(row: Any, angles: Any, tile: TokenTile, sums: Sums) -> None:
    """Normalise and rotate a tile's rows in place.

    Args:
        row: SBUF bf16 `[rows, columns]` of all segments that are finished later.
        angles: SBUF fp32 `[TILE, 2, D / 2]`; None without rotation.
    """
    sizes = sums.plan.sizes
    for index, segment in enumerate(later_segments(sizes)):
        part = row[:, segment.first : segment.first + segment.width]
        if angles == None:
            nisa.tensor_scalar(part, part, nl.multiply, sums.factor(index, tile, False))
        else:
            tables = _tables(index, angles, tile, sums)
            _rotate(part, tables, sizes, sums.memory)


def _tables(index: int, angles: Any, tile: TokenTile, sums: Sums) -> Any:
    """Factor times `[cos, cos]` and `[-sin, sin]`: PSUM fp32 `[rows, 2, D]`."""
    rows, d = tile.rows, sums.plan.sizes.head_dim
    half = d // 2
    tables = sums.memory.tables(d)[0:rows, :, :]
    factor = sums.factor(index, tile, False)
    cos, sin = angles[0:rows, 0:1, :], angles[0:rows, 1, :]
    both = tables[:, 0, :].reshape_dim(1, (2, half))
    nisa.activation(both, nl.copy, cos.broadcast(1, 2), scale=factor)
    nisa.activation(tables[:, 1, 0:half], nl.copy, sin, scale=sums.factor(index, tile, True))
    nisa.activation(tables[:, 1, half:d], nl.copy, sin, scale=factor)
    return tables


def _rotate(part: Any, tables: Any, sizes: Sizes, memory: Memory) -> None:
    """Rotate all heads of `part` `[rows, n * D]` in place."""
    rows, columns = part.shape
    d = sizes.head_dim
    half, heads = d // 2, columns // d
    straight = memory.straight.take()[0:rows, 0:columns].reshape_dim(1, (heads, d))
    crossed = memory.crossed.take()[0:rows, 0:columns].reshape_dim(1, (heads, d))
    x = part.reshape_dim(1, (heads, d))
    cos = tables[:, 0:1, :].broadcast(1, heads)
    sin = tables[:, 1:2, :].broadcast(1, heads)
    nisa.tensor_tensor(straight, x, cos, nl.multiply)
    for to, come in ((0, half), (half, 0)):
        nisa.tensor_tensor(
            crossed[:, :, to : to + half],
            x[:, :, come : come + half],
            sin[:, :, to : to + half],
            nl.multiply,
        )
    # GpSimd has nothing else to do, and Vector has
    nisa.tensor_tensor(x, straight, crossed, nl.add, engine=nisa.engine.gpsimd)
