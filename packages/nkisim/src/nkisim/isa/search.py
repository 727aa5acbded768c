"""The largest elements of each partition, and where they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import dtypes
from nkisim import search as leaves
from nkisim.core import Core, current
from nkisim.enums import Engine
from nkisim.isa import checks, values
from nkisim.isa.gathers import check_groups, first_of_groups
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

_SLOTS = 8
_MAX_SEARCHED = 16384
_INDICES = (dtypes.uint16, dtypes.uint32)

_MIN_ACTIVE, _ACTIVE_LIMIT = 8, 65536
_FOUND_LIMIT = 32768


def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> Instruction:
    """The 8 largest elements of each partition, in descending order; Vector engine.

    Args:
        dst: SBUF or PSUM, [P, 8].
        src: SBUF or PSUM, [P, N] with 8 <= N <= 16384, at most 3 dimensions.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.max8")
    op = "max8"
    _check_searched(core, op, "src", src)
    if src.ndim > 3:
        core.violation(
            "constraint", f"{op}: src is {src!r} of {src.ndim} dimensions; at most 3 are allowed"
        )
    _check_slots(core, op, "dst", dst, src)
    instruction = core.issue(op, Engine.vector, (dst,), (src,), name)
    if core.numerics:
        values.put(core, op, dst, leaves.max8(values.single(src)))
    return instruction


def nc_find_index8(
    dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None
) -> Instruction:
    """Where in `data` each of 8 values first stands; Vector engine.

    The free dimensions count as one. Of equal values each later one gives the next occurrence. A
    value that does not occur gives an index with all bits set.

    Args:
        dst: SBUF or PSUM, uint16 or uint32 [P, 8].
        data: SBUF or PSUM, [P, N] with 8 <= N <= 16384; compared in fp32.
        vals: SBUF or PSUM, [P, 8].

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.nc_find_index8")
    op = "nc_find_index8"
    _check_searched(core, op, "data", data)
    _check_slots(core, op, "vals", vals, data)
    _check_slots(core, op, "dst", dst, data)
    checks.dtype_in(core, op, "dst", dst, _INDICES)
    instruction = core.issue(op, Engine.vector, (dst,), (data, vals), name)
    if core.numerics:
        found = leaves.find_index8(values.single(data), values.single(vals), dst.dtype.numpy)
        dst.assign(found)
    return instruction


def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: float,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> Instruction:
    """`data` with one occurrence of each of 8 values replaced by `imm`; Vector engine.

    The values take their turns from the last to the first; each takes the first occurrence that
    none has taken.

    Args:
        dst: SBUF or PSUM, the size of `data`, and possibly `data` itself.
        data: SBUF or PSUM, [P, N] with 8 <= N <= 16384; compared in fp32.
        vals: SBUF or PSUM, [P, 8].
        imm: a number.
        dst_idx: SBUF or PSUM, uint16 or uint32 [P, 8]: which element each value replaced, with all
            bits set for a value that does not occur.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.nc_match_replace8")
    op = "nc_match_replace8"
    _check_searched(core, op, "data", data)
    _check_slots(core, op, "vals", vals, data)
    checks.operand(core, op, "dst", dst)
    checks.no_packed(core, op, dst=dst)
    checks.same_size(core, op, "data", data, "dst", dst)
    if not checks.is_number(imm):
        raise TypeError(f"{op}: imm is {imm!r}; it must be a number")
    writes = [dst]
    if dst_idx is not None:
        _check_slots(core, op, "dst_idx", dst_idx, data)
        checks.dtype_in(core, op, "dst_idx", dst_idx, _INDICES)
        writes.append(dst_idx)
    instruction = core.issue(op, Engine.vector, writes, (data, vals), name)
    if core.numerics:
        width = np.uint32 if dst_idx is None else dst_idx.dtype.numpy
        replaced, found = leaves.match_replace8(
            values.single(data), values.single(vals), float(imm), width
        )
        values.put(core, op, dst, replaced)
        if dst_idx is not None:
            dst_idx.assign(found)
    return instruction


def topk(
    val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None
) -> Instruction:
    """The K largest of the first n elements of each group of 16 partitions; GpSimd engine.

    Element j of a group is at partition `j % 16`, column `j // 16`. The K values come in ascending
    order, with the j of each. What is not documented is assumed: all 16 partitions of a group get
    the same, and of equal elements those with the lowest j are taken.

    Args:
        val_dst: SBUF, bfloat16 [P, K].
        idx_dst: SBUF, uint32 [P, K].
        src: SBUF, bfloat16 [P, W], P a multiple of 16.
        n: 8 <= n < 65536, at most 16 W; 1 <= K <= n, and K < 32768.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.topk")
    op = "topk"
    for operand_name, tensor in (("val_dst", val_dst), ("idx_dst", idx_dst), ("src", src)):
        checks.operand(core, op, operand_name, tensor, checks.SBUF)
        check_groups(core, op, operand_name, tensor)
        if tensor.shape[0] != src.shape[0]:
            core.violation(
                "constraint",
                f"{op}: {operand_name} has {tensor.shape[0]} partitions, src {src.shape[0]}; they "
                "must be equal",
            )
    checks.dtype_in(core, op, "val_dst", val_dst, (dtypes.bfloat16,))
    checks.dtype_in(core, op, "idx_dst", idx_dst, (dtypes.uint32,))
    checks.dtype_in(core, op, "src", src, (dtypes.bfloat16,))
    k = val_dst.access().elements
    _check_counts(core, src, idx_dst, n, k)
    used = first_of_groups(src, n)
    instruction = core.issue(op, Engine.gpsimd, (val_dst, idx_dst), used, name, {"n": int(n)})
    if core.numerics:
        largest, where = leaves.topk(values.raw(src), int(n), k)
        val_dst.assign(largest)
        idx_dst.assign(where)
    return instruction


def _check_counts(core: Core, src: NkiTensor, idx_dst: NkiTensor, n: Any, k: int) -> None:
    op = "topk"
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise TypeError(f"{op}: n is {n!r}; it must be an integer")
    held = leaves.GROUP_PARTITIONS * src.access().elements
    if not _MIN_ACTIVE <= n < _ACTIVE_LIMIT or n > held:
        core.violation(
            "constraint",
            f"{op}: n is {n}; {_MIN_ACTIVE} <= n < {_ACTIVE_LIMIT} must hold, and each group of 16 "
            f"partitions of src {src!r} has {held} elements",
        )
    if k > n or k >= _FOUND_LIMIT:
        core.violation(
            "constraint",
            f"{op}: val_dst has {k} elements of each partition; at most n = {n} are allowed, and "
            f"fewer than {_FOUND_LIMIT}",
        )
    if idx_dst.access().elements != k:
        core.violation(
            "constraint",
            f"{op}: idx_dst has {idx_dst.access().elements} elements of each partition, val_dst "
            f"{k}; they must be equal",
        )


def _check_searched(core: Core, op: str, name: str, tensor: NkiTensor) -> None:
    checks.operand(core, op, name, tensor)
    checks.no_packed(core, op, **{name: tensor})
    elements = tensor.access().elements
    if not _SLOTS <= elements <= _MAX_SEARCHED:
        core.violation(
            "constraint",
            f"{op}: {name} is {tensor!r} with {elements} elements of each partition; {_SLOTS} to "
            f"{_MAX_SEARCHED} are allowed",
        )


def _check_slots(core: Core, op: str, name: str, tensor: NkiTensor, like: NkiTensor) -> None:
    checks.operand(core, op, name, tensor)
    checks.no_packed(core, op, **{name: tensor})
    if tensor.shape[0] != like.shape[0] or tensor.access().elements != _SLOTS:
        core.violation(
            "constraint",
            f"{op}: {name} is {tensor!r}; it must have {_SLOTS} elements for each of "
            f"{like.shape[0]} partitions",
        )
