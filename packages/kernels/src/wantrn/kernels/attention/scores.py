"""The first matmul: scores of a group, masked and scaled, with the maximum of each row."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.bounds import Bounds
from wantrn.kernels.attention.buffers import Buffers
from wantrn.kernels.attention.items import Item
from wantrn.kernels.attention.options import Options
from wantrn.kernels.attention.plan import CHUNK, GROUP, K_TILE
from wantrn.kernels.attention.spans import Piece, pieces_of
from wantrn.kernels.nki import nisa, nl

# what masked scores become: exp of it, less any maximum, is zero
FLOAT32_MIN = -3.4028234663852886e38


def begin_scores(item: Item, has_sink: bool) -> None:
    """A column for the maximum of every instruction of this item."""
    # a chunk has three kinds of columns at most: behind the window, within it, at the diagonal
    columns = 3 * len(item.chunks) + (1 if has_sink else 0)
    item.partial_max = nl.ndarray((GROUP, columns), nl.float32, buffer=nl.sbuf)


def score_chunk(
    item: Item, index: int, q: Any, k: Any, options: Options, bounds: Any, buffers: Buffers
) -> None:
    """Scores of chunk `index`, from PSUM to a slot of the item.

    Args:
        q: `[D, rows]` of the group.
        k: `[D, section]`.
        bounds: `Bounds`; None where the section is not bounded.
    """
    chunk = item.chunks[index]
    psum = buffers.score_psum.take((GROUP, CHUNK), nl.float32)
    for lo in range(chunk.lo, chunk.hi, K_TILE):
        hi = min(lo + K_TILE, chunk.hi)
        part = psum[0 : item.rows, lo - chunk.lo : hi - chunk.lo]
        nisa.nc_matmul(part, stationary=q, moving=k[:, lo:hi])
    slot = buffers.scores.take()
    item.scores.append(slot)
    if item.section.bounded:
        _select_range(item, index, slot, psum, bounds)
        return
    for piece in pieces_of(item.section, chunk, options, item.q0, item.rows):
        columns = (piece.lo - chunk.lo, piece.hi - chunk.lo)
        dst = slot[0 : item.rows, columns[0] : columns[1]]
        src = psum[0 : item.rows, columns[0] : columns[1]]
        if piece.causal or piece.window:
            src = _select_affine(item, piece, src, options.window)
        nisa.tensor_scalar_reduce(
            dst,
            src,
            op0=nl.multiply,
            operand0=options.scale,
            reduce_op=nl.maximum,
            reduce_res=_next_column(item),
        )


def _next_column(item: Item) -> Any:
    column = item.columns
    item.columns = column + 1
    return item.partial_max[0 : item.rows, column : column + 1]


def _select_range(item: Item, index: int, slot: Any, psum: Any, bounds: Bounds) -> None:
    """Keep keys within the bounds of each row; the scale is 1.0 here."""
    chunk = item.chunks[index]
    prior = item.section.is_prior
    lower = bounds.prior_lower if prior else bounds.lower
    upper = bounds.prior_upper if prior else bounds.upper
    width = chunk.hi - chunk.lo
    nisa.range_select(
        slot[0 : item.rows, 0:width],
        on_true_tile=psum[0 : item.rows, 0:width],
        comp_op0=nl.greater_equal,
        comp_op1=nl.less,
        bound0=lower[0 : item.rows, item.group : item.group + 1],
        bound1=upper[0 : item.rows, item.group : item.group + 1],
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
        reduce_res=_next_column(item),
        reduce_op=nl.maximum,
        range_start=item.section.start + chunk.lo,
        on_false_value=FLOAT32_MIN,
    )


def _select_affine(item: Item, piece: Piece, src: Any, window: int) -> Any:
    """A copy of `src` with the scores of keys that a query does not read at the minimum.

    One selection is one half-plane, so a window is a second one behind the diagonal's.
    """
    rows, width = item.rows, piece.hi - piece.lo
    start = item.section.start + piece.lo
    selected = nl.ndarray((GROUP, width), nl.float32, buffer=nl.sbuf)[0:rows, :]
    # GpSimd, which selects, does not reach PSUM
    nisa.tensor_copy(selected, src)
    if piece.causal:
        # q0 + p >= start + f
        nisa.affine_select(
            selected,
            pattern=[[-1, width]],
            channel_multiplier=1,
            on_true_tile=selected,
            on_false_value=FLOAT32_MIN,
            cmp_op=nl.greater_equal,
            offset=item.q0 - start,
        )
    if piece.window:
        # start + f + window - 1 >= q0 + p
        nisa.affine_select(
            selected,
            pattern=[[1, width]],
            channel_multiplier=-1,
            on_true_tile=selected,
            on_false_value=FLOAT32_MIN,
            cmp_op=nl.greater_equal,
            offset=start + window - 1 - item.q0,
        )
    return selected
