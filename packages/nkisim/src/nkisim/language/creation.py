"""New tensors, and copies between memories."""

from __future__ import annotations

import operator
from os import PathLike
from typing import Any

import numpy as np

from nkisim import dtypes, host
from nkisim import isa as nisa
from nkisim.core import current
from nkisim.dtypes import DType, uint8
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiValidationError
from nkisim.isa.checks import is_number
from nkisim.language import buffers, operands
from nkisim.language.buffers import sbuf
from nkisim.operations import multiply, right_shift
from nkisim.tensor import NkiTensor

# bytes of each partition that a tile for filling HBM takes at most
_FILL_BYTES = 8192


def ndarray(
    shape: Any,
    dtype: Any,
    buffer: MemoryRegion = sbuf,
    name: str = "",
    address: tuple[int, ...] | None = None,
) -> NkiTensor:
    """A new tensor with undefined contents.

    Args:
        shape: sizes of at least 1; on chip two or more, the first of at most 128 partitions.
        dtype: a data type, in any spelling.
        buffer: nl.sbuf, nl.psum, nl.private_hbm or nl.shared_hbm.
        name: for error texts and reports; None is no name.
        address: on chip (first partition, first byte in it), and the tensor shares its bytes with
            whatever else the kernel puts there; in HBM (first byte,), which is only recorded.

    Raises:
        NkiCapacityError: it is larger than its memory.
        NkiValidationError: shape or address is none.
        TypeError: dtype or buffer is none.
    """
    return _new("nl.ndarray", shape, dtype, buffer, name, address)


def _new(
    what: str, shape: Any, dtype: Any, buffer: Any, name: Any, address: Any = None
) -> NkiTensor:
    core = current(what)
    region = buffers.region(what, buffer)
    sizes = _sizes(what, shape)
    kind = dtypes.resolve(dtype, f"{what}: dtype")
    # kernels pass on a name that they were not given
    label = "" if name is None else name
    if not isinstance(label, str):
        raise TypeError(f"{what}: name is {name!r}; it must be a string or None")
    if region is not MemoryRegion.sbuf and region is not MemoryRegion.psum:
        made = core.allocate(sizes, kind, region, label)
        if address is not None:
            made.storage.place.address = _hbm_address(what, address)
        return made
    if len(sizes) < 2:
        raise NkiValidationError(
            f"{what}: shape is {list(sizes)}; a tensor in {region.value.upper()} has two or more "
            f"dimensions, the first for partitions: ({sizes[0]}, 1) or (1, {sizes[0]})"
        )
    return core.allocate(sizes, kind, region, label, address)


def _sizes(what: str, shape: Any) -> tuple[int, ...]:
    parts = shape if isinstance(shape, (tuple, list)) else (shape,)
    try:
        sizes = tuple(map(operator.index, parts))
    except TypeError:
        raise TypeError(
            f"{what}: shape is {shape!r}; it must be a tuple or a list of integers"
        ) from None
    if not sizes or min(sizes) < 1:
        raise NkiValidationError(f"{what}: shape is {shape!r}; it must have sizes of at least 1")
    return sizes


def _hbm_address(what: str, address: Any) -> int:
    if isinstance(address, tuple) and len(address) == 1 and isinstance(address[0], int):
        byte: int = address[0]
        if byte >= 0:
            return byte
    raise NkiValidationError(
        f"{what}: address is {address!r}; in HBM it must be (byte,), of at least 0"
    )


def zeros(shape: Any, dtype: Any, buffer: MemoryRegion = sbuf, name: str = "") -> NkiTensor:
    """A new tensor of zeros; see `full`."""
    return _filled("nl.zeros", shape, 0, dtype, buffer, name)


def ones(shape: Any, dtype: Any, buffer: MemoryRegion = sbuf, name: str = "") -> NkiTensor:
    """A new tensor of ones; see `full`."""
    return _filled("nl.ones", shape, 1, dtype, buffer, name)


def full(
    shape: Any, fill_value: Any, dtype: Any, buffer: MemoryRegion = sbuf, name: str = ""
) -> NkiTensor:
    """A new tensor of equal elements, by `nisa.memset`; into HBM copied from a tile in SBUF.

    Args:
        shape, dtype, buffer, name: as for `ndarray`.
        fill_value: a number; an integer for integer types.
    """
    return _filled("nl.full", shape, fill_value, dtype, buffer, name)


def _filled(what: str, shape: Any, value: Any, dtype: Any, buffer: Any, name: str) -> NkiTensor:
    made = _new(what, shape, dtype, buffer, name)
    if made.on_chip:
        nisa.memset(made, value)
    else:
        _fill_hbm(made, value)
    return made


def _fill_hbm(made: NkiTensor, value: Any) -> None:
    """Copy a tile of `value` over all of `made`, as many elements at a time as it holds."""
    core = current("nl.full")
    size = made.size
    columns = min(-(-size // 128), _FILL_BYTES // made.dtype.itemsize)
    rows = min(128, size // columns)
    source = operands.tile(core, (rows, columns), made.dtype)
    nisa.memset(source, value)
    flat = made.reshape((size,))
    for start in range(0, size, rows * columns):
        left = min(size - start, rows * columns)
        whole = left // columns * columns
        if whole:
            nisa.dma_copy(flat[start : start + whole], source[: whole // columns])
        if whole < left:
            nisa.dma_copy(flat[start + whole : start + left], source[0:1, : left - whole])


def zeros_like(
    x: NkiTensor, dtype: Any = None, buffer: MemoryRegion | None = None, name: str = ""
) -> NkiTensor:
    """A new tensor of zeros of the shape of `x`; of its dtype and in its memory by default."""
    like = operands.tensor("nl.zeros_like", "x", x)
    kind, region = operands.chosen(dtype, like.dtype), like.buffer if buffer is None else buffer
    return _filled("nl.zeros_like", like.shape, 0, kind, region, name)


def empty_like(
    x: NkiTensor, dtype: Any = None, buffer: MemoryRegion | None = None, name: str = ""
) -> NkiTensor:
    """A new tensor of the shape of `x`; of its dtype and in its memory by default."""
    like = operands.tensor("nl.empty_like", "x", x)
    kind, region = operands.chosen(dtype, like.dtype), like.buffer if buffer is None else buffer
    return _new("nl.empty_like", like.shape, kind, region, name)


def shared_constant(constant: Any) -> NkiTensor:
    """A shared HBM tensor with the values of `constant`, which the compiler puts into the program.

    Args:
        constant: an array, or the path of an .npy file with one.

    Raises:
        TypeError: it is no array, or of a type that NKI does not have.
    """
    what = "nl.shared_constant"
    core = current(what)
    array = np.load(constant) if isinstance(constant, (str, PathLike)) else constant
    if not host.is_array(array) or isinstance(array, host.TensorSpec):
        raise TypeError(f"{what}: constant is {constant!r}; it must be an array or an .npy file")
    shape, dtype = host.shape_and_dtype(array, "constant", core.target)
    made = core.allocate(shape, dtype, MemoryRegion.shared_hbm)
    if core.numerics:
        made.array()[...] = host.to_numpy(array).reshape(shape).view(dtype.numpy)
    # no instruction of the kernel writes it
    made.storage.coverage.full = True
    return made


def shared_identity_matrix(n: int, dtype: Any = uint8, dst: NkiTensor | None = None) -> NkiTensor:
    """The identity, `[n, n]` in SBUF, copied from a shared constant.

    Args:
        n: 1 to 128.
        dtype: of the result, where `dst` is not given.
        dst: an SBUF tensor [n, n] to put it into, in its own dtype.
    """
    what = "nl.shared_identity_matrix"
    core = current(what)
    size = operator.index(n)
    if not 1 <= size <= 128:
        raise NkiValidationError(f"{what}: n is {n}; it must be 1 to 128")
    if dst is None:
        dst = operands.tile(core, (size, size), dtypes.resolve(dtype, f"{what}: dtype"))
    elif operands.on_chip(what, "dst", dst).shape != (size, size):
        raise NkiValidationError(f"{what}: dst is {dst!r}; it must be [{size}, {size}]")
    if dst.dtype.values > 1:
        raise NkiValidationError(f"{what}: dtype is {dst.dtype}; packed types have no identity")
    nisa.dma_copy(dst, shared_constant(np.eye(size).astype(dst.dtype.numpy)))
    return dst


def random_seed(seed: NkiTensor) -> None:
    """Set the seed of the random numbers of the Vector engine; `seed` is `[1, 1]`, on chip."""
    nisa.set_rng_seed(operands.on_chip("nl.random_seed", "seed", seed))


def rand(shape: Any, dtype: Any, buffer: MemoryRegion = sbuf, name: str = "") -> NkiTensor:
    """A new tensor, on chip, of values that are uniformly distributed between 0 and 1.

    By `nisa.rand2` on gen4; before, from the upper 24 of the 32 bits that `nisa.rng` gives.
    """
    what = "nl.rand"
    core = current(what)
    if not buffers.is_on_chip(buffers.region(what, buffer)):
        raise NkiValidationError(f"{what}: buffer is {buffer!r}; it must be nl.sbuf or nl.psum")
    made = _new(what, shape, dtype, buffer, name)
    if not made.dtype.is_float:
        raise NkiValidationError(f"{what}: dtype is {made.dtype}; it must be a floating-point type")
    if core.target >= 4:
        values = operands.tile(core, made.shape, dtypes.float32)
        nisa.rand2(values, 0.0, 1.0)
        nisa.tensor_copy(made, values)
    else:
        bits = operands.tile(core, made.shape, dtypes.uint32)
        nisa.rng(bits)
        nisa.tensor_scalar(bits, bits, right_shift, 8)
        nisa.tensor_scalar(made, bits, multiply, 2.0**-24)
    return made


def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tensor with the elements of `src`, which is in HBM and has two or more dimensions.

    Elements of another `dtype` are converted on the way.
    """
    source = operands.in_hbm("nl.load", "src", src)
    kind: DType = operands.chosen(dtype, source.dtype)
    made = _new("nl.load", source.shape, kind, sbuf, "")
    nisa.dma_copy(made, source)
    return made


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Copy `value`, in SBUF, to `dst`, in HBM; it is converted to the dtype of `dst`."""
    nisa.dma_copy(operands.in_hbm("nl.store", "dst", dst), value)


def assign(view: NkiTensor, value: Any) -> None:
    """What `view[...] = value` does in a kernel.

    Args:
        view: the elements to overwrite.
        value: a tensor of as many elements, which is copied: by the Vector engine where both are on
            chip, else by DMA; or, for a view on chip, a number that fills it.

    Raises:
        TypeError: it is neither.
    """
    if is_number(value) and view.on_chip:
        nisa.memset(view, value)
        return
    source = operands.tensor(f"assignment to {view!r}", "the value", value)
    if view.on_chip and source.on_chip:
        nisa.tensor_copy(view, source)
    else:
        nisa.dma_copy(view, source)
