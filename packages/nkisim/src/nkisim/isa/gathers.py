"""Gathers within SBUF, on the GpSimd engine."""

from __future__ import annotations

from typing import Any

from nkisim import dtypes, search
from nkisim.core import Core, current
from nkisim.enums import Engine
from nkisim.errors import NkiValidationError
from nkisim.isa import checks, values
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

_RUNS = (1, 2, 4, 8, 16, 32)
_MAX_INDICES = 4096


def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> Instruction:
    """Runs of elements that the indices of each group of 16 partitions name.

    `dst[p, i, :] = src_buffer[p, k : k + num_elem_per_idx]`, where k is index i of the group of
    partition p: the group's indices count partition by partition, then column by column. They are
    in elements.

    Args:
        dst: SBUF, of the dtype of `src_buffer`, with `num_valid_indices * num_elem_per_idx`
            elements of each partition.
        src_buffer: SBUF [P, W], P a multiple of 16.
        index: SBUF, uint16 [P, C].
        num_elem_per_idx: 1, 2, 4, 8, 16 or 32.
        num_valid_indices: how many of a group's 16 C indices count, at most 4096; all by default.

    Raises:
        NkiValidationError: an operand breaks a constraint, or an index is out of range.
    """
    core = current("nisa.local_gather")
    op = "local_gather"
    for operand_name, tensor in (("dst", dst), ("src_buffer", src_buffer), ("index", index)):
        checks.operand(core, op, operand_name, tensor, checks.SBUF)
        check_groups(core, op, operand_name, tensor)
    checks.dtype_in(core, op, "index", index, (dtypes.uint16,))
    _check_same_dtype(core, op, "src_buffer", src_buffer, dst)
    run = _count(op, "num_elem_per_idx", num_elem_per_idx)
    if run not in _RUNS:
        core.violation(
            "constraint",
            f"{op}: num_elem_per_idx is {run}; it must be one of {', '.join(map(str, _RUNS))}",
        )
    held = search.GROUP_PARTITIONS * index.access().elements
    valid = (
        held if num_valid_indices is None else _count(op, "num_valid_indices", num_valid_indices)
    )
    _check_valid_indices(core, op, index, valid, held)
    _check_partitions(core, op, src_buffer, index=index, dst=dst)
    if dst.access().elements != valid * run:
        core.violation(
            "constraint",
            f"{op}: dst is {dst!r} with {dst.access().elements} elements of each partition; "
            f"num_valid_indices {valid} times num_elem_per_idx {run} are {valid * run}",
        )
    reads = [src_buffer, *first_of_groups(index, valid)]
    instruction = core.issue(op, Engine.gpsimd, (dst,), reads, name, {"per_index": run})
    if core.numerics:
        try:
            found = search.local_gather(values.raw(src_buffer), values.raw(index), run, valid)
        except NkiValidationError as error:
            raise NkiValidationError(f"{op}: {error}") from None
        dst.assign(found)
    return instruction


def nc_n_gather(
    dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None
) -> Instruction:
    """`dst[p, j] = data[p, indices[p, j]]`, with the free dimensions of each taken as one.

    Args:
        dst: SBUF, as many elements of each partition as `indices`; of the dtype of `data` it gets
            the same bits, of another one what the engines make of the values.
        data: SBUF [P, W].
        indices: SBUF, uint32 [P, J], each less than W.

    Raises:
        NkiValidationError: an operand breaks a constraint, or an index is out of range.
    """
    core = current("nisa.nc_n_gather")
    op = "nc_n_gather"
    for operand_name, tensor in (("dst", dst), ("data", data), ("indices", indices)):
        checks.operand(core, op, operand_name, tensor, checks.SBUF)
    checks.dtype_in(core, op, "indices", indices, (dtypes.uint32,))
    if dst.dtype.values > 1 or data.dtype.values > 1:
        _check_same_dtype(core, op, "data", data, dst)
    checks.same_size(core, op, "indices", indices, "dst", dst)
    _check_partitions(core, op, data, indices=indices, dst=dst)
    instruction = core.issue(op, Engine.gpsimd, (dst,), (data, indices), name)
    if core.numerics:
        same = dst.dtype is data.dtype
        try:
            found = search.n_gather(
                values.raw(data) if same else values.single(data), values.raw(indices)
            )
        except NkiValidationError as error:
            raise NkiValidationError(f"{op}: {error}") from None
        if same:
            dst.assign(found)
        else:
            values.put(core, op, dst, found)
    return instruction


def check_groups(core: Core, op: str, name: str, tensor: NkiTensor) -> None:
    """Whole groups of 16 partitions."""
    if tensor.shape[0] % search.GROUP_PARTITIONS:
        core.violation(
            "constraint",
            f"{op}: {name} has {tensor.shape[0]} partitions; they must be a multiple of "
            f"{search.GROUP_PARTITIONS}",
        )


def first_of_groups(tensor: NkiTensor, count: int) -> list[NkiTensor]:
    """The first `count` elements of each group of 16 partitions, as views.

    The elements of a group count partition by partition, then column by column, so the last column
    may be in use in some partitions only; the others need not have been written.
    """
    group = search.GROUP_PARTITIONS
    columns, rest = divmod(count, group)
    if tensor.ndim > 2 or columns >= tensor.shape[1]:
        return [tensor]
    used = [tensor[:, :columns]] if columns else []
    if rest:
        starts = range(0, tensor.shape[0], group)
        used += [tensor[p : p + rest, columns : columns + 1] for p in starts]
    return used


def _check_valid_indices(core: Core, op: str, index: NkiTensor, valid: int, held: int) -> None:
    if not 1 <= valid <= min(held, _MAX_INDICES):
        core.violation(
            "constraint",
            f"{op}: num_valid_indices is {valid}; 1 to {_MAX_INDICES} are allowed, and index "
            f"{index!r} holds {held} for each group of 16 partitions",
        )


def _check_partitions(core: Core, op: str, source: NkiTensor, **others: NkiTensor) -> None:
    for name, tensor in others.items():
        if tensor.shape[0] != source.shape[0]:
            core.violation(
                "constraint",
                f"{op}: {name} has {tensor.shape[0]} partitions, what it gathers from has "
                f"{source.shape[0]}; they must be equal",
            )


def _check_same_dtype(core: Core, op: str, name: str, source: NkiTensor, dst: NkiTensor) -> None:
    if dst.dtype is not source.dtype:
        core.violation(
            "constraint", f"{op}: dst is {dst.dtype} and {name} {source.dtype}; they must agree"
        )


def _count(op: str, name: str, value: Any) -> int:
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"{op}: {name} is {value!r}; it must be an integer") from None
