"""The operations of `nki.language`: each is a function for kernels and a token for instructions.

`nl.add(x, y)` computes; `op=nl.add` tells an instruction what to compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nkisim.tensor import NkiTensor


class Operation:
    """An operation by name; prints as that name."""

    def __init__(self, name: str, meaning: str) -> None:
        self.__name__ = name
        self.__qualname__ = name
        self.__doc__ = meaning

    def __repr__(self) -> str:
        return self.__name__

    def __reduce__(self) -> str:
        return _VARIABLES.get(self.__name__, self.__name__)


class Unary(Operation):
    """`f(x)`, element by element."""

    def __call__(self, x: NkiTensor, dtype: Any = None) -> NkiTensor:
        """A new SBUF tensor of `f(x)`; of the dtype of `x` by default."""
        from nkisim.language import elementwise

        return elementwise.unary(self.__name__, x, dtype)


class Binary(Operation):
    """`f(x, y)`, element by element."""

    def __call__(self, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
        """A new SBUF tensor of `f(x, y)`; of the dtype of `x` by default."""
        from nkisim.language import elementwise

        return elementwise.binary(self.__name__, x, y, dtype)


class Reduction(Operation):
    """`f(x)` over some axes."""

    def __call__(
        self, x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False
    ) -> NkiTensor:
        """A new SBUF tensor of `x` reduced along `axis`; of the dtype of `x` by default."""
        from nkisim.language import reductions

        return reductions.reduce(self.__name__, x, axis, dtype, keepdims)


class Opcode(Operation):
    """Only a token; not a function."""


add = Binary("add", "x + y")
subtract = Binary("subtract", "x - y")
multiply = Binary("multiply", "x * y")
divide = Binary("divide", "x / y")
maximum = Binary("maximum", "The larger of x and y.")
minimum = Binary("minimum", "The smaller of x and y.")
abs_max = Binary("abs_max", "Whichever of x and y has the larger magnitude, with its sign; gen4.")
abs_min = Binary("abs_min", "Whichever of x and y has the smaller magnitude, with its sign; gen4.")
power = Binary("power", "x to the power y")
equal = Binary("equal", "1 where x equals y, else 0")
not_equal = Binary("not_equal", "1 where x differs from y, else 0")
less = Binary("less", "1 where x < y, else 0")
less_equal = Binary("less_equal", "1 where x <= y, else 0")
greater = Binary("greater", "1 where x > y, else 0")
greater_equal = Binary("greater_equal", "1 where x >= y, else 0")
bitwise_and = Binary("bitwise_and", "Bits that are set in both; integers.")
bitwise_or = Binary("bitwise_or", "Bits that are set in either; integers.")
bitwise_xor = Binary("bitwise_xor", "Bits that are set in one of them; integers.")
left_shift = Binary("left_shift", "x << y; integers.")
right_shift = Binary("right_shift", "x >> y without regard to the sign; integers.")
logical_and = Binary("logical_and", "1 where both are nonzero, else 0")
logical_or = Binary("logical_or", "1 where either is nonzero, else 0")
logical_xor = Binary("logical_xor", "1 where one of them is nonzero, else 0")
fmod = Binary("fmod", "The remainder of x / y, with the sign of x.")
mod = Binary("mod", "The remainder of x / y, with the sign of y.")

abs_ = Unary("abs", "The magnitude of x.")
square = Unary("square", "x * x")
invert = Unary("invert", "Every bit turned over; integers.")
logical_not = Unary("logical_not", "1 where x is 0, else 0")
exp = Unary("exp", "e to the power x")
log = Unary("log", "The natural logarithm.")
sqrt = Unary("sqrt", "The square root.")
rsqrt = Unary("rsqrt", "1 / sqrt(x)")
tanh = Unary("tanh", "The hyperbolic tangent.")
sigmoid = Unary("sigmoid", "1 / (1 + exp(-x))")
relu = Unary("relu", "max(x, 0)")
gelu = Unary("gelu", "x * Phi(x), with the exact error function.")
gelu_apprx_sigmoid = Unary("gelu_apprx_sigmoid", "x * sigmoid(1.702 x)")
gelu_apprx_tanh = Unary("gelu_apprx_tanh", "GELU by its tanh approximation.")
gelu_dx = Unary("gelu_dx", "The derivative of GELU.")
gelu_apprx_sigmoid_dx = Unary("gelu_apprx_sigmoid_dx", "The derivative of x * sigmoid(1.702 x).")
silu = Unary("silu", "x * sigmoid(x)")
silu_dx = Unary("silu_dx", "The derivative of SiLU.")
softplus = Unary("softplus", "log(1 + exp(x))")
mish = Unary("mish", "x * tanh(softplus(x))")
erf = Unary("erf", "The error function.")
erf_dx = Unary("erf_dx", "The derivative of the error function.")
reciprocal = Unary("reciprocal", "1 / x")
copy = Unary("copy", "x itself.")
sin = Unary("sin", "The sine, for any x.")
cos = Unary("cos", "The cosine.")
tan = Unary("tan", "The tangent.")
arctan = Unary("arctan", "The arc tangent.")
ceil = Unary("ceil", "The next integer not below x.")
floor = Unary("floor", "The next integer not above x.")
trunc = Unary("trunc", "x without its fraction.")
negative = Unary("negative", "-x")
sign = Unary("sign", "-1, 0 or 1 as x is negative, zero or positive.")

sum_ = Reduction("sum", "The sum; as an operator, add.")
max_ = Reduction("max", "The largest; as an operator, maximum.")
min_ = Reduction("min", "The smallest; as an operator, minimum.")
mean = Reduction("mean", "The mean.")
prod = Reduction("prod", "The product.")
var = Reduction("var", "The population variance; it keeps its axes.")

average = Opcode("average", "The mean, of tensor_partition_reduce.")
prelu = Opcode("prelu", "x where it is not negative, else relu_param * x.")
bypass = Opcode("bypass", "The first operand.")

# where a name is one of Python's own, the variable has an underscore
_VARIABLES = {"abs": "abs_", "sum": "sum_", "max": "max_", "min": "min_"}
