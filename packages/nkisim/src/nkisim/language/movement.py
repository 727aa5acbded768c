"""Transposes, products, gathers and shapes; and printing."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import dtypes
from nkisim import isa as nisa
from nkisim.core import current
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiValidationError
from nkisim.language import operands
from nkisim.tensor import NkiTensor

# partitions that one shuffle of the Vector engine reaches
_QUADRANT = 32


def _matrix(what: str, name: str, tensor: NkiTensor) -> None:
    if tensor.ndim != 2:
        raise NkiValidationError(f"{what}: {name} is {tensor!r}; it must have two dimensions")


def _converted(made: NkiTensor, dtype: Any) -> NkiTensor:
    """`made`, or a copy in the same memory of another dtype."""
    kind = operands.chosen(dtype, made.dtype)
    if kind is made.dtype:
        return made
    other = current("nl.copy").allocate(made.shape, kind, made.buffer)
    nisa.tensor_copy(other, made)
    return other


def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tensor [N, M] with the transpose of `src` [M, N] in HBM, by DMA.

    Args:
        src: N <= 128; elements of 2 or 4 bytes.
        dtype: of the result; that of `src` by default.
    """
    what = "nl.load_transpose2d"
    core = current(what)
    source = operands.in_hbm(what, "src", src)
    _matrix(what, "src", source)
    m, n = source.shape
    dst = operands.tile(core, (n, m), source.dtype)
    nisa.dma_transpose(dst, source)
    return _converted(dst, dtype)


def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new PSUM tensor [N, M] with the transpose of `x` [M, N] in SBUF, by the Tensor engine.

    Args:
        x: at most 128 x 128.
        dtype: of the result; that of `x` by default.
    """
    what = "nl.transpose"
    core = current(what)
    x = operands.on_chip(what, "x", x)
    _matrix(what, "x", x)
    m, n = x.shape
    dst = core.allocate((n, m), x.dtype, MemoryRegion.psum)
    nisa.nc_transpose(dst, x)
    return _converted(dst, dtype)


def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """A new PSUM tensor [M, N] in fp32 with the product of two matrices.

    Args:
        x: SBUF, [K, M] where `transpose_x`, which the hardware takes; else [M, K], which is
            transposed on the way and which AWS's compiler does not take. K and M at most 128.
        y: SBUF, [K, N]; N as for `nisa.nc_matmul`.
    """
    what = "nl.matmul"
    core = current(what)
    x, y = operands.on_chip(what, "x", x), operands.on_chip(what, "y", y)
    _matrix(what, "x", x)
    _matrix(what, "y", y)
    if not transpose_x:
        core.violation("unsupported", f"{what}: transpose_x is {transpose_x!r}; only True compiles")
        turned = transpose(x)
        x = operands.tile(core, turned.shape, turned.dtype)
        nisa.tensor_copy(x, turned)
    dst = core.allocate((x.shape[1], y.shape[1]), dtypes.float32, MemoryRegion.psum)
    nisa.nc_matmul(dst, x, y)
    return dst


def gather_flattened(
    data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None
) -> NkiTensor:
    """A new SBUF tensor: in each partition, the elements of `data` at `indices`.

    Args:
        data: SBUF, [P, ...]; the elements of a partition are numbered in row-major order.
        indices: SBUF, uint32, [P, ...]; gives the shape of the result.
        axis: 0.
        dtype: of the result; that of `data` by default.
    """
    what = "nl.gather_flattened"
    core = current(what)
    data = operands.on_chip(what, "data", data)
    indices = operands.on_chip(what, "indices", indices)
    if axis != 0:
        raise NkiValidationError(f"{what}: axis is {axis!r}; it must be 0")
    dst = operands.tile(core, indices.shape, data.dtype)
    nisa.nc_n_gather(dst, data, indices)
    return _converted(dst, dtype)


def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """A view of `x` with a dimension of size 1 at `axis`; on chip not before the partitions."""
    return operands.tensor("nl.expand_dims", "x", x).expand_dim(axis)


def broadcast_to(x: NkiTensor, shape: Any, dtype: Any = None) -> NkiTensor:
    """A new SBUF tensor with `x` repeated along its dimensions of size 1.

    Args:
        x: on chip or in HBM, of as many dimensions as `shape`. A single partition is repeated by
            shuffles of the Vector engine, 32 partitions at a time.
        shape: each size that of `x`, or any where that is 1.
        dtype: of the result; that of `x` by default.
    """
    what = "nl.broadcast_to"
    core = current(what)
    x = operands.tensor(what, "x", x)
    sizes = tuple(int(size) for size in shape)
    kind = operands.chosen(dtype, x.dtype)
    if not x.on_chip:
        return _broadcast_hbm(what, x, sizes, kind)
    if x.shape[0] == 1 and sizes[0] > 1:
        x = _repeated(x, sizes[0])
    dst = operands.tile(core, sizes, kind)
    nisa.tensor_copy(dst, operands.stretched(what, "x", x, sizes))
    return dst


def _broadcast_hbm(what: str, x: NkiTensor, sizes: tuple[int, ...], kind: DType) -> NkiTensor:
    first = x
    if x.ndim == len(sizes) and x.shape[0] == 1:
        first = x.broadcast(0, sizes[0])
    dst = operands.tile(current(what), sizes, kind)
    nisa.dma_copy(dst, operands.stretched(what, "x", first, sizes))
    return dst


def _repeated(x: NkiTensor, partitions: int) -> NkiTensor:
    """The single partition of `x` in each of several."""
    made = operands.tile(current("nl.broadcast_to"), (partitions, *x.shape[1:]), x.dtype)
    for start in range(0, partitions, _QUADRANT):
        part = made[start : min(start + _QUADRANT, partitions)]
        nisa.nc_stream_shuffle(part, x, [0] * _QUADRANT)
    return made


def device_print(print_prefix: str, tensor: NkiTensor) -> None:
    """Print a tensor, after `print_prefix`, as it is at this point of the kernel.

    The print is no instruction of the record: what it costs on the device is not published. A run
    without numerics prints shape and dtype of what it has no values of.
    """
    core = current("nl.device_print")
    shown = operands.tensor("nl.device_print", "tensor", tensor)
    where = f" [rank {core.rank}, core {core.number}]" if len(core.run.cores) > 1 else ""
    text = f"{print_prefix}{where} {list(shown.shape)} {shown.dtype}"
    if shown.has_values(core.numerics):
        values = shown.values()
        printable = values if values.dtype.kind in "fiub" else values.astype(np.float32)
        text += f"\n{printable}"
    print(text)
