"""The functions of the Scalar engine, and the further ones of `nki.language`, on float32 arrays.

The hardware evaluates them as piecewise polynomials, and differs from these by 1e-6 to 1e-3,
relative. Formulas and valid ranges: activation function table of the NKI reference ("Supported
Activation Functions for NKI ISA"). At infinities every function takes its limit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nkisim.errors import NkiValidationError

Single = npt.NDArray[np.float32]
Double = npt.NDArray[np.float64]


class Function(Protocol):
    """A function of a float32 array, element by element; raises no NumPy warning.

    `out` (float32) receives the result and is returned; it may be `x`. `copy` returns `x` itself
    when there is no `out`.
    """

    def __call__(self, x: Single, out: Single | None = None) -> Single: ...


@dataclass(frozen=True, slots=True)
class ActivationFunction:
    """One function.

    Attributes:
        name: as in `nki.language`
        function: the function on arrays
        valid_range: what the hardware evaluates rightly, as (least, greatest); None for any value.
            For `reciprocal` it holds for magnitudes.
        opcode: the Scalar engine has it; otherwise only `nki.language` does
    """

    name: str
    function: Function
    valid_range: tuple[float, float] | None
    opcode: bool

    def outside(self, x: Single) -> bool:
        """Whether a value of `x` lies outside the valid range; NaN does not."""
        if self.valid_range is None:
            return False
        low, high = self.valid_range
        values = np.abs(x) if self.name == "reciprocal" else x
        # these pass over NaN
        return bool(
            np.fmin.reduce(values, axis=None) < low or np.fmax.reduce(values, axis=None) > high
        )


def resolve(op: object, argument: str = "op", relu_param: float = 0.0) -> ActivationFunction:
    """The function that `op` means: by its `__name__` (functions of `nki.language`, NumPy's) or as
    a string.

    Args:
        relu_param: the slope of `prelu` for negative values; no other function has a use for it.

    Raises:
        NkiValidationError: there is no such function; the text names `argument`.
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", None)
    found = _BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(sorted(known.name for known in _FUNCTIONS if known.opcode))
        raise NkiValidationError(f"{argument} is {op!r}; the activation functions are {known}")
    if found.name == "prelu":
        bound = functools.partial(_prelu, slope=relu_param)
        return ActivationFunction("prelu", bound, None, True)
    return found


def valid_range(name: str) -> tuple[float, float] | None:
    """What the hardware evaluates rightly of the function `name`; None for any value.

    Raises:
        NkiValidationError: there is no such function.
    """
    return resolve(name, "name").valid_range


# ---- in single precision ----


def _of_ufunc(ufunc: Callable[..., Single]) -> Function:
    def function(x: Single, out: Single | None = None) -> Single:
        with np.errstate(all="ignore"):
            return ufunc(x, out)

    return function


def _copy(x: Single, out: Single | None = None) -> Single:
    if out is None:
        return x
    np.copyto(out, x)
    return out


def _relu(x: Single, out: Single | None = None) -> Single:
    return np.maximum(x, np.float32(0.0), out)


def _prelu(x: Single, out: Single | None = None, *, slope: float) -> Single:
    with np.errstate(all="ignore"):
        return _store(np.where(x >= 0, x, x * np.float32(slope)), out)


_reciprocal: Callable[..., Single] = np.reciprocal
_add: Callable[..., Single] = np.add
_multiply: Callable[..., Single] = np.multiply
_divide: Callable[..., Single] = np.divide
_sine: Callable[..., Single] = np.sin


def _rsqrt(x: Single, out: Single | None = None) -> Single:
    with np.errstate(all="ignore"):
        root: Single = np.sqrt(x, out)
        return _reciprocal(root, root)


def _sigmoid(x: Single, out: Single | None = None) -> Single:
    with np.errstate(all="ignore"):
        return _reciprocal(_one_plus_exp_of_minus(x), out)


def _one_plus_exp_of_minus(x: Single) -> Single:
    # too large an exponential is infinite, and its reciprocal the 0 that is wanted
    value: Single = np.negative(x)
    np.exp(value, value)
    value += np.float32(1.0)
    return value


_LOWEST = np.finfo(np.float32).min


def _times_sigmoid(x: Single, argument: Single, out: Single | None) -> Single:
    """`x * sigmoid(argument)`; 0 at minus infinity."""
    with np.errstate(all="ignore"):
        return _divide(np.maximum(x, _LOWEST), _one_plus_exp_of_minus(argument), out)


def _silu(x: Single, out: Single | None = None) -> Single:
    return _times_sigmoid(x, x, out)


def _gelu_apprx_sigmoid(x: Single, out: Single | None = None) -> Single:
    with np.errstate(all="ignore"):
        return _times_sigmoid(x, np.float32(1.702) * x, out)


def _gelu_apprx_tanh(x: Single, out: Single | None = None) -> Single:
    # 1 + tanh(u) = 2 sigmoid(2u), which keeps its accuracy where tanh approaches -1
    with np.errstate(all="ignore"):
        argument = np.square(x)
        argument *= np.float32(0.044715)
        argument += np.float32(1.0)
        argument *= x
        argument *= np.float32(2.0 * math.sqrt(2.0 / math.pi))
        return _times_sigmoid(x, argument, out)


def _softplus(x: Single, out: Single | None = None) -> Single:
    with np.errstate(all="ignore"):
        tail = np.abs(x)
        np.negative(tail, tail)
        np.exp(tail, tail)
        np.log1p(tail, tail)
        return _add(np.maximum(x, np.float32(0.0)), tail, out)


def _mish(x: Single, out: Single | None = None) -> Single:
    # tanh(ln(1 + e)) = e (e + 2) / (e (e + 2) + 2) with e = exp(x); 1 in float32 from x = 20 on
    with np.errstate(all="ignore"):
        e = np.exp(np.minimum(x, np.float32(20.0)))
        e *= e + np.float32(2.0)
        e /= e + np.float32(2.0)
        return _multiply(np.maximum(x, _LOWEST), e, out)


def _sin(x: Single, out: Single | None = None) -> Single:
    """sin x in [-pi, pi]; outside, the cubic Taylor polynomial of the sine at the nearer end.

    That is how the one published value outside comes about: sin(9.0) is about 27.65.
    """
    with np.errstate(all="ignore"):
        beyond = np.abs(x) - np.float32(math.pi)
        outside = beyond > 0
        if not outside.any():
            return _sine(x, out)
        distance = beyond[outside]
        cubic = distance * (distance * distance / np.float32(6.0) - np.float32(1.0))
        cubic *= np.sign(x[outside])
        result = _sine(x, out)
        result[outside] = cubic
        return result


def _store(values: Single, out: Single | None) -> Single:
    if out is None:
        return values
    out[...] = values
    return out


# ---- in double precision, where single precision would lose digits ----


def _in_double(formula: Callable[[Double], Double]) -> Function:
    """`formula` between conversions; values are held to +-1e30, whose results are the limits."""

    def function(x: Single, out: Single | None = None) -> Single:
        with np.errstate(all="ignore"):
            wide = np.clip(x.astype(np.float64), -1e30, 1e30)
            return _store(formula(wide).astype(np.float32), out)

    return function


def _sigmoid_double(x: Double) -> Double:
    return 1.0 / (1.0 + np.exp(-x))


def _silu_dx(x: Double) -> Double:
    # sigmoid(-x) is 1 - sigmoid(x) with all its digits
    return _sigmoid_double(x) * (1.0 + x * _sigmoid_double(-x))


def _gelu_apprx_sigmoid_dx(x: Double) -> Double:
    return _silu_dx(1.702 * x)


def _gelu_dx(x: Double) -> Double:
    density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    return 0.5 * _erfc(-x / math.sqrt(2.0)) + x * density


def _erf_dx(x: Double) -> Double:
    return 2.0 / math.sqrt(math.pi) * np.exp(-x * x)


def _gelu(x: Single, out: Single | None = None) -> Single:
    with np.errstate(all="ignore"):
        wide = np.maximum(x, _LOWEST).astype(np.float64)
        return _store((0.5 * wide * _erfc(wide / -math.sqrt(2.0))).astype(np.float32), out)


# ---- the error function ----
#
# W. J. Cody, "Rational Chebyshev approximations for the error function", Mathematics of Computation
# 23 (1969), 631-637: one rational function for each of three intervals, to about 16 digits. Highest
# power first, as `_polynomial` takes them.

_SMALL = 0.46875
_SMALL_ABOVE = (
    1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
    3.20937758913846947e3,
)  # fmt: skip
_SMALL_BELOW = (
    1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
    2.84423683343917062e3,
)  # fmt: skip
_MIDDLE = 4.0
_MIDDLE_ABOVE = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
    2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
    1.23033935479799725e3,
)  # fmt: skip
_MIDDLE_BELOW = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
    1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3,
    1.23033935480374942e3,
)  # fmt: skip
_FAR_ABOVE = (
    1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
    1.60837851487422766e-2, 6.58749161529837803e-4,
)  # fmt: skip
_FAR_BELOW = (
    1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1,
    6.05183413124413191e-2, 2.33520497626869185e-3,
)  # fmt: skip


def _polynomial(coefficients: tuple[float, ...], x: Double) -> Double:
    value = coefficients[0] * x
    for coefficient in coefficients[1:-1]:
        value += coefficient
        value *= x
    value += coefficients[-1]
    return value


def _erf(x: Double) -> Double:
    small = np.abs(x) <= _SMALL
    result = np.empty_like(x)
    result[small] = _erf_near_zero(x[small])
    rest = x[~small]
    result[~small] = np.copysign(1.0 - _erfc_tail(np.abs(rest)), rest)
    return result


def _erfc(x: Double) -> Double:
    small = np.abs(x) <= _SMALL
    result = np.empty_like(x)
    result[small] = 1.0 - _erf_near_zero(x[small])
    rest = x[~small]
    tail = _erfc_tail(np.abs(rest))
    result[~small] = np.where(rest < 0, 2.0 - tail, tail)
    return result


def _erf_near_zero(x: Double) -> Double:
    square = x * x
    return x * _polynomial(_SMALL_ABOVE, square) / _polynomial(_SMALL_BELOW, square)


def _erfc_tail(x: Double) -> Double:
    """erfc(x) for x > 0.46875, relatively accurate; NaN stays NaN."""
    middle = x <= _MIDDLE
    factor = np.empty_like(x)
    near, far = x[middle], x[~middle]
    factor[middle] = _polynomial(_MIDDLE_ABOVE, near) / _polynomial(_MIDDLE_BELOW, near)
    inverse = 1.0 / (far * far)
    correction = inverse * _polynomial(_FAR_ABOVE, inverse) / _polynomial(_FAR_BELOW, inverse)
    factor[~middle] = (1.0 / math.sqrt(math.pi) - correction) / far
    factor *= np.exp(-x * x)
    return factor


# ---- the table ----


def _entry(
    name: str,
    function: Function | np.ufunc,
    valid: tuple[float, float] | None = None,
    opcode: bool = True,
) -> ActivationFunction:
    made: Any = _of_ufunc(function) if isinstance(function, np.ufunc) else function
    return ActivationFunction(name, made, valid, opcode)


_FUNCTIONS: tuple[ActivationFunction, ...] = (
    _entry("copy", _copy),
    _entry("square", np.square),
    _entry("sigmoid", _sigmoid),
    _entry("relu", _relu),
    _entry("prelu", functools.partial(_prelu, slope=0.0)),
    _entry("gelu", _gelu),
    _entry("gelu_dx", _in_double(_gelu_dx)),
    _entry("gelu_apprx_tanh", _gelu_apprx_tanh),
    _entry("gelu_apprx_sigmoid", _gelu_apprx_sigmoid),
    _entry("gelu_apprx_sigmoid_dx", _in_double(_gelu_apprx_sigmoid_dx)),
    _entry("silu", _silu),
    _entry("silu_dx", _in_double(_silu_dx)),
    _entry("tanh", np.tanh),
    _entry("softplus", _softplus),
    _entry("mish", _mish),
    _entry("erf", _in_double(_erf)),
    _entry("erf_dx", _in_double(_erf_dx)),
    _entry("exp", np.exp),
    _entry("log", np.log, (2.0**-64, 2.0**64)),
    _entry("sin", _sin, (-math.pi, math.pi)),
    _entry("arctan", np.arctan, (-math.pi / 2, math.pi / 2)),
    _entry("sqrt", np.sqrt, (2.0**-116, 2.0**118)),
    _entry("rsqrt", _rsqrt, (2.0**-87, 2.0**97)),
    _entry("reciprocal", np.reciprocal, (2.0**-42, 2.0**42)),
    _entry("sign", np.sign),
    _entry("abs", np.absolute),
    _entry("cos", np.cos, opcode=False),
    _entry("tan", np.tan, opcode=False),
    _entry("ceil", np.ceil, opcode=False),
    _entry("floor", np.floor, opcode=False),
    _entry("trunc", np.trunc, opcode=False),
    _entry("negative", np.negative, opcode=False),
)

_BY_NAME: dict[str, ActivationFunction] = {entry.name: entry for entry in _FUNCTIONS} | {
    # what NumPy calls its own
    "absolute": next(entry for entry in _FUNCTIONS if entry.name == "abs"),
}
