"""Functions of `nki.language` that work element by element, made of instructions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from nkisim import dtypes, functions, operations
from nkisim import isa as nisa
from nkisim.core import current
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa import checks, values
from nkisim.language import operands
from nkisim.tensor import NkiTensor

_UNSIGNED = frozenset({dtypes.uint8, dtypes.uint16, dtypes.uint32})


def unary(name: str, x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new SBUF tensor of `name(x)`.

    Args:
        name: a function of one argument of `nki.language`.
        x: SBUF or PSUM.
        dtype: of the result; that of `x` by default.

    Raises:
        NkiValidationError: `x` breaks a constraint of the instruction behind the function.
    """
    what = f"nl.{name}"
    core = current(what)
    x = operands.on_chip(what, "x", x)
    dst = operands.tile(core, x.shape, operands.chosen(dtype, x.dtype))
    special = _SPECIAL.get(name)
    if special is not None:
        special(dst, x)
    elif functions.resolve(name).opcode:
        nisa.activation(dst, name, x)
    else:
        _further(name, dst, x)
    return dst


def _further(name: str, dst: NkiTensor, x: NkiTensor) -> None:
    """A function that `nisa.activation` does not have, as one pass of the Scalar engine."""
    core = current(f"nl.{name}")
    op = "activation"
    checks.operand(core, op, "dst", dst)
    checks.operand(core, op, "data", x)
    checks.no_packed(core, op, dst=dst, data=x)
    core.issue(op, Engine.scalar, (dst,), (x,), None, {"reduces": False, "function": name})
    if core.numerics:
        values.put(core, op, dst, functions.resolve(name).function(values.single(x)))


def _copy(dst: NkiTensor, x: NkiTensor) -> None:
    nisa.tensor_copy(dst, x)


def _reciprocal(dst: NkiTensor, x: NkiTensor) -> None:
    nisa.reciprocal(dst, x)


def _abs(dst: NkiTensor, x: NkiTensor) -> None:
    nisa.tensor_scalar(dst, x, operations.abs_, 0.0)


def _invert(dst: NkiTensor, x: NkiTensor) -> None:
    nisa.tensor_scalar(dst, x, operations.invert, None)


def _logical_not(dst: NkiTensor, x: NkiTensor) -> None:
    nisa.tensor_scalar(dst, x, operations.equal, 0.0)


def _negative(dst: NkiTensor, x: NkiTensor) -> None:
    # with an integer the product of 32-bit integers is exact
    nisa.tensor_scalar(dst, x, operations.multiply, -1 if x.dtype.is_integer else -1.0)


def _rsqrt(dst: NkiTensor, x: NkiTensor) -> None:
    # NKI has had it on GpSimd since 0.5, out of reach of PSUM
    nisa.tensor_scalar(dst, x, operations.rsqrt, 0.0, engine=Engine.gpsimd)


# pi in three parts, the first two so short that their products with whole numbers below 2**13 are
# exact in fp32 (the reduction of W. J. Cody and W. Waite, Software Manual for the Elementary
# Functions, 1980)
_PI_HIGH = float(np.round(math.pi * 2.0**9) * 2.0**-9)
_PI_MIDDLE = float(np.round((math.pi - _PI_HIGH) * 2.0**20) * 2.0**-20)
_PI_LOW = math.pi - _PI_HIGH - _PI_MIDDLE


def _sin(dst: NkiTensor, x: NkiTensor) -> None:
    """The sine of what is left of `x` after whole half turns, as `activation` takes -pi to pi.

    An odd number of half turns changes the sign.
    """
    core = current("nl.sin")
    half_turns = operands.tile(core, x.shape, dtypes.int32)
    angle = operands.tile(core, x.shape, dtypes.float32)
    # converting to an integer rounds to the nearest
    nisa.tensor_scalar(half_turns, x, operations.multiply, 1 / math.pi)
    rest = x
    for part in (_PI_HIGH, _PI_MIDDLE, _PI_LOW):
        nisa.scalar_tensor_tensor(
            angle, half_turns, operations.multiply, -part, operations.add, rest
        )
        rest = angle
    sign = operands.tile(core, x.shape, dtypes.int32)
    nisa.tensor_scalar(sign, half_turns, operations.bitwise_and, 1)
    nisa.tensor_scalar(sign, sign, operations.multiply, -2, op1=operations.add, operand1=1)
    nisa.tensor_tensor(angle, angle, sign, operations.multiply)
    nisa.activation(dst, operations.sin, angle)


_SPECIAL: dict[str, Callable[[NkiTensor, NkiTensor], None]] = {
    "copy": _copy,
    "reciprocal": _reciprocal,
    "abs": _abs,
    "invert": _invert,
    "logical_not": _logical_not,
    "negative": _negative,
    "rsqrt": _rsqrt,
    "sin": _sin,
}


def binary(name: str, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """A new SBUF tensor of `name(x, y)`.

    Args:
        name: a function of two arguments of `nki.language`.
        x, y: tensors in SBUF or PSUM of equal size, not both in PSUM; or one of them a number.
        dtype: of the result; by default that of `x`, or of `y` where `x` is a number.

    Raises:
        NkiValidationError: an operand breaks a constraint; nothing is broadcast.
        TypeError: both are numbers.
    """
    what = f"nl.{name}"
    core = current(what)
    op = getattr(operations, name)
    x_number, y_number = checks.is_number(x), checks.is_number(y)
    if x_number and y_number:
        raise TypeError(f"{what}: x is {x!r} and y {y!r}; one of them must be a tensor")
    data = operands.on_chip(what, "y", y) if x_number else operands.on_chip(what, "x", x)
    dst = operands.tile(core, data.shape, operands.chosen(dtype, data.dtype))
    if not x_number and not y_number:
        nisa.tensor_tensor(dst, x, operands.on_chip(what, "y", y), op)
        return dst
    if name == "power" and y_number:
        core.violation("unsupported", f"{what}: y is {y!r}; a number as exponent does not compile")
    nisa.tensor_scalar(dst, data, op, x if x_number else y, reverse0=x_number)
    return dst


def where(condition: NkiTensor, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """A new SBUF tensor: `x` where `condition` is nonzero, else `y`.

    Args:
        condition: SBUF or PSUM.
        x, y: numbers, or tensors of that size.
        dtype: of the result; by default that of `x`, or of `y` where `x` is a number.

    Raises:
        NkiValidationError: an operand breaks a constraint.
        TypeError: `x` and `y` are numbers, and `dtype` is not given.
    """
    what = "nl.where"
    core = current(what)
    condition = operands.on_chip(what, "condition", condition)
    tensors = [value for value in (x, y) if type(value) is NkiTensor]
    if dtype is None and not tensors:
        raise TypeError(f"{what}: x is {x!r} and y {y!r}; with two numbers it needs a dtype")
    kind = dtypes.resolve(dtype) if dtype is not None else tensors[0].dtype
    dst = operands.tile(core, condition.shape, kind)
    if checks.is_number(y):
        nisa.memset(dst, y)
    else:
        nisa.tensor_copy(dst, operands.on_chip(what, "y", y))
    source = x
    if not checks.is_number(x):
        source = operands.on_chip(what, "x", x)
        if source.dtype is not kind:
            source = unary("copy", source, kind)
    nisa.tensor_copy_predicated(dst, source, _predicate(condition))
    return dst


def _predicate(condition: NkiTensor) -> NkiTensor:
    """`condition` as unsigned integers in SBUF, as `nisa.tensor_copy_predicated` takes them."""
    if condition.dtype in _UNSIGNED and condition.buffer is MemoryRegion.sbuf:
        return condition
    made = operands.tile(current("nl.where"), condition.shape, dtypes.uint8)
    nisa.tensor_scalar(made, condition, operations.not_equal, 0.0)
    return made


def dropout(x: NkiTensor, rate: Any, dtype: Any = None) -> NkiTensor:
    """A new SBUF tensor of `x` in which each element is 0 with probability `rate`.

    What stays is not scaled by `1 / (1 - rate)`.

    Args:
        x: SBUF or PSUM.
        rate: a number, or a [P, 1] tensor.
        dtype: of the result; that of `x` by default.
    """
    what = "nl.dropout"
    core = current(what)
    x = operands.on_chip(what, "x", x)
    dst = operands.tile(core, x.shape, operands.chosen(dtype, x.dtype))
    nisa.dropout(dst, x, rate)
    return dst
