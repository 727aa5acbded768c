"""The operators of the engines' arithmetic units, on NumPy arrays.

Arithmetic operators take float32 and give float32; comparisons and logical operators give 1.0 and
0.0. Bit operators take integers and never cast. Kinds and meanings: operator table of the NKI
reference ("Supported Math Operators for NKI ISA").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from nkisim.enums import NcVersion
from nkisim.errors import NkiValidationError

Array = npt.NDArray[Any]
Operand = Array | float | int
# (array, axis) -> the array without that axis
Reduction = Callable[[Array, int], Array]


class Function(Protocol):
    """An operator on operands that broadcast against each other; unary ones ignore `b`.

    `out` receives the result and is returned; it may be one of the operands. `bypass` may return
    `a` itself when there is no `out`.
    """

    def __call__(self, a: Operand, b: Operand, out: Array | None = None) -> Array: ...


@dataclass(frozen=True, slots=True)
class AluOp:
    """One operator.

    Attributes:
        name: as in `nki.language`
        kind: "arith" computes in float32, "bitvec" on the bits of integers; one instruction may not
            mix them
        function: the operator, element by element; raises no NumPy warning
        unary: the second operand is ignored
        reduce: the reduction along one axis, None where there is none. `subtract` takes all later
            elements from the first; in `abs_max` and `abs_min` the later of equal magnitudes wins.
        identity: what an accumulator of this operator starts from, None for those that have none
        min_generation: the first NeuronCore that has it
        ufunc: the NumPy ufunc that is `function` on float32 arrays, None where there is none
    """

    name: str
    kind: Literal["arith", "bitvec"]
    function: Function
    unary: bool
    reduce: Reduction | None
    identity: float | None
    min_generation: NcVersion
    ufunc: np.ufunc | None


def resolve(op: object, argument: str = "op") -> AluOp:
    """The operator that `op` means: by its `__name__` (functions of `nki.language`, NumPy's ufuncs,
    the built-in `max`, `min`, `sum`, `abs`) or as a string.

    Raises:
        NkiValidationError: there is no such operator; the text names `argument`.
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", None)
    found = _BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(sorted(known.name for known in _OPS))
        raise NkiValidationError(f"{argument} is {op!r}; the ALU operators are {known}")
    return found


# ---- float32 ----


def _of_ufunc(ufunc: Callable[..., Array]) -> Function:
    # the dtype keeps a NumPy double among the operands from making doubles of the whole array
    def function(a: Operand, b: Operand, out: Array | None = None) -> Array:
        with np.errstate(all="ignore"):
            return ufunc(a, b, out, dtype=np.float32)

    return function


def _of_unary_ufunc(ufunc: Callable[..., Array]) -> Function:
    def function(a: Operand, b: Operand = 0.0, out: Array | None = None) -> Array:
        with np.errstate(all="ignore"):
            return ufunc(a, out, dtype=np.float32)

    return function


def _of_comparison(ufunc: Callable[..., Array]) -> Function:
    def function(a: Operand, b: Operand, out: Array | None = None) -> Array:
        with np.errstate(all="ignore"):
            if out is None:
                found = ufunc(a, b, signature="ff->?", casting="same_kind")
                return np.asarray(found).astype(np.float32)
            return ufunc(a, b, out, signature="ff->?", casting="same_kind")

    return function


def _of_logical(ufunc: Callable[..., Array]) -> Function:
    # comparing first is faster than NumPy's logical functions on floating-point values
    def function(a: Operand, b: Operand, out: Array | None = None) -> Array:
        found = ufunc(np.not_equal(a, 0), np.not_equal(b, 0))
        return _store(np.asarray(found).astype(np.float32), out)

    return function


def _store(values: Array, out: Array | None) -> Array:
    if out is None:
        return values
    out[...] = values
    return out


def _bypass(a: Operand, b: Operand = 0.0, out: Array | None = None) -> Array:
    return _store(np.asarray(a), out)


def _relu(a: Operand, b: Operand = 0.0, out: Array | None = None) -> Array:
    result: Array = np.maximum(a, 0.0, out, dtype=np.float32)
    return result


_reciprocal: Callable[..., Array] = np.reciprocal


def _rsqrt(a: Operand, b: Operand = 0.0, out: Array | None = None) -> Array:
    with np.errstate(all="ignore"):
        root: Array = np.sqrt(a, out, dtype=np.float32)
        return _reciprocal(root, out)


def _of_magnitude(compare: Callable[..., Array]) -> Function:
    """abs_max, abs_min: the operand itself, not its magnitude; the second at a tie. NaN wins."""

    def function(a: Operand, b: Operand, out: Array | None = None) -> Array:
        with np.errstate(all="ignore"):
            first, second = np.asarray(a, np.float32), np.asarray(b, np.float32)
            takes_first = compare(np.abs(first), np.abs(second)) | (first != first)
        return _store(np.where(takes_first, first, second), out)

    return function


def _average(a: Operand, b: Operand, out: Array | None = None) -> Array:
    raise NkiValidationError("average is a reduction; it has no element-wise form")


# ---- reductions ----


def _sum_like(ufunc: np.ufunc) -> Reduction:
    def reduce(array: Array, axis: int) -> Array:
        with np.errstate(all="ignore"):
            return ufunc.reduce(array, axis=axis, dtype=np.float32)  # type: ignore[no-any-return]

    return reduce


def _logical_reduction(ufunc: np.ufunc) -> Reduction:
    def reduce(array: Array, axis: int) -> Array:
        return np.asarray(ufunc.reduce(array != 0, axis=axis)).astype(np.float32)

    return reduce


def _magnitude_reduction(position: Callable[..., Any]) -> Reduction:
    # argmax and argmin give the first among equals, and NaN before all: look from the end
    def reduce(array: Array, axis: int) -> Array:
        backwards = np.flip(array, axis)
        index = np.expand_dims(position(np.abs(backwards), axis=axis), axis)
        return np.take_along_axis(backwards, index, axis).squeeze(axis)

    return reduce


def _mean(array: Array, axis: int) -> Array:
    with np.errstate(all="ignore"):
        total = np.add.reduce(array, axis=axis, dtype=np.float32)
        return np.asarray(total / np.float32(array.shape[axis]))


def _bit_reduction(ufunc: np.ufunc) -> Reduction:
    def reduce(array: Array, axis: int) -> Array:
        return ufunc.reduce(_bits(array), axis=axis).view(array.dtype)  # type: ignore[no-any-return]

    return reduce


# ---- bits ----


def _bits(array: Array) -> Array:
    """The same memory as unsigned integers."""
    return _integers(array).view(f"u{array.dtype.itemsize}")


def _integers(array: Array) -> Array:
    if array.dtype.kind not in "iu":
        raise NkiValidationError(f"a bit operator takes integers, not {array.dtype}")
    return array


def _bit_operands(a: Operand, b: Operand) -> tuple[Array, Array, np.dtype[Any]]:
    """Both operands as unsigned integers of one width, and the type that the result has.

    The type is that of `a`, or of `b` where `a` is a number.
    """
    if isinstance(a, np.ndarray):
        first = _bits(a)
        return first, _bits_of(b, first.dtype), a.dtype
    second = _bits(np.asarray(b))
    return _bits_of(a, second.dtype), second, np.asarray(b).dtype


def _bits_of(value: Operand, unsigned: np.dtype[Any]) -> Array:
    if isinstance(value, np.ndarray):
        return _integers(value).astype(unsigned, copy=False)
    return np.asarray(_whole(value) % (1 << 8 * unsigned.itemsize), unsigned)


def _whole(value: float | int) -> int:
    if int(value) != value:
        raise NkiValidationError(f"a bit operator takes integers, not {value!r}")
    return int(value)


def _of_bits(ufunc: np.ufunc) -> Function:
    def function(a: Operand, b: Operand, out: Array | None = None) -> Array:
        first, second, dtype = _bit_operands(a, b)
        if out is None:
            return np.asarray(ufunc(first, second)).view(dtype)
        ufunc(first, second, out.view(first.dtype))
        return out

    return function


def _of_shift(ufunc: np.ufunc) -> Function:
    """Shifts of the bits as an unsigned number; by the width or more (or less than 0) gives 0."""
    shift = _of_bits(ufunc)

    def function(a: Operand, b: Operand, out: Array | None = None) -> Array:
        if not isinstance(b, np.ndarray):
            width = 8 * np.asarray(a).dtype.itemsize
            amount = _whole(b)
            b = amount if 0 <= amount < width else width
        elif isinstance(a, np.ndarray) and b.dtype.itemsize > a.dtype.itemsize:
            # the amount must not lose its high bits on the way to the narrower type
            width = 8 * a.dtype.itemsize
            b = np.where(_bits(b) < width, b, width).astype(b.dtype)
        return shift(a, b, out)

    return function


def _invert(a: Operand, b: Operand = 0, out: Array | None = None) -> Array:
    array = np.asarray(a)
    if out is None:
        return np.invert(_bits(array)).view(array.dtype)
    np.invert(_bits(array), out.view(f"u{out.dtype.itemsize}"))
    return out


# ---- the table ----


def _arith(
    name: str,
    function: Function,
    reduce: Reduction | None = None,
    identity: float | None = None,
    *,
    unary: bool = False,
    since: NcVersion = NcVersion.gen2,
    ufunc: np.ufunc | None = None,
) -> AluOp:
    return AluOp(name, "arith", function, unary, reduce, identity, since, ufunc)


def _plain(
    name: str, ufunc: np.ufunc, reduces: bool = False, identity: float | None = None
) -> AluOp:
    reduce = _sum_like(ufunc) if reduces else None
    return _arith(name, _of_ufunc(ufunc), reduce, identity, ufunc=ufunc)


def _bitvec(name: str, function: Function, reduce: Reduction | None = None) -> AluOp:
    return AluOp(name, "bitvec", function, name == "invert", reduce, None, NcVersion.gen2, None)


_OPS: tuple[AluOp, ...] = (
    _plain("add", np.add, True, 0.0),
    _plain("subtract", np.subtract, True, 0.0),
    _plain("multiply", np.multiply, True, 1.0),
    # The hardware's rule for NaN is not published. NaN is propagated, so that a poisoned value is
    # seen; masking in attention uses -inf, which needs no rule.
    _plain("maximum", np.maximum, True, -np.inf),
    _plain("minimum", np.minimum, True, np.inf),
    _plain("divide", np.divide),
    _plain("power", np.power),
    # the sign of `mod` is that of the divisor, of `fmod` that of the dividend
    _plain("mod", np.remainder),
    _plain("fmod", np.fmod),
    _arith("equal", _of_comparison(np.equal)),
    _arith("not_equal", _of_comparison(np.not_equal)),
    _arith("less", _of_comparison(np.less)),
    _arith("less_equal", _of_comparison(np.less_equal)),
    _arith("greater", _of_comparison(np.greater)),
    _arith("greater_equal", _of_comparison(np.greater_equal)),
    _arith("logical_and", _of_logical(np.bitwise_and), _logical_reduction(np.logical_and), 1.0),
    _arith("logical_or", _of_logical(np.bitwise_or), _logical_reduction(np.logical_or), 0.0),
    _arith("logical_xor", _of_logical(np.bitwise_xor), _logical_reduction(np.logical_xor), 0.0),
    _arith(
        "abs_max",
        _of_magnitude(np.greater),
        _magnitude_reduction(np.argmax),
        0.0,
        since=NcVersion.gen4,
    ),
    _arith(
        "abs_min",
        _of_magnitude(np.less),
        _magnitude_reduction(np.argmin),
        np.inf,
        since=NcVersion.gen4,
    ),
    _arith("abs", _of_unary_ufunc(np.absolute), unary=True),
    _arith("square", _of_unary_ufunc(np.square), unary=True, since=NcVersion.gen4),
    _arith("relu", _relu, unary=True, since=NcVersion.gen4),
    _arith("rsqrt", _rsqrt, unary=True),
    _arith("reciprocal", _of_unary_ufunc(np.reciprocal), unary=True),
    _arith("bypass", _bypass, unary=True),
    # only `tensor_partition_reduce` has it
    _arith("average", _average, _mean),
    _bitvec("bitwise_and", _of_bits(np.bitwise_and), _bit_reduction(np.bitwise_and)),
    _bitvec("bitwise_or", _of_bits(np.bitwise_or), _bit_reduction(np.bitwise_or)),
    _bitvec("bitwise_xor", _of_bits(np.bitwise_xor), _bit_reduction(np.bitwise_xor)),
    _bitvec("left_shift", _of_shift(np.left_shift)),
    _bitvec("right_shift", _of_shift(np.right_shift)),
    _bitvec("invert", _invert),
)

_BY_NAME: dict[str, AluOp] = {op.name: op for op in _OPS}
_BY_NAME |= {
    alias: _BY_NAME[name]
    for alias, name in {
        "max": "maximum",
        "min": "minimum",
        "sum": "add",
        "mean": "average",
        # what NumPy calls its own
        "absolute": "abs",
        "remainder": "mod",
    }.items()
}


# ---- exact integers ----

_INTEGER_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}


def integer(op: AluOp, a: Operand, b: Operand, dtype: npt.DTypeLike) -> Array:
    """`op` in the exact integer arithmetic of GpSimd: sums and products wrap around.

    Args:
        a, b: integer arrays, or numbers that `dtype` can hold, signed or unsigned.
        dtype: int32 or uint32; the type of the result, where comparisons give 1 and 0.

    Raises:
        NkiValidationError: `op` has no integer form, or a number does not fit.
    """
    ufunc = _INTEGER_UFUNCS.get(op.name)
    if ufunc is None:
        names = ", ".join(_INTEGER_UFUNCS)
        raise NkiValidationError(f"op is {op.name}; exact integer arithmetic has {names}")
    target = np.dtype(dtype)
    found = ufunc(_exact(a, target, "the first operand"), _exact(b, target, "the second operand"))
    return np.asarray(found).astype(target, copy=False)


def _exact(value: Operand, dtype: np.dtype[Any], operand: str) -> Array:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "iu":
            raise NkiValidationError(f"{operand} is {value.dtype}; it must be an integer type")
        return value.astype(dtype, copy=False)
    width = 8 * dtype.itemsize
    if value != int(value) or not -(1 << (width - 1)) <= value < 1 << width:
        raise NkiValidationError(f"{operand} is {value!r}; it must be an integer of {width} bits")
    # an array of one dimension: NumPy warns when numbers wrap around, and not when arrays do
    return np.array([int(value) % (1 << width)], f"u{dtype.itemsize}").view(dtype)
