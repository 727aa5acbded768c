from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from nkisim import functions
from nkisim.errors import NkiValidationError

# a kernel prints no warnings, however odd its numbers are
pytestmark = pytest.mark.filterwarnings("error")

INF, NAN = math.inf, math.nan
UNIT = 2.0**-24  # half a unit in the last place of a float32 near 1, relative


def derivative(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def evaluate(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(x).sum(), x)
        return slope

    return evaluate


def scaled_sigmoid(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


# name: statement in double precision, least and largest argument
STATEMENTS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "copy": (lambda x: x, -1e38, 1e38),
    "square": (torch.square, -1e18, 1e18),
    "sigmoid": (torch.sigmoid, -87, 200),
    "relu": (torch.relu, -1e38, 1e38),
    # erfc keeps its digits where 1 + erf loses them
    "gelu": (lambda x: 0.5 * x * torch.erfc(-x / math.sqrt(2)), -12, 1e38),
    "gelu_dx": (derivative(F.gelu), -5, 1e38),
    "gelu_apprx_tanh": (lambda x: F.gelu(x, approximate="tanh"), -4, 1e12),
    "gelu_apprx_sigmoid": (scaled_sigmoid, -50, 1e38),
    "gelu_apprx_sigmoid_dx": (derivative(scaled_sigmoid), -50, 1e38),
    "silu": (F.silu, -87, 1e38),
    "silu_dx": (derivative(F.silu), -80, 1e38),
    "tanh": (torch.tanh, -100, 100),
    "softplus": (lambda x: torch.logaddexp(x, torch.zeros_like(x)), -87, 1e38),
    "mish": (lambda x: x * torch.tanh(torch.log1p(torch.exp(x))), -30, 500),
    "erf": (torch.erf, -1e38, 1e38),
    "erf_dx": (lambda x: 2 / math.sqrt(math.pi) * torch.exp(-x * x), -9, 9),
    "exp": (torch.exp, -87, 88),
    "log": (torch.log, 2.0**-64, 2.0**64),
    "sin": (torch.sin, -3.1415926, 3.1415926),
    "arctan": (torch.arctan, -1e20, 1e20),
    "sqrt": (torch.sqrt, 2.0**-116, 2.0**118),
    "rsqrt": (torch.rsqrt, 2.0**-87, 2.0**97),
    "reciprocal": (torch.reciprocal, 2.0**-42, 2.0**42),
    "sign": (torch.sign, -1e38, 1e38),
    "abs": (torch.abs, -1e38, 1e38),
    "cos": (torch.cos, -100, 100),
    "tan": (torch.tan, -1.5, 1.5),
    "ceil": (torch.ceil, -1e9, 1e9),
    "floor": (torch.floor, -1e9, 1e9),
    "trunc": (torch.trunc, -1e9, 1e9),
    "negative": (torch.negative, -1e38, 1e38),
}
# an error of the argument grows by its own size in an exponential
LOOSE = {"gelu_apprx_tanh": 100.0, "gelu_apprx_sigmoid": 100.0}


def arguments(low: float, high: float) -> npt.NDArray[np.float32]:
    """Values of every size between two, evenly and logarithmically."""
    magnitudes = np.geomspace(1e-30, max(abs(low), abs(high)), 2000)
    near = np.linspace(max(low, -30.0), min(high, 30.0), 4001)
    every = np.concatenate([magnitudes, -magnitudes, near, [0.0, 1.0, -1.0, 0.46875, 4.0, -4.0]])
    single = every.astype(np.float32)
    return single[(single >= low) & (single <= high)]


def evaluate(name: str, x: Any, relu_param: float = 0.0) -> npt.NDArray[np.float32]:
    function = functions.resolve(name, relu_param=relu_param).function
    return function(np.asarray(x, np.float32))


@pytest.mark.parametrize("name", STATEMENTS)
def test_against_double_precision(name: str) -> None:
    statement, low, high = STATEMENTS[name]
    x = arguments(low, high)
    exact = statement(torch.from_numpy(x.astype(np.float64))).numpy()
    result = evaluate(name, x)
    assert result.dtype == np.float32
    # what is smaller than the least normal number has fewer digits
    allowed = LOOSE.get(name, 8.0) * UNIT * np.abs(exact) + 2.0**-126
    if name in ("gelu_dx", "silu_dx", "gelu_apprx_sigmoid_dx"):
        allowed += 1e-15  # the statement's own, at the zero of the derivative
    if name == "tan":
        allowed *= 2
    wrong = np.abs(result - exact) > allowed
    assert not wrong.any(), list(zip(x[wrong], result[wrong], exact[wrong], strict=True))[:5]


@settings(deadline=None, max_examples=300)
@given(x=st.floats(width=32, allow_nan=False))
def test_error_function(x: float) -> None:
    result = float(evaluate("erf", [x])[0])
    assert result == pytest.approx(math.erf(x), rel=2 * UNIT, abs=0 if abs(x) > 1e-38 else 1e-38)


# the limits at minus infinity, infinity, and the values at 0 and far out
LIMITS: dict[str, tuple[float, float, float, float, float]] = {
    # name: at -inf, -1e30, 0, 1e30, inf
    "copy": (-INF, -1e30, 0, 1e30, INF),
    "square": (INF, INF, 0, INF, INF),
    "sigmoid": (0, 0, 0.5, 1, 1),
    "relu": (0, 0, 0, 1e30, INF),
    "gelu": (0, 0, 0, 1e30, INF),
    "gelu_dx": (0, 0, 0.5, 1, 1),
    "gelu_apprx_tanh": (0, 0, 0, 1e30, INF),
    "gelu_apprx_sigmoid": (0, 0, 0, 1e30, INF),
    "gelu_apprx_sigmoid_dx": (0, 0, 0.5, 1, 1),
    "silu": (0, 0, 0, 1e30, INF),
    "silu_dx": (0, 0, 0.5, 1, 1),
    "tanh": (-1, -1, 0, 1, 1),
    "softplus": (0, 0, math.log(2), 1e30, INF),
    "mish": (0, 0, 0, 1e30, INF),
    "erf": (-1, -1, 0, 1, 1),
    "erf_dx": (0, 0, 2 / math.sqrt(math.pi), 0, 0),
    "exp": (0, 0, 1, INF, INF),
    "log": (NAN, NAN, -INF, math.log(1e30), INF),
    "arctan": (-math.pi / 2, -math.pi / 2, 0, math.pi / 2, math.pi / 2),
    "sqrt": (NAN, NAN, 0, 1e15, INF),
    "rsqrt": (NAN, NAN, INF, 1e-15, 0),
    "reciprocal": (0, -1e-30, INF, 1e-30, 0),
    "sign": (-1, -1, 0, 1, 1),
    "abs": (INF, 1e30, 0, 1e30, INF),
    "floor": (-INF, -1e30, 0, 1e30, INF),
    "negative": (INF, 1e30, 0, -1e30, -INF),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_and_nan(name: str) -> None:
    result = evaluate(name, [-INF, -1e30, 0, 1e30, INF, NAN])
    np.testing.assert_allclose(result, [*LIMITS[name], NAN], rtol=4 * UNIT)


@pytest.mark.parametrize("name", STATEMENTS)
def test_result_goes_where_it_is_wanted(name: str) -> None:
    x = np.linspace(0.1, 9.0, 12, dtype=np.float32).reshape(3, 4)
    expected = functions.resolve(name).function(x.copy())
    out = np.zeros_like(x)
    assert functions.resolve(name).function(x, out) is out
    np.testing.assert_array_equal(out, expected)
    assert functions.resolve(name).function(x, x) is x
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("name", sorted(set(STATEMENTS) - {"copy"}))
def test_argument_is_left_alone(name: str) -> None:
    x = np.linspace(-9.0, 9.0, 32, dtype=np.float32)
    functions.resolve(name).function(x)
    np.testing.assert_array_equal(x, np.linspace(-9.0, 9.0, 32, dtype=np.float32))


def test_prelu() -> None:
    x = [-4.0, -0.0, 3.0, -INF]
    np.testing.assert_array_equal(evaluate("prelu", x, relu_param=0.25), [-1, 0, 3, -INF])
    np.testing.assert_array_equal(evaluate("prelu", x[:3]), [0, 0, 3])


def test_sine_outside_its_range_is_extrapolated() -> None:
    # the published example
    assert evaluate("sin", [9.0])[0] == pytest.approx(27.65, abs=0.005)
    assert evaluate("sin", [-9.0])[0] == pytest.approx(-27.65, abs=0.005)
    # without a step at the ends, and the sine itself between them
    x = np.array([3.1, math.pi - 1e-4, math.pi + 1e-4, 3.2], np.float32)
    np.testing.assert_allclose(evaluate("sin", x), np.sin(x.astype(np.float64)), atol=1e-5)
    np.testing.assert_array_equal(evaluate("sin", [INF, -INF, NAN]), [INF, -INF, NAN])


def test_valid_ranges() -> None:
    assert functions.valid_range("exp") is None
    assert functions.valid_range("log") == (2.0**-64, 2.0**64)
    assert functions.valid_range("sqrt") == (2.0**-116, 2.0**118)
    assert functions.valid_range("rsqrt") == (2.0**-87, 2.0**97)
    assert functions.valid_range("sin") == (-math.pi, math.pi)
    assert functions.valid_range("arctan") == (-math.pi / 2, math.pi / 2)
    with pytest.raises(NkiValidationError, match="name is 'sinh'"):
        functions.valid_range("sinh")


def test_values_outside_the_valid_range_are_seen() -> None:
    def outside(name: str, *values: float) -> bool:
        return functions.resolve(name).outside(np.array(values, np.float32))

    assert not outside("exp", INF, -1e30)
    assert not outside("sin", -3.14, 3.14, NAN)
    assert outside("sin", 0.0, 9.0)
    assert outside("log", 0.0) and not outside("log", 1e-19)
    assert not outside("reciprocal", -2.0, 2.0**42, -(2.0**-42))
    assert outside("reciprocal", -1e-20) and outside("reciprocal", 1e20)


def test_functions_are_found_by_name() -> None:
    def gelu_apprx_tanh() -> None: ...

    assert functions.resolve("exp") is functions.resolve(np.exp)
    assert functions.resolve(abs) is functions.resolve(np.abs) is functions.resolve("abs")
    assert functions.resolve(gelu_apprx_tanh).name == "gelu_apprx_tanh"
    no_opcode = {"cos", "tan", "ceil", "floor", "trunc", "negative"}
    for name in [*STATEMENTS, "prelu"]:
        assert functions.resolve(name).opcode == (name not in no_opcode)


@pytest.mark.parametrize("op", [None, "sinh", np.sinh, 3, [], object()])
def test_unknown_functions_are_named(op: object) -> None:
    with pytest.raises(NkiValidationError, match=r"^op is .*arctan.*tanh") as error:
        functions.resolve(op)
    assert repr(op) in str(error.value)
