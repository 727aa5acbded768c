"""Element-wise instructions: copies, one or two tensors, and predicates."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import alu as alu_module
from nkisim import dtypes
from nkisim.alu import AluOp
from nkisim.core import Core, current
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa import checks, operators, values
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

_INT32 = frozenset({dtypes.int32, dtypes.uint32})
_COPY_ENGINES = (Engine.vector, Engine.scalar, Engine.gpsimd)
_PREDICATES = (dtypes.uint8, dtypes.uint16, dtypes.uint32)


def tensor_copy(
    dst: NkiTensor, src: NkiTensor, engine: Any = Engine.unknown, name: str | None = None
) -> Instruction:
    """`dst = src`: bit for bit in equal dtypes, else through fp32.

    Args:
        dst, src: SBUF or PSUM, equal partitions and elements; SBUF only on GpSimd.
        engine: vector (the default), scalar or gpsimd.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.tensor_copy")
    op = "tensor_copy"
    chosen = checks.choose_engine(core, op, engine, _COPY_ENGINES, Engine.vector)
    if chosen is Engine.scalar:
        core.require_generation(f"{op} on the Scalar engine", 3)
    if chosen is Engine.gpsimd or not checks.plain(checks.ON_CHIP, dst, src):
        _check_copy(core, op, chosen, dst, src)
    instruction = core.issue(op, chosen, (dst,), (src,), name)
    if core.numerics:
        if dst.dtype is src.dtype:
            dst.assign(values.raw(src))
        else:
            values.put(core, op, dst, values.single(src))
    return instruction


def _check_copy(core: Core, op: str, engine: Engine, dst: NkiTensor, src: NkiTensor) -> None:
    checks.operand(core, op, "dst", dst)
    checks.operand(core, op, "src", src)
    checks.reach(core, op, engine, dst=dst, src=src)
    checks.same_size(core, op, "dst", dst, "src", src)
    if (dst.dtype.values > 1 or src.dtype.values > 1) and dst.dtype is not src.dtype:
        core.violation(
            "constraint",
            f"{op}: dst is {dst.dtype}, src {src.dtype}; packed types never convert",
        )


def memset(
    dst: NkiTensor, value: Any, engine: Any = Engine.unknown, name: str | None = None
) -> Instruction:
    """Every element of `dst` becomes `value`.

    Args:
        dst: SBUF or PSUM.
        value: a number; an integer for integer tensors, 0 for packed types.
        engine: vector (the default) or gpsimd.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.memset")
    op = "memset"
    chosen = checks.choose_engine(core, op, engine, (Engine.vector, Engine.gpsimd), Engine.vector)
    checks.operand(core, op, "dst", dst)
    checks.reach(core, op, chosen, dst=dst)
    if not checks.is_number(value):
        raise TypeError(f"{op}: value is {value!r}; it must be a number")
    if dst.dtype.is_integer and not isinstance(value, (int, np.integer)):
        core.violation(
            "constraint", f"{op}: value is {value!r}; for a {dst.dtype} dst it must be an integer"
        )
    if dst.dtype.values > 1 and value != 0:
        core.violation("constraint", f"{op}: value is {value!r}; a {dst.dtype} dst takes only 0")
    details = {"value": float(value)}
    instruction = core.issue(op, chosen, (dst,), (), name, details)
    if core.numerics:
        if dst.dtype in checks.FP8:
            # the value may be too large for so narrow a type
            filled = np.full((dst.shape[0], dst.access().elements), value, np.float32)
            values.put(core, op, dst, filled)
        elif dst.dynamic is None:
            dst.array()[...] = dtypes.cast(np.asarray(value), dst.dtype)
        else:
            filled = np.full((dst.shape[0], dst.access().elements), value)
            dst.assign(dtypes.cast(filled, dst.dtype))
    return instruction


def tensor_copy_predicated(
    dst: NkiTensor,
    src: Any,
    predicate: NkiTensor,
    reverse_pred: bool = False,
    name: str | None = None,
) -> Instruction:
    """`dst = src` where `predicate` is nonzero (zero with `reverse_pred`); elsewhere unchanged.

    Args:
        dst: SBUF or PSUM.
        src: a number, or a tensor of the size and dtype of `dst`.
        predicate: uint8, uint16 or uint32, of that size; not in PSUM together with `src`.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.tensor_copy_predicated")
    op = "tensor_copy_predicated"
    checks.operand(core, op, "dst", dst)
    checks.operand(core, op, "predicate", predicate)
    checks.same_size(core, op, "dst", dst, "predicate", predicate)
    checks.dtype_in(core, op, "predicate", predicate, _PREDICATES)
    reads = [predicate, dst]
    if type(src) is NkiTensor:
        checks.operand(core, op, "src", src)
        checks.same_size(core, op, "dst", dst, "src", src)
        checks.not_both_psum(core, op, src=src, predicate=predicate)
        if src.dtype is not dst.dtype:
            core.violation(
                "constraint", f"{op}: src is {src.dtype}, dst {dst.dtype}; they must agree"
            )
        reads.append(src)
    elif not checks.is_number(src):
        raise TypeError(f"{op}: src is {src!r}; it must be a number or a tensor")
    instruction = core.issue(op, Engine.vector, (dst,), reads, name)
    if core.numerics:
        chosen = values.raw(predicate) != 0
        if reverse_pred:
            chosen = ~chosen
        old = values.raw(dst)
        if type(src) is NkiTensor:
            new = values.raw(src)
        else:
            new = dtypes.cast(np.full((1, 1), src), dst.dtype)
        dst.assign(np.where(chosen, new, old))
    return instruction


def tensor_tensor(
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Any,
    engine: Any = Engine.unknown,
    name: str | None = None,
) -> Instruction:
    """`dst = op(data1, data2)`, element by element, without broadcasting.

    Args:
        dst, data1, data2: equal partitions and elements; the inputs not both in PSUM.
        op: an arithmetic or, for integers, a bit operation.
        engine: vector or gpsimd. By default vector; gpsimd for `power`, and for 32-bit integers in
            SBUF throughout, which are computed exactly there, modulo 2 ** 32.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.tensor_tensor")
    what = "tensor_tensor"
    alu = operators.binary(core, what, "op", op)
    exact = False
    if alu.kind == "bitvec" or not checks.plain(checks.SBUF, dst, data1, data2):
        _check_two(core, what, alu, dst, data1, data2)
        exact = _exact_integers(alu, dst, data1, data2)
    default = Engine.gpsimd if alu.name == "power" or exact else Engine.vector
    chosen = checks.choose_engine(core, what, engine, (Engine.vector, Engine.gpsimd), default)
    if alu.name == "power" and chosen is not Engine.gpsimd:
        core.violation("constraint", f"{what}: op is power, which only the GpSimd engine computes")
    if chosen is Engine.gpsimd:
        checks.reach(core, what, chosen, dst=dst, data1=data1, data2=data2)
    details = {"op0": alu.name}
    instruction = core.issue(what, chosen, (dst,), (data1, data2), name, details)
    if core.numerics:
        if alu.kind == "bitvec":
            result = alu.function(values.raw(data1), values.raw(data2))
            operators.put_bits(dst, result)
        elif exact and chosen is Engine.gpsimd:
            result = alu_module.integer(alu, values.raw(data1), values.raw(data2), dst.dtype.numpy)
            dst.assign(result)
        else:
            operators.put(core, what, dst, alu, values.single(data1), values.single(data2))
    return instruction


def _check_two(
    core: Core, what: str, alu: AluOp, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor
) -> None:
    checks.operand(core, what, "dst", dst)
    checks.operand(core, what, "data1", data1)
    checks.operand(core, what, "data2", data2)
    checks.same_size(core, what, "dst", dst, "data1", data1)
    checks.same_size(core, what, "dst", dst, "data2", data2)
    checks.not_both_psum(core, what, data1=data1, data2=data2)
    checks.no_packed(core, what, dst=dst, data1=data1, data2=data2)
    checks.integers_for_bits(core, what, alu, dst=dst, data1=data1, data2=data2)


def _exact_integers(alu: AluOp, *tensors: NkiTensor) -> bool:
    """32-bit integers throughout, none in PSUM, and an operation that integers have."""
    return alu.name in _EXACT and all(
        tensor.dtype in _INT32 and tensor.buffer is MemoryRegion.sbuf for tensor in tensors
    )


_EXACT = frozenset(
    {
        "add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "less",
        "less_equal", "greater", "greater_equal",
    }
)  # fmt: skip


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Any = Engine.unknown,
    name: str | None = None,
) -> Instruction:
    """`dst = op1(op0(data, operand0), operand1)`; the second step is optional.

    Args:
        dst, data: SBUF or PSUM, equal partitions and elements.
        op0, op1: operations of one kind, arithmetic or on bits. Unary ones take operand 0 or None.
        operand0, operand1: numbers, or [P, 1] tensors.
        reverse0, reverse1: exchange the arguments of the operation.
        engine: vector (the default), scalar (gen3: multiply, then add; or add) or gpsimd.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.tensor_scalar")
    what = "tensor_scalar"
    first = operators.operation(core, what, "op0", op0)
    second = None if op1 is None else operators.operation(core, what, "op1", op1)
    if first.kind == "bitvec" or not checks.plain(checks.ON_CHIP, dst, data):
        checks.operand(core, what, "dst", dst)
        checks.operand(core, what, "data", data)
        checks.same_size(core, what, "dst", dst, "data", data)
        checks.no_packed(core, what, dst=dst, data=data)
        checks.integers_for_bits(core, what, first, dst=dst, data=data)
    if second is not None and second.kind != first.kind:
        core.violation(
            "constraint",
            f"{what}: op0 is {first.name} and op1 {second.name}; both must be arithmetic, or both "
            "work on bits",
        )
    if second is None and operand1 is not None:
        core.violation("constraint", f"{what}: operand1 is {operand1!r}, but there is no op1")
    reads = [data]
    operand0 = operators.operand(core, what, "operand0", first, operand0, data, reads)
    if second is not None:
        operand1 = operators.operand(core, what, "operand1", second, operand1, data, reads)
    chosen = checks.choose_engine(core, what, engine, _COPY_ENGINES, _scalar_default(first, second))
    _check_scalar_engines(core, what, chosen, first, second, reads)
    details = {"op0": first.name, "op1": None if second is None else second.name}
    instruction = core.issue(what, chosen, (dst,), reads, name, details)
    if core.numerics:
        steps = [(first, operand0, reverse0)]
        if second is not None:
            steps.append((second, operand1, reverse1))
        _tensor_scalar_values(core, what, dst, data, steps)
    return instruction


Step = tuple[AluOp, Any, bool]


def _tensor_scalar_values(
    core: Core, what: str, dst: NkiTensor, data: NkiTensor, steps: list[Step]
) -> None:
    if steps[0][0].kind == "bitvec":
        bits = values.raw(data)
        for alu, operand, reverse in steps:
            other = values.raw(operand) if type(operand) is NkiTensor else operand
            bits = operators.apply(alu, bits, other, reverse)
        operators.put_bits(dst, bits)
        return
    if data.dtype in _INT32 and dst.dtype in _INT32 and all(_plain_integer(s) for s in steps):
        # the pattern of address arithmetic, exact in 32 bits
        whole = values.raw(data)
        for alu, operand, reverse in steps:
            first, second = (operand, whole) if reverse else (whole, operand)
            whole = alu_module.integer(alu, first, second, dst.dtype.numpy)
        dst.assign(whole)
        return
    result = values.single(data)
    for alu, operand, reverse in steps[:-1]:
        result = operators.apply(alu, result, values.scalar(operand), reverse)
    alu, operand, reverse = steps[-1]
    operators.put(core, what, dst, alu, result, values.scalar(operand), reverse)


def _plain_integer(step: Step) -> bool:
    alu, operand, _ = step
    return alu.name in ("add", "subtract", "multiply") and isinstance(operand, (int, np.integer))


def _scalar_default(first: AluOp, second: AluOp | None) -> Engine:
    # Vector has no power
    powers = first.name == "power" or (second is not None and second.name == "power")
    return Engine.gpsimd if powers else Engine.vector


def _check_scalar_engines(
    core: Core,
    what: str,
    engine: Engine,
    first: AluOp,
    second: AluOp | None,
    reads: list[NkiTensor],
) -> None:
    names = (first.name, None if second is None else second.name)
    if engine is Engine.gpsimd:
        for position, tensor in enumerate(reads):
            checks.reach(core, what, engine, **{"data" if not position else "an operand": tensor})
    elif "power" in names:
        core.violation("constraint", f"{what}: power is computed only by the GpSimd engine")
    if engine is Engine.scalar:
        core.require_generation(f"{what} on the Scalar engine", 3)
        if names not in (("multiply", None), ("multiply", "add"), ("add", None)):
            core.violation(
                "constraint",
                f"{what}: op0 is {names[0]} and op1 {names[1]}; the Scalar engine computes "
                "multiply, multiply then add, or add",
            )


def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> Instruction:
    """`dst = op1(op0(data, operand0), operand1)`, on the Vector engine.

    Args:
        dst, data, operand1: equal partitions and elements; the inputs not both in PSUM.
        op0, op1: arithmetic operations.
        operand0: a number or a [P, 1] tensor.
        reverse0, reverse1: exchange the arguments of the operation.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.scalar_tensor_tensor")
    what = "scalar_tensor_tensor"
    first = operators.arithmetic(core, what, "op0", op0)
    second = operators.arithmetic(core, what, "op1", op1)
    checks.operand(core, what, "dst", dst)
    checks.operand(core, what, "data", data)
    checks.operand(core, what, "operand1", operand1)
    checks.same_size(core, what, "dst", dst, "data", data)
    checks.same_size(core, what, "dst", dst, "operand1", operand1)
    checks.not_both_psum(core, what, data=data, operand1=operand1)
    checks.no_packed(core, what, dst=dst, data=data, operand1=operand1)
    reads = [data, operand1]
    operand0 = operators.operand(core, what, "operand0", first, operand0, data, reads)
    details = {"op0": first.name, "op1": second.name}
    instruction = core.issue(what, Engine.vector, (dst,), reads, name, details)
    if core.numerics:
        x, s = values.single(data), values.scalar(operand0)
        middle = operators.apply(first, x, s, reverse0)
        y = values.single(operand1)
        result = second.function(y, middle) if reverse1 else second.function(middle, y)
        values.put(core, what, dst, result)
    return instruction


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """`dst = 1 / data` in fp32, on the Vector engine.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.reciprocal")
    op = "reciprocal"
    checks.operand(core, op, "dst", dst)
    checks.operand(core, op, "data", data)
    checks.same_size(core, op, "dst", dst, "data", data)
    checks.no_packed(core, op, dst=dst, data=data)
    instruction = core.issue(op, Engine.vector, (dst,), (data,), name)
    if core.numerics:
        values.put(core, op, dst, np.float32(1) / values.single(data))
    return instruction
