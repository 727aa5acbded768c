"""`tensor.ap(...)` and `tensor.indirect(...)`: addresses given by the kernel itself."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.dynamic import Dynamic
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiValidationError
from nkisim.indexing import check_scalar_index, check_vector_index
from nkisim.memory_view import MemoryView
from nkisim.views import Shape

# partition and up to four free dimensions
_MAX_DIMENSIONS = 5


class Pattern(NamedTuple):
    """What makes a view, beside the tensor that it looks at."""

    dtype: DType
    shape: Shape
    strides: Shape
    offset: int
    dynamic: Dynamic | None


class Offsets(NamedTuple):
    """What moves an access pattern, as `ap` takes it."""

    offset: int | None
    scalar: Any
    vector: Any
    dim: int


def access_pattern(
    tensor: MemoryView, pattern: Sequence[Sequence[int]], offsets: Offsets, dtype: Any
) -> Pattern:
    """The view that `pattern` describes over the memory of `tensor`.

    Source: NKI access pattern guide, and the docstring of `ap` where the two differ: the offset
    counts from where the view begins.

    Args:
        tensor: any view; only its offset, dtype and the stride of the indirect dimension matter.
        pattern: `[[step, count], ...]` in elements of the resulting dtype, outermost first. On chip
            the first pair is the partitions; its step is the elements of a partition.
        offsets: elements to add to the view's own offset; or a register or `[1, 1]` SBUF tensor
            that moves the view by its value times the stride of dimension `dim`; or an SBUF tensor
            `[P, 1]` whose values times that stride are where each row starts.
        dtype: another type to see the bytes as; the tensor's own by default.

    A pattern may end outside its tensor: kernels make some that they then do not use. It is an
    error in an instruction.

    Raises:
        NkiValidationError: the pattern begins before the tensor, or is none that hardware takes.
    """
    new = tensor.dtype if dtype is None else dtypes.resolve(dtype)
    steps, counts = _pairs(pattern)
    start = _in_elements(tensor, "offset", tensor.offset, new)
    if offsets.offset is not None:
        start += operator.index(offsets.offset)
    dynamic = _dynamic(tensor, offsets, counts[0], new)
    if tensor.on_chip:
        steps = _check_on_chip(tensor, new.itemsize, steps, counts)
    if start < 0:
        raise NkiValidationError(f"ap: the pattern begins at element {start}, before its tensor")
    return Pattern(new, counts, steps, start, dynamic)


def _pairs(pattern: Sequence[Sequence[int]]) -> tuple[Shape, Shape]:
    try:
        pairs = [(operator.index(step), operator.index(count)) for step, count in pattern]
    except (TypeError, ValueError):
        raise NkiValidationError(
            f"ap: pattern is {pattern!r}; it must be a list of [step, count] integers"
        ) from None
    if not 1 <= len(pairs) <= _MAX_DIMENSIONS:
        raise NkiValidationError(
            f"ap: pattern has {len(pairs)} dimensions; the hardware takes 1 to {_MAX_DIMENSIONS}"
        )
    for step, count in pairs:
        if count < 1 or step < 0:
            raise NkiValidationError(
                f"ap: pattern has [{step}, {count}]; steps must be at least 0, counts at least 1"
            )
    return tuple([step for step, _ in pairs]), tuple([count for _, count in pairs])


def _in_elements(tensor: MemoryView, what: str, elements: int, new: DType) -> int:
    """A number of elements of `tensor` as elements of another type."""
    size = elements * tensor.dtype.itemsize
    if size % new.itemsize:
        raise NkiValidationError(
            f"ap: the {what} of {tensor!r}, {size} bytes, does not divide by {new.itemsize} ({new})"
        )
    return size // new.itemsize


def _check_on_chip(tensor: MemoryView, item: int, steps: Shape, counts: Shape) -> Shape:
    """The strides, whose first one is that of the memory."""
    place = tensor.storage.place
    width = place.bytes_per_partition // item
    if width * item != place.bytes_per_partition:
        raise NkiValidationError(
            f"ap: a partition of {tensor!r} is {place.bytes_per_partition} bytes, which do not "
            f"divide by {item}"
        )
    if len(counts) < 2:
        raise NkiValidationError("ap: an on-chip pattern has a partition pair and a free pair")
    # a single partition may come with any step
    if counts[0] > 1 and steps[0] != width:
        _other_step(tensor, item, steps[0], width)
    return (width, *steps[1:])


def _other_step(tensor: MemoryView, item: int, step: int, width: int) -> None:
    """A partition step that is not the memory's: at best that of the view as if it were a tensor.

    Kernels of nki-library write it so, and mean the next partition.
    """
    from nkisim.core import current

    text = (
        f"ap: the partition step is {step}; for {tensor!r} it must be {width}, the elements of a "
        "partition"
    )
    own = tensor.size // tensor.shape[0] * tensor.dtype.itemsize
    if step * item != own:
        raise NkiValidationError(text)
    current("ap").violation("partition_step", text)


def _dynamic(tensor: MemoryView, offsets: Offsets, rows: int, new: DType) -> Dynamic | None:
    own = tensor.dynamic
    if own is not None and own.kind != "scalar":
        raise NkiValidationError(f"ap: {tensor!r} is indirect: it has no other views")
    if offsets.scalar is None and offsets.vector is None:
        if own is None:
            return None
        stride = _in_elements(tensor, "step of the dynamic index", own.stride, new)
        return Dynamic("scalar", own.index, stride, own.limit)
    if offsets.scalar is not None and offsets.vector is not None:
        raise NkiValidationError("ap: scalar_offset and vector_offset exclude each other")
    if own is not None:
        raise NkiValidationError(f"ap: {tensor!r} has a dynamic index already; a view takes one")
    dim = operator.index(offsets.dim)
    if not 0 <= dim < tensor.ndim:
        raise NkiValidationError(
            f"ap: indirect_dim is {dim}; {tensor!r} has dimensions 0..{tensor.ndim - 1}"
        )
    stride = _in_elements(tensor, f"stride of dimension {dim}", tensor.strides[dim], new)
    if offsets.scalar is not None:
        check_scalar_index("ap: scalar_offset", offsets.scalar)
        if tensor.on_chip and dim == 0:
            raise NkiValidationError(
                f"ap: indirect_dim is 0 for {tensor!r}; on chip the partitions take no "
                "scalar_offset"
            )
        return Dynamic("scalar", offsets.scalar, stride, tensor.shape[dim])
    check_vector_index("ap: vector_offset", offsets.vector, rows)
    if tensor.on_chip or dim != 0:
        raise NkiValidationError(
            f"ap: vector_offset of dimension {dim} of {tensor!r}; it takes dimension 0 of an HBM "
            "tensor"
        )
    return Dynamic("vector", offsets.vector, stride, tensor.shape[0])


# Partitions that share the indices: 16 for the Vector, Scalar and GpSimd engines, and 32 for the
# Tensor engine. Which engine reads a view is not known when it is made; 16 gives the default size.
_GROUP = 16


def indirect(tensor: MemoryView, index: MemoryView, num_elem: int | None) -> Pattern:
    """Free elements of `tensor` [P, N], chosen by `index` [P, K], integers in SBUF.

    In each group of 16 partitions (32 where the Tensor engine reads), element `i` of every
    partition is free element `index[i % 16, i // 16]` of that group. The result is `[P, num_elem]`,
    by default with 16 * K elements.

    Raises:
        NkiValidationError: shapes, buffers or the generation do not allow it.
    """
    from nkisim.core import current

    current("indirect").require_generation("indirect", 4)
    if not isinstance(index, MemoryView) or index.buffer is not MemoryRegion.sbuf:
        raise NkiValidationError(f"indirect: index is {index!r}; it must be a tensor in SBUF")
    if not tensor.on_chip or tensor.dynamic is not None or not tensor.is_contiguous():
        raise NkiValidationError(
            f"indirect: {tensor!r} must be a contiguous static view of a tensor on chip"
        )
    if not index.dtype.is_integer or index.dynamic is not None:
        raise NkiValidationError(f"indirect: index is {index!r}; it must be static integers")
    partitions = tensor.shape[0]
    if index.shape[0] != partitions or partitions % _GROUP:
        raise NkiValidationError(
            f"indirect: index has {index.shape[0]} partitions, the tensor {partitions}; they must "
            f"be equal, and a multiple of {_GROUP}"
        )
    per_index = index.size // partitions
    count = per_index * _GROUP if num_elem is None else operator.index(num_elem)
    if not 1 <= count <= per_index * 2 * _GROUP:
        raise NkiValidationError(
            f"indirect: num_elem is {count}; an index of {per_index} columns allows 1 to "
            f"{per_index * 2 * _GROUP}"
        )
    dynamic = Dynamic("gather", index, 1, tensor.size // partitions)
    strides = (tensor.strides[0], 1)
    return Pattern(tensor.dtype, (partitions, count), strides, tensor.offset, dynamic)
