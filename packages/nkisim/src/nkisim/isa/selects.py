"""Instructions of the Vector engine that choose between elements, or between partitions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from nkisim import dtypes, search
from nkisim.core import Core, current
from nkisim.enums import Engine, ReduceCmd
from nkisim.isa import accumulators, checks, operators, values
from nkisim.isa.accumulators import Reduction
from nkisim.operations import maximum
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

FP32_MIN = float(np.finfo(np.float32).min)

_PREDICATES = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16)
_NOT_SELECTED = (dtypes.tfloat32, dtypes.int32, dtypes.uint32)

_COMPARISONS: dict[str, Callable[..., Any]] = {
    "equal": np.equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
# indices are compared in fp32, which holds integers up to this
_MAX_INDEX = 1 << 24


def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    reduce_op: Any = maximum,
    reverse_pred: bool = False,
    name: str | None = None,
) -> Instruction:
    """`dst = where(predicate, on_true, on_false)`, with the row maximum in the accumulators.

    Args:
        dst, predicate, on_true: SBUF or PSUM, equal partitions and elements; `predicate` and
            `on_true` not both in PSUM. `predicate` is int8, uint8, int16 or uint16, where anything
            but 0 is true; `on_true` any type but tfloat32, int32 and uint32.
        on_false: a number or a [P, 1] tensor.
        reduce_res: [P, 1], a floating-point type; receives the accumulators.
        reduce_cmd: see `nkisim.isa.accumulators.Reduction`; there is nothing to load.
        reduce_op: maximum.
        reverse_pred: exchange true and false.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.select_reduce")
    what = "select_reduce"
    checks.operand(core, what, "dst", dst)
    checks.operand(core, what, "predicate", predicate)
    checks.operand(core, what, "on_true", on_true)
    checks.same_size(core, what, "dst", dst, "predicate", predicate)
    checks.same_size(core, what, "dst", dst, "on_true", on_true)
    checks.not_both_psum(core, what, predicate=predicate, on_true=on_true)
    checks.no_packed(core, what, dst=dst, on_true=on_true)
    checks.dtype_in(core, what, "predicate", predicate, _PREDICATES)
    if on_true.dtype in _NOT_SELECTED:
        core.violation(
            "constraint",
            f"{what}: on_true is {on_true.dtype}; any type is allowed but tfloat32, int32, uint32",
        )
    reads = [on_true, predicate]
    checks.scalar_operand(core, what, "on_false", on_false, dst, reads)
    reduction = _row_maximum(core, what, reduce_op, reduce_cmd, reduce_res, dst)
    instruction = core.issue(what, Engine.vector, reduction.written(dst), reads, name)
    if core.numerics:
        chosen = values.raw(predicate) != 0
        if reverse_pred:
            chosen = ~chosen
        result = _select(chosen, values.single(on_true), values.scalar(on_false))
        accumulators.finish(core, what, dst, result, reduction)
    return instruction


def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: Any = ReduceCmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = maximum,
    range_start: int = 0,
    on_false_value: Any = FP32_MIN,
    name: str | None = None,
) -> Instruction:
    """`dst[i] = on_true_tile[i]` where `range_start + i` lies within bounds, else fp32's minimum.

    Within bounds means `comp_op0(range_start + i, bound0)` and `comp_op1(range_start + i, bound1)`.
    The row maximum goes to the accumulators; in a narrower `dst` fp32's minimum becomes -inf, and
    the maximum is taken before that.

    Args:
        dst, on_true_tile: SBUF or PSUM, equal partitions and elements, floating-point types.
        comp_op0, comp_op1: equal, less, less_equal, greater or greater_equal.
        bound0, bound1: fp32 [P, 1].
        reduce_cmd: see `nkisim.isa.accumulators.Reduction`; there is nothing to load.
        reduce_res: [P, 1], a floating-point type; receives the accumulators.
        reduce_op: maximum.
        range_start: the index of the first element; with the others it stays below 2 ** 24.
        on_false_value: fp32's minimum; nothing else is taken.

    Raises:
        NkiValidationError: an operand breaks a constraint, or the target is older than gen3.
    """
    core = current("nisa.range_select")
    what = "range_select"
    core.require_generation(what, 3)
    first = operators.one_of(core, what, "comp_op0", comp_op0, tuple(_COMPARISONS))
    second = operators.one_of(core, what, "comp_op1", comp_op1, tuple(_COMPARISONS))
    checks.operand(core, what, "dst", dst)
    checks.operand(core, what, "on_true_tile", on_true_tile)
    checks.same_size(core, what, "dst", dst, "on_true_tile", on_true_tile)
    for operand_name, tile in (("dst", dst), ("on_true_tile", on_true_tile)):
        if not tile.dtype.is_float:
            core.violation(
                "constraint",
                f"{what}: {operand_name} is {tile.dtype}; it must be a floating-point type",
            )
    for operand_name, bound in (("bound0", bound0), ("bound1", bound1)):
        checks.operand(core, what, operand_name, bound)
        checks.column(core, what, operand_name, bound, dst)
        checks.dtype_in(core, what, operand_name, bound, (dtypes.float32,))
    begin = _check_range(core, what, range_start, dst)
    if not checks.is_number(on_false_value) or np.float32(on_false_value) != np.float32(FP32_MIN):
        core.violation(
            "constraint",
            f"{what}: on_false_value is {on_false_value!r}; it must be {FP32_MIN!r}",
        )
    reduction = _row_maximum(core, what, reduce_op, reduce_cmd, reduce_res, dst)
    reads = (on_true_tile, bound0, bound1)
    instruction = core.issue(what, Engine.vector, reduction.written(dst), reads, name)
    if core.numerics:
        index = np.arange(begin, begin + dst.access().elements, dtype=np.float32)
        chosen = _COMPARISONS[first.name](index, values.single(bound0))
        chosen &= _COMPARISONS[second.name](index, values.single(bound1))
        result = _select(chosen, values.single(on_true_tile), np.float32(on_false_value))
        accumulators.finish(core, what, dst, result, reduction)
    return instruction


def _check_range(core: Core, what: str, range_start: Any, dst: NkiTensor) -> int:
    if not checks.is_number(range_start) or range_start != int(range_start):
        raise TypeError(f"{what}: range_start is {range_start!r}; it must be an integer")
    elements = dst.access().elements
    if not 0 <= range_start <= _MAX_INDEX - elements:
        core.violation(
            "constraint",
            f"{what}: range_start is {range_start!r}; for {elements} elements it must be from 0 to "
            f"{_MAX_INDEX - elements}",
        )
    return int(range_start)


def _row_maximum(
    core: Core, what: str, reduce_op: Any, reduce_cmd: Any, reduce_res: Any, dst: NkiTensor
) -> Reduction:
    alu = operators.one_of(core, what, "reduce_op", reduce_op, ("maximum",))
    command = accumulators.command(core, what, reduce_cmd)
    accumulators.check_result(core, what, reduce_res, dst)
    return Reduction(Engine.vector, alu, command, reduce_res)


def _select(chosen: Any, on_true: values.Float32, on_false: Any) -> values.Float32:
    result: values.Float32 = np.where(chosen, on_true, on_false)
    return result


def nc_stream_shuffle(
    dst: NkiTensor, src: NkiTensor, shuffle_mask: Any, name: str | None = None
) -> Instruction:
    """Partitions exchanged within quadrants of 32: `dst[32 q + i] = src[32 q + shuffle_mask[i]]`.

    Where `src` has fewer quadrants than `dst`, its last one serves for the others.

    Args:
        dst, src: SBUF or PSUM, the same dtype, equal elements of each partition; may be one tensor.
        shuffle_mask: 32 numbers from 0 to 31, or 255 to leave the partition of `dst` as it is.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.nc_stream_shuffle")
    what = "nc_stream_shuffle"
    checks.operand(core, what, "dst", dst)
    checks.operand(core, what, "src", src)
    if dst.dtype is not src.dtype:
        core.violation(
            "constraint", f"{what}: src is {src.dtype}, dst {dst.dtype}; they must agree"
        )
    if dst.access().elements != src.access().elements:
        core.violation(
            "constraint",
            f"{what}: src is {src!r} with {src.access().elements} elements of each partition, dst "
            f"{dst!r} has {dst.access().elements}; they must be equal",
        )
    _check_quadrants(core, what, dst, src)
    mask = _checked_mask(what, shuffle_mask, dst, src)
    # partitions that stay keep what was there, so that is read
    reads = (src, dst) if search.SHUFFLE_KEEP in mask[: dst.shape[0]] else (src,)
    instruction = core.issue(what, Engine.vector, (dst,), reads, name)
    if core.numerics:
        dst.assign(search.stream_shuffle(values.raw(dst), values.raw(src), mask))
    return instruction


def _check_quadrants(core: Core, what: str, dst: NkiTensor, src: NkiTensor) -> None:
    """The larger operand, in whole quadrants, says where both may start."""
    quadrant = search.QUADRANT_PARTITIONS
    active = -(-max(dst.shape[0], src.shape[0]) // quadrant) * quadrant
    for name, tensor in (("dst", dst), ("src", src)):
        first = tensor.access().p0
        if not checks.start_allowed(first, active):
            core.violation(
                "partition_start",
                f"{what}: {name} starts at partition {first}; with {active} active partitions "
                f"{'only 0 is' if active > 64 else '0 and 64 are'} allowed",
            )


def _checked_mask(what: str, shuffle_mask: Any, dst: NkiTensor, src: NkiTensor) -> list[int]:
    try:
        mask = [operator.index(entry) for entry in shuffle_mask]
    except TypeError:
        raise TypeError(
            f"{what}: shuffle_mask is {shuffle_mask!r}; it must be a list of integers"
        ) from None
    # one byte stands for each partition: only whether the mask fits them matters
    rows = np.zeros((dst.shape[0], 1), np.uint8), np.zeros((src.shape[0], 1), np.uint8)
    search.stream_shuffle(*rows, mask)
    return mask
