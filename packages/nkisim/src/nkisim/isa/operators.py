"""What instructions take as operators of the arithmetic units, and as their scalar operands."""

from __future__ import annotations

from typing import Any

from nkisim import dtypes
from nkisim.alu import AluOp, resolve
from nkisim.core import Core
from nkisim.errors import NkiValidationError
from nkisim.isa import checks, values
from nkisim.tensor import NkiTensor

# what AWS's simulator computes and its compiler does not take
_NOT_COMPILED = frozenset({"divide", "fmod", "mod"})


def operation(core: Core, what: str, argument: str, op: Any) -> AluOp:
    """The operator that `op` means, which the target must have."""
    alu = resolve(op, f"{what}: {argument}")
    if core.target < alu.min_generation:
        core.require_generation(f"{what}: {argument} {alu.name}", alu.min_generation)
    if alu.name in _NOT_COMPILED:
        core.violation("unsupported", f"{what}: {argument} is {alu.name}, which does not compile")
    if alu.name == "average":
        core.violation(
            "constraint",
            f"{what}: {argument} is average; only tensor_partition_reduce computes averages",
        )
    return alu


def binary(core: Core, what: str, argument: str, op: Any) -> AluOp:
    """An operator of two operands."""
    alu = operation(core, what, argument, op)
    if alu.unary:
        core.violation("constraint", f"{what}: {argument} is {alu.name}, which takes one operand")
    return alu


def arithmetic(core: Core, what: str, argument: str, op: Any) -> AluOp:
    """An arithmetic operator that the Vector engine has: any but `power`."""
    alu = operation(core, what, argument, op)
    if alu.kind != "arith":
        core.violation(
            "constraint", f"{what}: {argument} is {alu.name}; it must be an arithmetic operation"
        )
    if alu.name == "power":
        core.violation(
            "constraint", f"{what}: {argument} is power, which only the GpSimd engine computes"
        )
    return alu


def one_of(core: Core, what: str, argument: str, op: Any, allowed: tuple[str, ...]) -> AluOp:
    """One of some operators, by name; nothing else can be computed, whatever the rules say.

    Raises:
        NkiValidationError: it is none of them.
    """
    alu = operation(core, what, argument, op)
    if alu.name not in allowed:
        raise NkiValidationError(
            f"{what}: {argument} is {alu.name}; it must be {' or '.join(allowed)}"
        )
    return alu


def operand(
    core: Core,
    what: str,
    name: str,
    alu: AluOp,
    value: Any,
    like: NkiTensor,
    reads: list[NkiTensor],
) -> Any:
    """The second operand of `alu`: a number or a `[P, 1]` tensor, which is added to `reads`.

    Unary operators take None or 0, and get 0.
    """
    if alu.unary:
        if value is not None and (type(value) is NkiTensor or value != 0):
            core.violation("constraint", f"{what}: {name} is {value!r}; {alu.name} takes None or 0")
        return 0.0
    if value is None:
        raise TypeError(f"{what}: {name} is None; {alu.name} needs a number or a [P, 1] tensor")
    checks.scalar_operand(core, what, name, value, like, reads)
    if type(value) is NkiTensor:
        if value.dtype is not dtypes.float32 or alu.kind == "bitvec":
            checks.no_packed(core, what, **{name: value})
            checks.integers_for_bits(core, what, alu, **{name: value})
    elif alu.kind == "bitvec" and not float(value).is_integer():
        core.violation(
            "constraint",
            f"{what}: {name} is {value!r}; {alu.name} works on bits and takes integers",
        )
    return value


def apply(alu: AluOp, x: values.Array, other: Any, reverse: bool) -> values.Array:
    """`alu(x, other)`, or `alu(other, x)` with `reverse`; of unary operators always of `x`."""
    if reverse and not alu.unary:
        return alu.function(other, x)
    return alu.function(x, other)


def put(
    core: Core,
    what: str,
    tensor: NkiTensor,
    alu: AluOp,
    x: values.Float32,
    other: Any,
    reverse: bool = False,
) -> None:
    """Store `apply(alu, x, other, reverse)`, with `x` `[P, N]`, converted to the tensor's type."""
    if alu.ufunc is not None and tensor.dtype is dtypes.float32 and tensor.dynamic is None:
        target = tensor.array()
        if target.shape == x.shape:
            # no temporary, unless NumPy makes one because an operand overlaps the target
            first, second = (other, x) if reverse else (x, other)
            alu.ufunc(first, second, target)
            return
    values.put(core, what, tensor, apply(alu, x, other, reverse))


def put_bits(tensor: NkiTensor, bits: values.Array) -> None:
    """Store the results of a bit operation: bit for bit; wider types are filled by the sign."""
    tensor.assign(bits.astype(tensor.dtype.numpy, copy=False))
