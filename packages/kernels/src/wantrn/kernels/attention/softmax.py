"""The online softmax: the row maximum, kept negated, and exponentials with their sums."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.buffers import Buffers
from wantrn.kernels.attention.items import Item
from wantrn.kernels.attention.plan import GROUP, V_TILE
from wantrn.kernels.nki import nisa, nl

# A row that reads no key at all has the maximum FLOAT32_MIN, and exp(FLOAT32_MIN - maximum) would
# be one. With a maximum of at least this, it is zero.
LARGEST_NEG_MAX = 1e30
# and the sum is zero, whose reciprocal is not to be infinite
SMALLEST_SUM = 1e-30


def column() -> Any:
    """fp32 `[GROUP, 1]`."""
    return nl.ndarray((GROUP, 1), nl.float32, buffer=nl.sbuf)


def update_max(item: Item, sink: Any) -> None:
    """`neg_max` and `alpha` of an item whose scores are all there.

    `max(m_old, m_new)` is the smaller of two negated maxima, and `exp(m_old - m_new)` takes both as
    they are stored: the old one with the scale -1, the new one as the bias.

    Args:
        sink: logits that take part in the softmax and have no value, fp32 `[GROUP, 1]`, or None.
    """
    rows = item.rows
    if sink != None and item.prev == None:
        last = item.partial_max[0:rows, item.columns : item.columns + 1]
        nisa.tensor_copy(last, sink[0:rows, :])
        item.columns += 1
    found = column()
    nisa.tensor_reduce(
        found[0:rows, :],
        op=nl.maximum,
        data=item.partial_max[0:rows, 0 : item.columns],
        axis=1,
        negate=True,
    )
    if item.section.bounded:
        limited = column()
        nisa.tensor_scalar(limited[0:rows, :], found[0:rows, :], nl.minimum, LARGEST_NEG_MAX)
        found = limited
    if item.prev == None:
        item.neg_max = found
        return
    before = item.prev.neg_max
    item.neg_max = column()
    nisa.tensor_tensor(item.neg_max[0:rows, :], before[0:rows, :], found[0:rows, :], nl.minimum)
    item.alpha = column()
    nisa.activation(
        item.alpha[0:rows, :],
        op=nl.exp,
        data=before[0:rows, :],
        bias=item.neg_max[0:rows, :],
        scale=-1.0,
    )


def begin_exp(item: Item, has_sink: bool) -> None:
    """A column for the sum of every chunk of this item, and of the sink."""
    sink = 1 if has_sink and item.prev == None else 0
    item.partial_sum = nl.ndarray((GROUP, len(item.chunks) + sink), nl.float32, buffer=nl.sbuf)


def exp_chunk(item: Item, index: int, buffers: Buffers) -> None:
    """Probabilities of one chunk, before the division by their sum, and transposed.

    The shift by the maximum, the exponential and the sum are one instruction.
    """
    chunk = item.chunks[index]
    rows, width = item.rows, chunk.hi - chunk.lo
    p = buffers.p.take()
    nisa.activation_reduce(
        p[0:rows, 0:width],
        op=nl.exp,
        data=item.scores[index][0:rows, 0:width],
        reduce_op=nl.add,
        reduce_res=item.partial_sum[0:rows, index : index + 1],
        bias=item.neg_max[0:rows, :],
    )
    pt = buffers.pt.take()
    item.pt.append(pt)
    whole = width // V_TILE
    if whole:
        tiles = p[0:rows, 0 : whole * V_TILE].reshape_dim(1, (whole, V_TILE))
        nisa.dma_transpose(pt[:, 0:whole, 0:rows], tiles)
    rest = width - whole * V_TILE
    if rest:
        last = pt[0:rest, whole : whole + 1, 0:rows].reshape((rest, rows))
        nisa.dma_transpose(last, p[0:rows, whole * V_TILE : width])


def add_sink(item: Item, sink: Any) -> None:
    """The sink's part of the sum."""
    rows = item.rows
    if sink != None and item.prev == None:
        at = len(item.chunks)
        nisa.activation(
            item.partial_sum[0:rows, at : at + 1],
            op=nl.exp,
            data=sink[0:rows, :],
            bias=item.neg_max[0:rows, :],
        )


def update_sum(item: Item) -> None:
    """`l_new = alpha * l_old + l_section`."""
    rows = item.rows
    found = column()
    nisa.tensor_reduce(found[0:rows, :], op=nl.add, data=item.partial_sum[0:rows, :], axis=1)
    if item.prev == None:
        item.total = found
        return
    item.total = column()
    nisa.tensor_scalar(
        item.total[0:rows, :],
        item.prev.total[0:rows, :],
        op0=nl.multiply,
        operand0=item.alpha[0:rows, :],
        op1=nl.add,
        operand1=found[0:rows, :],
    )
