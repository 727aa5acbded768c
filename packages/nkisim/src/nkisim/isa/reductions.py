"""Instructions of the Vector engine that reduce or scan along the free dimensions."""

from __future__ import annotations

import math
import operator
from typing import Any

from nkisim import dtypes, scans
from nkisim.alu import AluOp
from nkisim.core import Core, current
from nkisim.enums import Engine, ReduceCmd
from nkisim.isa import accumulators, checks, operators, values
from nkisim.isa.accumulators import Reduction
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

_REDUCTIONS = (
    "add", "subtract", "multiply", "maximum", "minimum", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "bitwise_xor",
)  # fmt: skip
_ROW_REDUCTIONS = ("add", "multiply", "maximum", "minimum")
_CUMULATIVE = ("add", "subtract", "multiply", "maximum", "minimum")
# what tensor_scalar_cumulative reads and writes
_NARROW = checks.FP8 | {
    dtypes.float32, dtypes.bfloat16, dtypes.float16, dtypes.int8, dtypes.int16, dtypes.uint8,
    dtypes.uint16,
}  # fmt: skip


def tensor_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    axis: Any,
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> Instruction:
    """`dst = op` over the last dimensions of `data`.

    Args:
        dst: SBUF or PSUM, as many elements of each partition as the dimensions that stay.
        op: add, subtract (the later elements from the first), multiply, maximum, minimum, a logical
            operation or, for integers, bitwise_and, bitwise_or, bitwise_xor.
        data: SBUF or PSUM.
        axis: one dimension or a list of them; together the last ones of `data`, never dimension 0.
        negate: `dst` gets the result with the other sign; not for bit operations.
        keepdims: whether `dst` has the reduced dimensions with size 1. `dst` says so itself by its
            shape, and either shape is taken.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.tensor_reduce")
    what = "tensor_reduce"
    alu = operators.one_of(core, what, "op", op, _REDUCTIONS)
    checks.operand(core, what, "dst", dst)
    checks.operand(core, what, "data", data)
    if alu.kind == "bitvec" or not dst.dtype is data.dtype is dtypes.float32:
        checks.no_packed(core, what, dst=dst, data=data)
        checks.integers_for_bits(core, what, alu, dst=dst, data=data)
    if negate and alu.kind == "bitvec":
        core.violation(
            "constraint", f"{what}: negate is {negate!r}; the result of {alu.name} has no sign"
        )
    kept = math.prod(data.shape[1 : data.ndim - _reduced(core, what, data, axis)])
    if dst.shape[0] != data.shape[0] or dst.access().elements != kept:
        core.violation(
            "constraint",
            f"{what}: dst is {dst!r}; data {data!r} without axis {axis!r} has {data.shape[0]} "
            f"partitions of {kept} elements",
        )
    instruction = core.issue(what, Engine.vector, (dst,), (data,), name, {"op0": alu.name})
    if core.numerics:
        assert alu.reduce is not None
        source = values.raw(data) if alu.kind == "bitvec" else values.single(data)
        result = alu.reduce(source.reshape(data.shape[0], kept, -1), 2)
        if alu.kind == "bitvec":
            operators.put_bits(dst, result)
        else:
            values.put(core, what, dst, -result if negate else result)
    return instruction


def _reduced(core: Core, what: str, data: NkiTensor, axis: Any) -> int:
    """How many of the last dimensions are reduced."""
    try:
        axes = [operator.index(axis)]
    except TypeError:
        try:
            axes = [operator.index(each) for each in axis]
        except TypeError:
            raise TypeError(
                f"{what}: axis is {axis!r}; it must be an integer or a list of integers"
            ) from None
    rank = data.ndim
    count = len(axes)
    last = list(range(rank - count, rank))
    if not 0 < count < rank or sorted(a + rank if a < 0 else a for a in axes) != last:
        core.violation(
            "constraint",
            f"{what}: axis is {axis!r}; it must name the last dimensions of data {data!r}, one or "
            "several, but not dimension 0",
        )
        return max(1, min(count, rank - 1))
    return count


def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: Any = ReduceCmd.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> Instruction:
    """`dst = op0(data, operand0)`, reduced along all free dimensions into the accumulators.

    Args:
        dst, data: SBUF or PSUM, equal partitions and elements.
        op0: an arithmetic operation.
        operand0: a number or a [P, 1] tensor; None or 0 where `op0` takes one operand.
        reduce_op: add, multiply, maximum or minimum.
        reduce_res: [P, 1], a floating-point type; receives the accumulators. None leaves them for
            the next instruction.
        reverse0: exchange the arguments of `op0`.
        reduce_cmd: see `nkisim.isa.accumulators.Reduction`.
        reduce_init: what `load_reduce` starts from: a number or a [P, 1] tensor.
        reduce_res_negate: `reduce_res` gets the accumulators with the other sign.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.tensor_scalar_reduce")
    what = "tensor_scalar_reduce"
    alu = operators.arithmetic(core, what, "op0", op0)
    reducing = operators.one_of(core, what, "reduce_op", reduce_op, _ROW_REDUCTIONS)
    checks.operand(core, what, "dst", dst)
    checks.operand(core, what, "data", data)
    checks.same_size(core, what, "dst", dst, "data", data)
    checks.no_packed(core, what, dst=dst, data=data)
    reads = [data]
    operand0 = operators.operand(core, what, "operand0", alu, operand0, data, reads)
    command = accumulators.command(core, what, reduce_cmd, loads=True)
    accumulators.check_init(core, what, "reduce_init", reduce_init, command, dst, reads)
    accumulators.check_result(core, what, reduce_res, dst)
    reduction = Reduction(
        Engine.vector, reducing, command, reduce_res, reduce_init, bool(reduce_res_negate)
    )
    details = {"op0": alu.name, "reduce_op": reducing.name}
    instruction = core.issue(what, Engine.vector, reduction.written(dst), reads, name, details)
    if core.numerics:
        other = values.scalar(operand0)
        result = operators.apply(alu, values.single(data), other, reverse0)
        accumulators.finish(core, what, dst, result, reduction)
    return instruction


def tensor_scalar_cumulative(
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = ReduceCmd.reset_reduce,
    name: str | None = None,
) -> Instruction:
    """`dst[i] = op1(op0(src[i], imm0), dst[i - 1])`, the running value in the accumulators.

    Args:
        dst, src: SBUF or PSUM, equal partitions and elements; no 32-bit integers.
        op0: an arithmetic operation.
        op1: add, subtract (the running value from the element), multiply, maximum or minimum.
        imm0: a number or a [P, 1] tensor; None or 0 where `op0` takes one operand.
        imm1: what `load_reduce` starts from: a number or a [P, 1] tensor.
        reduce_cmd: `reset_reduce` starts from the identity (0 for subtract), `reduce` from the
            accumulators, `load_reduce` from `imm1`.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.tensor_scalar_cumulative")
    what = "tensor_scalar_cumulative"
    first = operators.arithmetic(core, what, "op0", op0)
    running = operators.one_of(core, what, "op1", op1, _CUMULATIVE)
    checks.operand(core, what, "dst", dst)
    checks.operand(core, what, "src", src)
    checks.same_size(core, what, "dst", dst, "src", src)
    checks.no_packed(core, what, dst=dst, src=src)
    checks.dtype_in(core, what, "dst", dst, _NARROW)
    checks.dtype_in(core, what, "src", src, _NARROW)
    reads = [src]
    imm0 = operators.operand(core, what, "imm0", first, imm0, src, reads)
    command = accumulators.command(core, what, reduce_cmd, loads=True)
    if not accumulators.accumulates(command):
        core.violation(
            "constraint",
            f"{what}: reduce_cmd is {command}; it must be reset_reduce, reduce or load_reduce",
        )
    accumulators.check_init(core, what, "imm1", imm1, command, dst, reads)
    reduction = Reduction(Engine.vector, running, command, None, imm1)
    details = {"op0": first.name, "op1": running.name}
    instruction = core.issue(what, Engine.vector, (dst,), reads, name, details)
    if core.numerics:
        begin = accumulators.start(core, reduction, dst)
        scale = values.scalar(imm0)
        result = scans.cumulative(first, running, values.single(src), scale, begin)
        accumulators.registers(core, Engine.vector, dst)[:] = result[:, -1]
        values.put(core, what, dst, result)
    return instruction


def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Instruction:
    """`dst[i] = op1(op0(data0[i], dst[i - 1]), data1[i])` with `dst[-1] = initial`.

    The state stays in fp32; `dst` narrows only what is written.

    Args:
        dst, data0, data1: equal partitions and elements, all free dimensions one sequence; the
            inputs not both in PSUM.
        initial: a number or a [P, 1] tensor.
        op0, op1: arithmetic operations.
        reverse0, reverse1: exchange the arguments of the operation.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.tensor_tensor_scan")
    what = "tensor_tensor_scan"
    first = operators.arithmetic(core, what, "op0", op0)
    second = operators.arithmetic(core, what, "op1", op1)
    checks.operand(core, what, "dst", dst)
    checks.operand(core, what, "data0", data0)
    checks.operand(core, what, "data1", data1)
    checks.same_size(core, what, "dst", dst, "data0", data0)
    checks.same_size(core, what, "dst", dst, "data1", data1)
    checks.not_both_psum(core, what, data0=data0, data1=data1)
    checks.no_packed(core, what, dst=dst, data0=data0, data1=data1)
    reads = [data0, data1]
    checks.scalar_operand(core, what, "initial", initial, dst, reads)
    details = {"op0": first.name, "op1": second.name}
    instruction = core.issue(what, Engine.vector, (dst,), reads, name, details)
    if core.numerics:
        _scan_values(core, dst, data0, data1, initial, (first, second), (reverse0, reverse1))
    return instruction


def _scan_values(
    core: Core,
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    alus: tuple[AluOp, AluOp],
    reverse: tuple[bool, bool],
) -> None:
    x, y = values.single(data0), values.single(data1)
    result = scans.scan(*alus, x, y, values.scalar(initial), *reverse)
    values.put(core, "tensor_tensor_scan", dst, result)
