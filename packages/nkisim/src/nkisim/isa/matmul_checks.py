"""Constraints of the products of the Tensor engine."""

from __future__ import annotations

from typing import Any

from nkisim import dtypes
from nkisim.core import Core
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.isa import checks
from nkisim.tensor import NkiTensor

# fp32 and tf32 operands go together; any two of the others may meet
_WIDE = frozenset({dtypes.float32, dtypes.tfloat32})
_NARROW = frozenset({dtypes.bfloat16, dtypes.float16}) | checks.FP8

# columns of a result: one bank before gen4; all of PSUM from there
_COLUMNS_OF_A_BANK = 512


def plain(dst: Any, stationary: Any, moving: Any) -> bool:
    """Whether these are tiles that break no rule: bf16 or fp32, from partition 0 on, into fp32.

    Most are such; the rules one by one take three times as long.
    """
    if not type(dst) is type(stationary) is type(moving) is NkiTensor:
        return False
    out = dst._access or dst.access()
    left = stationary._access or stationary.access()
    right = moving._access or moving.access()
    dtype = moving.dtype
    return (
        dst.dtype is dtypes.float32
        and stationary.dtype is dtype
        and (dtype is dtypes.bfloat16 or dtype is dtypes.float32)
        # from partition 0, and without a step
        and left.p1 == right.p1 == stationary.shape[0] == moving.shape[0] <= 128
        and out.p1 == dst.shape[0] == left.elements <= 128
        and out.elements == right.elements <= _COLUMNS_OF_A_BANK
        and len(dst.shape) <= checks.MAX_DIMENSIONS >= len(moving.shape)
        # the stationary operand has one free dimension
        and not left.steps
        and not (left.dynamic or right.dynamic)
        and out.place.region is MemoryRegion.psum
        and left.place.region is MemoryRegion.sbuf is right.place.region
    )


def check_dtypes(
    core: Core, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, is_transpose: bool
) -> None:
    """Which dtypes meet in a product, and what it gives."""
    op = "nc_matmul"
    a, b = stationary.dtype, moving.dtype
    if a is b is dtypes.bfloat16 and dst.dtype is dtypes.float32 and not is_transpose:
        # by far the most frequent
        return
    for name, dtype in (("stationary", a), ("moving", b)):
        if dtype not in _WIDE and dtype not in _NARROW:
            core.violation(
                "constraint",
                f"{op}: {name} is {dtype}; the PE array takes fp32, tf32, bf16, fp16, fp8",
            )
        if dtype is dtypes.float8_e4m3fn and core.target < 4:
            core.violation(
                "constraint", f"{op}: {name} is float8_e4m3fn; before gen4 it must be float8_e4m3"
            )
    if (a in _WIDE) != (b in _WIDE):
        core.violation(
            "constraint",
            f"{op}: stationary is {a} and moving {b}; if one is fp32 or tf32, both must be",
        )
    if {a, b} == {dtypes.float8_e4m3, dtypes.float8_e4m3fn}:
        core.violation(
            "constraint", f"{op}: stationary is {a} and moving {b}; the two kinds of e4m3 never mix"
        )
    _result_dtype(core, dst.dtype, a, is_transpose)


def _result_dtype(core: Core, dst: DType, operand: DType, is_transpose: bool) -> None:
    if is_transpose:
        wanted = dtypes.float16 if operand in checks.FP8 else operand
        ok = dst is operand or (operand in checks.FP8 and dst.itemsize == 2)
        if not ok:
            core.violation(
                "constraint", f"nc_matmul: dst is {dst}; a transpose of {operand} gives {wanted}"
            )
    elif dst is dtypes.bfloat16:
        core.require_generation("nc_matmul with a bfloat16 dst", 4)
    elif dst is not dtypes.float32:
        core.violation(
            "constraint", f"nc_matmul: dst is {dst}; it must be float32, or bfloat16 on gen4"
        )


def check_shapes(
    core: Core, op: str, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, rows: int
) -> None:
    """`[K, M]` and `[K, N]` into `[M, N]`; `rows` of the contraction lie in each partition."""
    if stationary.shape[0] != moving.shape[0]:
        core.violation(
            "constraint",
            f"{op}: stationary has {stationary.shape[0]} partitions and moving {moving.shape[0]}; "
            "they must be equal",
        )
    m = (stationary._access or stationary.access()).elements // rows
    n = (moving._access or moving.access()).elements // rows
    if m > 128:
        core.violation("constraint", f"{op}: stationary has {m} columns; at most 128 are allowed")
    limit = _COLUMNS_OF_A_BANK
    if core.target >= 4:
        limit = core.machine.psum_bytes_per_partition // dst.dtype.itemsize
    if n > limit:
        core.violation(
            "constraint",
            f"{op}: moving has {n} columns; on {core.target.name} with a {dst.dtype} dst at most "
            f"{limit} are allowed",
        )
    if dst.shape[0] != m or (dst._access or dst.access()).elements != n:
        core.violation(
            "constraint",
            f"{op}: dst is {dst!r} of {dst.shape[0]} x {dst.access().elements}; stationary and "
            f"moving give {m} x {n}",
        )


def check_double_row(
    core: Core, stationary: NkiTensor, moving: NkiTensor, is_transpose: bool, tile_size: Any
) -> None:
    """What `perf_mode` double_row takes."""
    op = "nc_matmul"
    core.require_generation(f"{op} with perf_mode double_row", 3)
    for name, tensor in (("stationary", stationary), ("moving", moving)):
        if tensor.ndim < 3 or tensor.shape[1] != 2:
            core.violation(
                "constraint", f"{op}: {name} is {tensor!r}; double_row takes [K, 2, columns]"
            )
        checks.dtype_in(core, op, name, tensor, checks.FP8)
    if is_transpose or (tile_size and tile_size[-1] < 128):
        core.violation(
            "constraint",
            f"{op}: double_row combines neither with is_transpose nor with column tiles",
        )


def check_stationary_dims(core: Core, stationary: NkiTensor) -> None:
    """One free dimension of the stationary operand (measured by the authors of triton-viz)."""
    access = stationary.access()
    dimensions = len(access.steps) + (access.run > stationary.dtype.itemsize)
    if dimensions > 1:
        core.violation(
            "stationary_dims",
            f"nc_matmul: stationary is {stationary!r} with {dimensions} free dimensions; Trainium2 "
            "gives wrong results for more than one",
        )


def check_indirect(
    core: Core, stationary: NkiTensor, moving: NkiTensor, is_transpose: bool, tile_position: Any
) -> None:
    """What goes with an operand whose elements a tensor chooses."""
    op = "nc_matmul"
    for name, tensor in (("stationary", stationary), ("moving", moving)):
        if not tensor.is_indirect():
            continue
        checks.dtype_in(core, op, name, tensor, _NARROW)
        if tile_position or (is_transpose and tensor is moving):
            core.violation(
                "constraint",
                f"{op}: {name} is indirect; that combines neither with tile_position nor, for "
                "moving, with is_transpose",
            )


def check_tile(
    core: Core,
    op: str,
    stationary: NkiTensor,
    moving: NkiTensor,
    position: Any,
    size: Any,
    rows_at_once: int = 1,
) -> None:
    """A part of the PE array; `rows_at_once` of the stationary operand lie in each partition."""
    if not position and not size:
        return
    try:
        (row, column), (rows, columns) = position, size
    except (TypeError, ValueError):
        raise TypeError(
            f"{op}: tile_position is {position!r} and tile_size {size!r}; both must be pairs, or "
            "neither be given"
        ) from None
    allowed = (64, 128) if core.target < 3 else (32, 64, 128)
    if rows not in allowed or columns not in allowed:
        core.violation(
            "constraint", f"{op}: tile_size is {size!r}; rows and columns must be among {allowed}"
        )
        return
    if row % rows or column % columns or row + rows > 128 or column + columns > 128:
        core.violation(
            "constraint",
            f"{op}: tile_position is {position!r}; it must be a multiple of tile_size {size!r} "
            "within 128 x 128",
        )
    if stationary.shape[0] > rows or stationary.access().elements > columns * rows_at_once:
        core.violation(
            "constraint", f"{op}: stationary {stationary!r} does not fit into tile_size {size!r}"
        )
