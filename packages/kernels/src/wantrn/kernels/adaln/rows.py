"""What happens to the rows of a tile, chunk by chunk of their columns.

Vector reads one operand from PSUM and one from SBUF at twice the rate of two from SBUF, so the
Scalar engine puts what is multiplied into PSUM first, which it does anyway for the norm. GpSimd
does not reach PSUM: its chunks are put into SBUF.
"""

from __future__ import annotations

from typing import Any

from wantrn.kernels.adaln.memory import Memory
from wantrn.kernels.adaln.norm import INVERSE, LARGEST
from wantrn.kernels.adaln.plan import chunks_of
from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.row_mx import SCALE_BYTES, SMALLEST_ROW_SCALE


def add_gated(x: Any, stream: Any, gate: Any, memory: Memory) -> None:
    """`stream + gate * x`, in fp32 and rounded once, to `stream`.

    Args:
        x, stream: SBUF `[rows, H]`.
        gate: SBUF fp32 `[rows, H]`, or None for one.
    """
    for lo, hi in chunks_of(x.shape[1]):
        by_gpsimd = memory.summed.next()
        part = stream[:, lo:hi]
        product = x[:, lo:hi]
        if gate != None:
            source = product
            product = memory.place(memory.lifts, by_gpsimd, x.shape[0], hi - lo)
            if not by_gpsimd:
                nisa.activation(product, nl.copy, source)
                source = product
            nisa.tensor_tensor(
                product, source, gate[:, lo:hi], nl.multiply, engine=_engine(by_gpsimd)
            )
        nisa.tensor_tensor(part, product, part, nl.add, engine=_engine(by_gpsimd))


def modulate(dst: Any, stream: Any, norm: tuple[Any, Any], vectors: Any, memory: Memory) -> None:
    """`(stream * factor + offset) * mul + add`, in fp32 and rounded once, to `dst`.

    Args:
        dst, stream: SBUF `[rows, H]`; they may be the same.
        norm: `(factor, offset)`, fp32 `[rows, 1]` or None.
        vectors: `(mul, add)`, SBUF fp32 `[rows, H]` or None.
    """
    factor, offset = norm
    steps = []
    for vector, op in ((vectors[0], nl.multiply), (vectors[1], nl.add)):
        if vector != None:
            steps.append((vector, op))
    for lo, hi in chunks_of(stream.shape[1]):
        value = dst[:, lo:hi]
        by_gpsimd = memory.modulated.next()
        if steps:
            value = memory.place(memory.products, by_gpsimd, stream.shape[0], hi - lo)
        nisa.activation(
            value,
            nl.copy,
            stream[:, lo:hi],
            bias=offset,
            scale=1.0 if factor == None else factor,
        )
        for number, (vector, op) in enumerate(steps):
            target = dst[:, lo:hi] if number == len(steps) - 1 else value
            nisa.tensor_tensor(target, value, vector[:, lo:hi], op, engine=_engine(by_gpsimd))


def quantize(packed: Any, values: Any, columns: Any, limit: float, memory: Memory) -> None:
    """Packed rows, as `wantrn.kernels.row_mx.quantize_rows` makes them, bit for bit.

    Args:
        packed: SBUF FP8 `[rows, H + 4]`.
        values: SBUF fp32 or bf16 `[rows, H]`.
        columns: SBUF fp32 `[rows, COLUMNS]`.
    """
    rows, hidden = values.shape
    chunks = chunks_of(hidden)
    largest = memory.largest.take()[0:rows, 0 : len(chunks)]
    for index, (lo, hi) in enumerate(chunks):
        _search(largest[:, index : index + 1], values[:, lo:hi], memory)
    most = columns[:, LARGEST : LARGEST + 1]
    nisa.tensor_reduce(most, nl.maximum, largest, axis=1)
    words = packed.view(nl.float32)
    scale = words[:, hidden // SCALE_BYTES : hidden // SCALE_BYTES + 1]
    nisa.tensor_scalar(
        scale,
        most,
        nl.multiply,
        1.0 / limit,
        op1=nl.maximum,
        operand1=SMALLEST_ROW_SCALE,
        engine=nisa.engine.vector,
    )
    inverse = columns[:, INVERSE : INVERSE + 1]
    nisa.reciprocal(inverse, scale)
    for lo, hi in chunks:
        nisa.activation(packed[:, lo:hi], nl.copy, values[:, lo:hi], scale=inverse)


def _search(largest: Any, values: Any, memory: Memory) -> None:
    """The largest magnitude of each row: `largest` fp32 `[rows, 1]`."""
    rows, width = values.shape
    if memory.searched.next():
        nisa.tensor_scalar_reduce(
            memory.magnitudes.at(0)[0:rows, 0:width],
            values,
            nl.abs,
            None,
            nl.maximum,
            reduce_res=largest,
        )
        return
    nisa.activate2(
        memory.magnitudes.at(1)[0:rows, 0:width],
        nl.abs,
        values,
        0.0,
        0.0,
        nl.bypass,
        nl.bypass,
        reduce_op=nl.maximum,
        reduce_res=largest,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def _engine(by_gpsimd: bool) -> Any:
    return nisa.engine.gpsimd if by_gpsimd else nisa.engine.vector
