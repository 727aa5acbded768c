"""Reductions along free axes, and what is composed of them."""

from __future__ import annotations

import math
import operator
from typing import Any

from nkisim import dtypes, operations
from nkisim import isa as nisa
from nkisim.core import Core, current
from nkisim.dtypes import DType
from nkisim.errors import NkiValidationError
from nkisim.language import operands
from nkisim.operations import Operation
from nkisim.tensor import NkiTensor

_INSTRUCTION_OPS: dict[str, Operation] = {
    "sum": operations.add,
    "max": operations.maximum,
    "min": operations.minimum,
    "prod": operations.multiply,
}


def reduce(
    name: str, x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False
) -> NkiTensor:
    """A new SBUF tensor of `x` reduced by `sum`, `max`, `min`, `prod`, `mean` or `var`.

    Args:
        x: SBUF or PSUM.
        axis: one free axis or several; they are computed in fp32.
        dtype: of the result; that of `x` by default.
        keepdims: the reduced axes stay, with size 1. `var` always keeps them.

    Returns:
        Without the reduced axes, but of two dimensions at least: `[P, 1]` of `[P, N]`.

    Raises:
        NkiValidationError: `axis` has the partition axis in it, or one that `x` has not.
    """
    what = f"nl.{name}"
    core = current(what)
    x = operands.on_chip(what, "x", x)
    axes = _axes(what, axis, x)
    kind = operands.chosen(dtype, x.dtype)
    if name in _INSTRUCTION_OPS:
        found = _reduced(core, _INSTRUCTION_OPS[name], x, axes, kind)
    elif name == "mean":
        found = _mean(core, x, axes, kind)
    else:
        return _variance(core, x, axes, kind)
    return found if keepdims else _without(found, axes)


def _axes(what: str, axis: Any, x: NkiTensor) -> tuple[int, ...]:
    """`axis` as increasing positive numbers."""
    parts = axis if isinstance(axis, (list, tuple)) else (axis,)
    numbers = [operator.index(part) for part in parts]
    if not numbers or any(not -x.ndim <= number < x.ndim for number in numbers):
        raise NkiValidationError(f"{what}: axis is {axis!r}; {x!r} has axes 0..{x.ndim - 1}")
    axes = tuple(sorted({number % x.ndim for number in numbers}))
    if len(axes) != len(numbers):
        raise NkiValidationError(f"{what}: axis is {axis!r}; an axis stands in it twice")
    if axes[0] == 0:
        raise NkiValidationError(
            f"{what}: axis is {axis!r}, with the partition axis of {x!r}; only free axes are "
            "reduced (nisa.tensor_partition_reduce and matmuls reduce partitions)"
        )
    return axes


def _reduced(
    core: Core, op: Operation, x: NkiTensor, axes: tuple[int, ...], kind: DType
) -> NkiTensor:
    """`nisa.tensor_reduce`, with the reduced axes kept as size 1."""
    kept = tuple(1 if i in axes else size for i, size in enumerate(x.shape))
    dst = operands.tile(core, kept, kind)
    # the instruction reduces the innermost axes
    order = [i for i in range(x.ndim) if i not in axes] + list(axes)
    innermost = tuple(range(x.ndim - len(axes), x.ndim))
    nisa.tensor_reduce(_without(dst, axes), op, x.permute(order), innermost)
    return dst


def _without(x: NkiTensor, axes: tuple[int, ...]) -> NkiTensor:
    """`x` without the axes, whose sizes are 1; `[P, 1]` where no other free axis is left."""
    free = tuple(size for i, size in enumerate(x.shape) if i and i not in axes)
    return x.reshape((x.shape[0], *(free or (1,))))


def _count(x: NkiTensor, axes: tuple[int, ...]) -> int:
    return math.prod(x.shape[axis] for axis in axes)


def _mean(core: Core, x: NkiTensor, axes: tuple[int, ...], kind: DType) -> NkiTensor:
    total = _reduced(core, operations.add, x, axes, dtypes.float32)
    mean = operands.tile(core, total.shape, kind)
    nisa.tensor_scalar(mean, total, operations.multiply, 1 / _count(x, axes))
    return mean


def _variance(core: Core, x: NkiTensor, axes: tuple[int, ...], kind: DType) -> NkiTensor:
    """The mean of the squared distances to the mean, which cancels less than E[x^2] - E[x]^2."""
    mean = _mean(core, x, axes, dtypes.float32)
    distance = operands.tile(core, x.shape, dtypes.float32)
    stretched = operands.stretched("nl.var", "mean", mean, x.shape)
    nisa.tensor_tensor(distance, x, stretched, operations.subtract)
    nisa.tensor_tensor(distance, distance, distance, operations.multiply)
    return _mean(core, distance, axes, kind)


def all(x: NkiTensor, axis: Any, dtype: Any = None) -> NkiTensor:
    """A new SBUF tensor: 1 where every element of `x` along `axis` is nonzero, else 0.

    Args and returns: as for `reduce`, without the reduced axes.
    """
    what = "nl.all"
    core = current(what)
    x = operands.on_chip(what, "x", x)
    axes = _axes(what, axis, x)
    kind = operands.chosen(dtype, x.dtype)
    return _without(_reduced(core, operations.logical_and, x, axes, kind), axes)


def softmax(x: NkiTensor, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """A new SBUF tensor of `exp(x - max) / sum(exp(x - max))` along `axis`; inside in fp32.

    Args:
        x: SBUF or PSUM.
        axis: one free axis or several.
        dtype: of the result; that of `x` by default.
    """
    what = "nl.softmax"
    core = current(what)
    x = operands.on_chip(what, "x", x)
    axes = _axes(what, axis, x)
    largest = _reduced(core, operations.maximum, x, axes, dtypes.float32)
    powers = operands.tile(core, x.shape, dtypes.float32)
    stretched = operands.stretched(what, "max", largest, x.shape)
    nisa.tensor_tensor(powers, x, stretched, operations.subtract)
    nisa.activation(powers, operations.exp, powers)
    total = _reduced(core, operations.add, powers, axes, dtypes.float32)
    nisa.reciprocal(total, total)
    dst = operands.tile(core, x.shape, operands.chosen(dtype, x.dtype))
    stretched = operands.stretched(what, "sum", total, x.shape)
    nisa.tensor_tensor(dst, powers, stretched, operations.multiply)
    return dst


def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Any,
    n: int,
    epsilon: float = 1e-6,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """A new SBUF tensor of `x / sqrt(sum(x^2) / n + epsilon) * w`, the sum along `axis`.

    Args:
        x: SBUF or PSUM.
        w: weights, with the partitions of `x`; each free axis has the size of `x`, or 1.
        axis: one free axis or several.
        n: how many values the mean is over; at least 1.
        epsilon: added to the mean of the squares.
        dtype: of the result; that of `x` by default.
        compute_dtype: of what is kept between the steps; float32 by default.
    """
    what = "nl.rms_norm"
    core = current(what)
    x = operands.on_chip(what, "x", x)
    axes = _axes(what, axis, x)
    weights = operands.stretched(what, "w", operands.on_chip(what, "w", w), x.shape)
    inner = operands.chosen(compute_dtype, dtypes.float32)
    if operator.index(n) < 1:
        raise NkiValidationError(f"{what}: n is {n}; it must be at least 1")
    squares = operands.tile(core, x.shape, inner)
    nisa.activation(squares, operations.square, x)
    scale = _reduced(core, operations.add, squares, axes, inner)
    nisa.tensor_scalar(
        scale, scale, operations.multiply, 1 / n, op1=operations.add, operand1=float(epsilon)
    )
    nisa.activation(scale, operations.rsqrt, scale)
    normed = operands.tile(core, x.shape, inner)
    stretched = operands.stretched(what, "the norm", scale, x.shape)
    nisa.tensor_tensor(normed, x, stretched, operations.multiply)
    dst = operands.tile(core, x.shape, operands.chosen(dtype, x.dtype))
    nisa.tensor_tensor(dst, normed, weights, operations.multiply)
    return dst
