"""Instructions of the Scalar engine: a function of each element, and the sum of a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import dtypes, functions
from nkisim.alu import AluOp
from nkisim.core import Core, current
from nkisim.enums import Engine, ReduceCmd
from nkisim.functions import ActivationFunction
from nkisim.isa import accumulators, checks, operators, values
from nkisim.isa.accumulators import Reduction
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

# what activate2 computes before the function
_STEPS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)
_REDUCTIONS = ("add", "maximum", "minimum", "abs_max", "abs_min")


def activation(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    name: str | None = None,
) -> Instruction:
    """`dst = op(data * scale + bias)`, with the row sum in the accumulators.

    Args:
        dst, data: SBUF or PSUM, equal partitions and elements.
        op: a function of the Scalar engine (`nkisim.functions`); `prelu` has the slope 0 here.
        bias: None, a number (gen3), or a [P, 1] tensor of any type but tfloat32.
        scale: a number, or an fp32 [P, 1] tensor.
        reduce_op: add; None where nothing is reduced.
        reduce_res: [P, 1], a floating-point type; receives the accumulators after `dst` is written.
        reduce_cmd: see `nkisim.isa.accumulators.Reduction`; there is nothing to load.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.activation")
    what = "activation"
    function = _function(core, what, op)
    reads = _check_operands(core, what, dst, data, bias, scale)
    reduction = _reduction(core, what, reduce_op, reduce_cmd, reduce_res, dst, ("add",))
    details = {"function": function.name, "reduces": reduce_res is not None}
    instruction = core.issue(what, Engine.scalar, reduction.written(dst), reads, name, details)
    if core.numerics:
        _finish(core, what, dst, function, _scaled(data, scale, bias), reduction)
    return instruction


def activation_reduce(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    name: str | None = None,
) -> Instruction:
    """`activation` with `reduce_cmd.reset_reduce`: `reduce_res` receives the row sum of the result.

    Args: as of `activation`; `reduce_op` and `reduce_res` must be there.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.activation_reduce")
    what = "activation_reduce"
    function = _function(core, what, op)
    reads = _check_operands(core, what, dst, data, bias, scale)
    if reduce_res is None:
        raise TypeError(f"{what}: reduce_res is None; it must be a [P, 1] tensor")
    command = ReduceCmd.reset_reduce
    reduction = _reduction(core, what, reduce_op, command, reduce_res, dst, ("add",))
    details = {"function": function.name, "reduces": True}
    instruction = core.issue(what, Engine.scalar, reduction.written(dst), reads, name, details)
    if core.numerics:
        _finish(core, what, dst, function, _scaled(data, scale, bias), reduction)
    return instruction


def activate2(
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: float = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    name: str | None = None,
) -> Instruction:
    """`dst = op(op1(op0(data, imm0), imm1))`, reduced along the row into the accumulators.

    Args:
        dst, data: SBUF or PSUM, equal partitions and elements.
        op: a function of the Scalar engine.
        imm0, imm1: numbers, or [P, 1] tensors of one dtype; without effect where the operation is
            bypass.
        op0, op1: (multiply, add), (multiply, subtract), (multiply, bypass), (add, bypass),
            (subtract, bypass) or (bypass, bypass).
        relu_param: the slope of `prelu` for negative values.
        reverse0, reverse1: exchange the arguments of the operation.
        reduce_op: add, maximum, minimum, abs_max or abs_min; None where nothing is reduced.
        reduce_res, reduce_cmd: as of `activation`.

    Raises:
        NkiValidationError: an operand breaks a constraint, or the target is older than gen4.
    """
    core = current("nisa.activate2")
    what = "activate2"
    core.require_generation(what, 4)
    function = _function(core, what, op, relu_param)
    first = operators.operation(core, what, "op0", op0)
    second = operators.operation(core, what, "op1", op1)
    if (first.name, second.name) not in _STEPS:
        core.violation(
            "constraint",
            f"{what}: op0 is {first.name} and op1 {second.name}; they must be one of "
            + ", ".join(f"({a}, {b})" for a, b in _STEPS),
        )
    _check_tiles(core, what, dst, data)
    reads = [data]
    steps = [
        (first, _immediate(core, what, "imm0", first, imm0, data, reads), bool(reverse0)),
        (second, _immediate(core, what, "imm1", second, imm1, data, reads), bool(reverse1)),
    ]
    if type(imm0) is NkiTensor and type(imm1) is NkiTensor and imm0.dtype is not imm1.dtype:
        core.violation(
            "constraint", f"{what}: imm0 is {imm0.dtype} and imm1 {imm1.dtype}; they must agree"
        )
    reduction = _reduction(core, what, reduce_op, reduce_cmd, reduce_res, dst, _REDUCTIONS)
    details = {"function": function.name, "reduces": reduce_res is not None}
    instruction = core.issue(what, Engine.scalar, reduction.written(dst), reads, name, details)
    if core.numerics:
        x = values.single(data)
        for alu, other, reverse in steps:
            x = operators.apply(alu, x, values.scalar(other), reverse)
        _finish(core, what, dst, function, x, reduction)
    return instruction


def _function(core: Core, what: str, op: Any, relu_param: float = 0.0) -> ActivationFunction:
    function = functions.resolve(op, f"{what}: op", relu_param)
    if not function.opcode:
        core.violation(
            "constraint",
            f"{what}: op is {function.name}, which the Scalar engine does not compute",
        )
    return function


def _check_tiles(core: Core, what: str, dst: NkiTensor, data: NkiTensor) -> None:
    if checks.plain(checks.ON_CHIP, dst, data):
        return
    checks.operand(core, what, "dst", dst)
    checks.operand(core, what, "data", data)
    checks.same_size(core, what, "dst", dst, "data", data)
    checks.no_packed(core, what, dst=dst, data=data)


def _check_operands(
    core: Core, what: str, dst: NkiTensor, data: NkiTensor, bias: Any, scale: Any
) -> list[NkiTensor]:
    """What the instruction reads."""
    _check_tiles(core, what, dst, data)
    reads = [data]
    checks.scalar_operand(core, what, "scale", scale, data, reads)
    if type(scale) is NkiTensor:
        checks.dtype_in(core, what, "scale", scale, (dtypes.float32,))
    if bias is None:
        return reads
    checks.scalar_operand(core, what, "bias", bias, data, reads)
    if type(bias) is not NkiTensor:
        core.require_generation(f"{what}: bias {bias!r}, a number,", 3)
    elif bias.dtype is dtypes.tfloat32 or bias.dtype.values > 1:
        core.violation(
            "constraint",
            f"{what}: bias is {bias.dtype}; it may be any type but tfloat32 and packed ones",
        )
    return reads


def _immediate(
    core: Core,
    what: str,
    name: str,
    alu: AluOp,
    value: Any,
    data: NkiTensor,
    reads: list[NkiTensor],
) -> Any:
    """The operand of one step of activate2; bypass has no use for it."""
    if alu.name == "bypass":
        return 0.0
    return operators.operand(core, what, name, alu, value, data, reads)


def _reduction(
    core: Core,
    what: str,
    reduce_op: Any,
    reduce_cmd: Any,
    reduce_res: Any,
    dst: NkiTensor,
    allowed: tuple[str, ...],
) -> Reduction:
    command = accumulators.command(core, what, reduce_cmd)
    if reduce_op is None and accumulators.accumulates(command):
        core.violation(
            "constraint",
            f"{what}: reduce_op is None; for reduce_cmd {command} it must be "
            f"{' or '.join(allowed)}",
        )
    named = "add" if reduce_op is None else reduce_op
    alu = operators.one_of(core, what, "reduce_op", named, allowed)
    accumulators.check_result(core, what, reduce_res, dst)
    return Reduction(Engine.scalar, alu, command, reduce_res)


def _scaled(data: NkiTensor, scale: Any, bias: Any) -> values.Float32:
    """`data * scale + bias` in fp32; may be a view of the memory where they change nothing."""
    x = values.single(data)
    with np.errstate(all="ignore"):
        if type(scale) is NkiTensor or scale != 1.0:
            x = np.multiply(x, values.scalar(scale))
            if bias is not None:
                np.add(x, values.scalar(bias), out=x)
        elif bias is not None:
            x = np.add(x, values.scalar(bias))
    return x


def _finish(
    core: Core,
    what: str,
    dst: NkiTensor,
    function: ActivationFunction,
    x: values.Float32,
    reduction: Reduction,
) -> None:
    if core.rules.function_range != "off" and function.outside(x):
        low, high = function.valid_range or (0.0, 0.0)
        core.violation(
            "function_range",
            f"{what}: op is {function.name} of values from {x.min():g} to {x.max():g}; the "
            f"hardware is accurate from {low:g} to {high:g}",
        )
    # a temporary may be overwritten, the memory of `data` may not
    result = function.function(x, x if x.flags.owndata else None)
    accumulators.finish(core, what, dst, result, reduction)
