"""`tensor.ap(...)` and `tensor.indirect(...)`: addresses given by the kernel itself."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from nkisim import dtypes
from nkisim.dynamic import Dynamic
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiValidationError
from nkisim.tensor import NkiTensor, _check_scalar_index, _check_vector_index

# partition and up to four free dimensions
_MAX_DIMENSIONS = 5


def access_pattern(
    tensor: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: int | None,
    scalar_offset: Any,
    vector_offset: NkiTensor | None,
    indirect_dim: int,
    dtype: Any,
) -> NkiTensor:
    """The view that `pattern` describes over the memory of `tensor`.

    Args:
        tensor: any view; only its offset, dtype and the stride of `indirect_dim` matter.
        pattern: `[[step, count], ...]` in elements of the resulting dtype, outermost first. On chip
            the first pair is the partitions; its step is the elements of a partition.
        offset: elements to add to the view's own offset.
        scalar_offset: a register or `[1, 1]` SBUF tensor; the view moves by its value times the
            stride of `indirect_dim`.
        vector_offset: an SBUF tensor `[P, 1]`; row `p` starts at its value times that stride.
        indirect_dim: which dimension of `tensor` the dynamic index counts.
        dtype: another type to see the bytes as; the tensor's own by default.

    Raises:
        NkiValidationError: the pattern leaves the tensor, or is none that the hardware takes.
    """
    new = tensor.dtype if dtype is None else dtypes.resolve(dtype)
    steps, counts = _pairs(pattern)
    old_item, item = tensor.dtype.itemsize, new.itemsize
    inherited = tensor.offset * old_item
    if inherited % item:
        raise NkiValidationError(
            f"ap: the offset of {tensor!r}, {inherited} bytes, does not divide by {item} ({new})"
        )
    start = inherited // item + (0 if offset is None else operator.index(offset))
    if tensor.on_chip:
        steps = _check_on_chip(tensor, item, start, steps, counts)
    dynamic = _dynamic(tensor, scalar_offset, vector_offset, indirect_dim, item)
    if not tensor.on_chip:
        _check_hbm(tensor, item, start, steps, counts, dynamic)
    return NkiTensor(tensor.storage, new, counts, steps, start, dynamic)


def _pairs(pattern: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
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
    return tuple(step for step, _ in pairs), tuple(count for _, count in pairs)


def _check_on_chip(
    tensor: NkiTensor, item: int, start: int, steps: tuple[int, ...], counts: tuple[int, ...]
) -> tuple[int, ...]:
    place = tensor.storage.place
    width = place.bytes_per_partition // item
    if width * item != place.bytes_per_partition:
        raise NkiValidationError(
            f"ap: a partition of {tensor!r} is {place.bytes_per_partition} bytes, which do not "
            f"divide by {item}"
        )
    if len(counts) < 2:
        raise NkiValidationError("ap: an on-chip pattern has a partition pair and a free pair")
    if counts[0] > 1 and (steps[0] % width or steps[0] == 0):
        raise NkiValidationError(
            f"ap: the partition step is {steps[0]}; for {tensor!r} it must be {width}, the elements "
            "of a partition"
        )
    partition, free = divmod(start, width)
    partitions = (counts[0] - 1) * max(steps[0] // width, 1) + 1
    last = free + sum(s * (n - 1) for s, n in zip(steps[1:], counts[1:], strict=True))
    if start < 0 or partition + partitions > place.partitions or last >= width:
        raise NkiValidationError(
            f"ap: the pattern {list(zip(steps, counts, strict=True))} at offset {start} reaches "
            f"partition {partition + partitions - 1}, element {last}; {tensor!r} has "
            f"{place.partitions} partitions of {width} elements"
        )
    # a single partition may be given with any step; the stride of memory is what it is
    return (steps[0] if counts[0] > 1 else width, *steps[1:])


def _check_hbm(
    tensor: NkiTensor,
    item: int,
    start: int,
    steps: tuple[int, ...],
    counts: tuple[int, ...],
    dynamic: Dynamic | None,
) -> None:
    total = tensor.storage.place.bytes_per_partition // item
    first = 1 if dynamic is not None and dynamic.kind == "vector" else 0
    pairs = zip(steps[first:], counts[first:], strict=True)
    last = start + sum(step * (count - 1) for step, count in pairs)
    if start < 0 or last >= total:
        raise NkiValidationError(
            f"ap: the pattern {list(zip(steps, counts, strict=True))} reaches elements {start} to "
            f"{last}; {tensor!r} lies in a tensor of {total}"
        )


def _dynamic(
    tensor: NkiTensor, scalar: Any, vector: NkiTensor | None, indirect_dim: int, item: int
) -> Dynamic | None:
    if scalar is None and vector is None:
        return tensor.dynamic
    if scalar is not None and vector is not None:
        raise NkiValidationError("ap: scalar_offset and vector_offset exclude each other")
    if tensor.dynamic is not None:
        raise NkiValidationError(f"ap: {tensor!r} has a dynamic index already; a view takes one")
    if not 0 <= indirect_dim < tensor.ndim:
        raise NkiValidationError(
            f"ap: indirect_dim is {indirect_dim}; {tensor!r} has dimensions 0..{tensor.ndim - 1}"
        )
    stride_bytes = tensor.strides[indirect_dim] * tensor.dtype.itemsize
    if stride_bytes % item:
        raise NkiValidationError(
            f"ap: the stride of dimension {indirect_dim} of {tensor!r}, {stride_bytes} bytes, does "
            f"not divide by {item}"
        )
    limit = tensor.shape[indirect_dim]
    if scalar is not None:
        _check_scalar_index(scalar, "scalar_offset")
        if tensor.on_chip and indirect_dim == 0:
            raise NkiValidationError(
                f"ap: indirect_dim is 0 for {tensor!r}; on chip the partitions take no scalar_offset"
            )
        return Dynamic("scalar", scalar, stride_bytes // item, limit)
    assert vector is not None
    _check_vector_index(vector)
    if tensor.on_chip or indirect_dim != 0:
        raise NkiValidationError(
            f"ap: vector_offset of dimension {indirect_dim} of {tensor!r}; it takes dimension 0 of "
            "an HBM tensor"
        )
    return Dynamic("vector", vector, stride_bytes // item, limit)


# Partitions that share the indices: 16 for the Vector, Scalar and GpSimd engines, and 32 for the
# Tensor engine. Which engine reads a view is not known when it is made; 16 gives the default size.
_GROUP = 16


def indirect(tensor: NkiTensor, index: NkiTensor, num_elem: int | None) -> NkiTensor:
    """Free elements of `tensor` [P, N], chosen by `index` [P, K] (int32 or uint32, in SBUF).

    In each group of 16 partitions (32 where the Tensor engine reads), element `i` of every
    partition is free element `index[i % 16, i // 16]` of that group. The result is `[P, num_elem]`,
    by default with 16 * K elements.

    Raises:
        NkiValidationError: shapes, buffers or the generation do not allow it.
    """
    from nkisim.core import current

    core = current("indirect")
    core.require_generation("indirect", 4)
    if not tensor.on_chip or not isinstance(index, NkiTensor) or not index.on_chip:
        raise NkiValidationError("indirect: the tensor and its index must both be on chip")
    if index.buffer is not MemoryRegion.sbuf or not index.dtype.is_integer:
        raise NkiValidationError(f"indirect: index is {index!r}; it must be integers in SBUF")
    if index.shape[0] != tensor.shape[0]:
        raise NkiValidationError(
            f"indirect: index has {index.shape[0]} partitions, the tensor {tensor.shape[0]}"
        )
    if tensor.dynamic is not None or not tensor.is_contiguous():
        raise NkiValidationError(f"indirect: {tensor!r} must be a contiguous static view")
    per_index = index.size // index.shape[0]
    count = per_index * _GROUP if num_elem is None else operator.index(num_elem)
    if not 1 <= count <= per_index * 2 * _GROUP:
        raise NkiValidationError(
            f"indirect: num_elem is {count}; an index of {per_index} columns allows 1 to "
            f"{per_index * 2 * _GROUP}"
        )
    dynamic = Dynamic("gather", index, 1, tensor.size // tensor.shape[0])
    return NkiTensor(
        tensor.storage, tensor.dtype, (tensor.shape[0], count), (tensor.strides[0], 1),
        tensor.offset, dynamic,
    )  # fmt: skip
