"""The second matmul, and the output on its way to HBM."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.buffers import Buffers
from wantrn.kernels.attention.items import Item
from wantrn.kernels.attention.plan import GROUP, V_TILE
from wantrn.kernels.attention.softmax import SMALLEST_SUM, column
from wantrn.kernels.nki import nisa, nl


class Outputs(nl.NKIObject):
    """Where results go.

    Attributes:
        o: `[B, S_q, D]`, or `[B, D, S_q]` if `transposed`
        neg_max, reciprocal: fp32 `[B, S_q]`, or None
        partial: fp32 `[groups * GROUP, D]`: the output of a group between its sections, not yet
            divided by the sum of its probabilities; None where there is one section
    """

    o: Any
    transposed: bool
    neg_max: Any = None
    reciprocal: Any = None
    partial: Any = None


def value_chunk(item: Item, index: int, v: Any, buffers: Buffers) -> None:
    """Add the product of one chunk's probabilities and values, `v` `[V_TILE, blocks, D]`."""
    d = v.shape[-1]
    if index == 0:
        item.out = buffers.output_psum.take((GROUP, d), nl.float32)
    chunk = item.chunks[index]
    for lo in range(chunk.lo, chunk.hi, V_TILE):
        count = min(V_TILE, chunk.hi - lo)
        nisa.nc_matmul(
            item.out[0 : item.rows, :],
            stationary=item.pt[index][0:count, (lo - chunk.lo) // V_TILE, 0 : item.rows],
            moving=v[0:count, lo // V_TILE, :],
        )


def load_output_before(item: Item, outputs: Outputs, d: int) -> None:
    """What the sections before have left of the output, as soon as it is there."""
    if item.prev != None and item.prev.is_written and item.output_before == None:
        item.output_before = nl.ndarray((GROUP, d), nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(item.output_before[0 : item.rows, :], _partial_rows(item, outputs))


def _partial_rows(item: Item, outputs: Outputs) -> Any:
    start = item.group * GROUP
    return outputs.partial[start : start + item.rows, :]


def finish(item: Item, outputs: Outputs, buffers: Buffers) -> None:
    """Merge a section's output with those before, and write it: divided by the sum after the last
    section, as it is before."""
    rows = item.rows
    source = item.out
    if item.prev != None:
        # alpha * O_old + O_section
        source = nl.ndarray(item.out.shape, nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            source[0:rows, :],
            data=item.output_before[0:rows, :],
            op0=nl.multiply,
            operand0=item.alpha[0:rows, :],
            op1=nl.add,
            operand1=item.out[0:rows, :],
        )
    if item.is_last:
        _write_normalised(item, source, outputs, buffers)
        return
    if item.prev == None:
        source = nl.ndarray(item.out.shape, nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(source[0:rows, :], item.out[0:rows, :])
    nisa.dma_copy(_partial_rows(item, outputs), source[0:rows, :])
    item.is_written = True


def _write_normalised(item: Item, source: Any, outputs: Outputs, buffers: Buffers) -> None:
    rows, batch = item.rows, item.shard.batch
    total = item.total
    if item.section.bounded:
        total = column()
        nisa.tensor_scalar(total[0:rows, :], item.total[0:rows, :], nl.maximum, SMALLEST_SUM)
    reciprocal = column()
    nisa.reciprocal(reciprocal[0:rows, :], total[0:rows, :])
    d = source.shape[-1]
    o = nl.ndarray((GROUP, d), outputs.o.dtype, buffer=nl.sbuf)
    nisa.activation(o[0:rows, :], op=nl.copy, data=source[0:rows, :], scale=reciprocal[0:rows, :])
    where = (item.q0, item.q0 + rows)
    if outputs.transposed:
        turned = buffers.output_psum.take((d, GROUP), outputs.o.dtype)
        nisa.nc_transpose(turned[:, 0:rows], o[0:rows, :])
        columns = nl.ndarray((d, GROUP), outputs.o.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(columns[:, 0:rows], turned[:, 0:rows], engine=nisa.engine.scalar)
        nisa.dma_copy(outputs.o[batch, :, where[0] : where[1]], columns[:, 0:rows])
    else:
        nisa.dma_copy(outputs.o[batch, where[0] : where[1], :], o[0:rows, :])
    if outputs.neg_max != None:
        _write_column(outputs.neg_max[batch, where[0] : where[1]], item.neg_max, rows)
        _write_column(outputs.reciprocal[batch, where[0] : where[1]], reciprocal, rows)


def _write_column(dst: Any, src: Any, rows: int) -> None:
    nisa.dma_copy(dst.reshape((rows, 1)), src[0:rows, :])
