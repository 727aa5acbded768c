from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nkisim import alu, scans
from nkisim.enums import NcVersion
from nkisim.errors import NkiValidationError

# a kernel prints no warnings, however odd its numbers are
pytestmark = pytest.mark.filterwarnings("error")

INF, NAN = math.inf, math.nan
MOST = float(np.finfo(np.float32).max)
ODD = [0.0, -0.0, 1.0, -1.0, 2.5, -3.0, INF, -INF, NAN, 2.0**-149, -(2.0**-149), 2.0**-126, MOST]
PAIRS = np.array(list(itertools.product([*ODD, -MOST, 1e20], repeat=2)), np.float32)
A, B = PAIRS[:, 0].copy(), PAIRS[:, 1].copy()


def larger(x: float, y: float) -> float:
    if math.isnan(x) or math.isnan(y):
        return NAN
    return x if x > y else y


def quotient(x: float, y: float) -> float:
    if y == 0:
        return NAN if x == 0 or x != x else math.copysign(INF, x) * math.copysign(1.0, y)
    return x / y


# Rounding a double result once gives the correctly rounded single result of these.
ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": quotient,
    "maximum": larger,
    "minimum": lambda x, y: -larger(-x, -y),
}
TRUTH: dict[str, Callable[[float, float], bool]] = {
    "equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "logical_and": lambda x, y: x != 0 and y != 0,
    "logical_or": lambda x, y: x != 0 or y != 0,
    "logical_xor": lambda x, y: (x != 0) != (y != 0),
}


def narrow(value: float) -> np.float32:
    with np.errstate(all="ignore"):
        return np.float64(value).astype(np.float32)


def statement(function: Callable[[float, float], float], a: Any, b: Any) -> npt.NDArray[np.float32]:
    return np.array([narrow(function(float(x), float(y))) for x, y in zip(a, b, strict=True)])


def calculate(name: str, a: Any, b: Any, out: Any = None) -> npt.NDArray[Any]:
    return alu.resolve(name).function(a, b, out)


@pytest.mark.parametrize("name", [*ARITHMETIC, *TRUTH])
def test_every_pair_of_odd_values(name: str) -> None:
    expected = statement(ARITHMETIC.get(name) or TRUTH[name], A, B)
    result = calculate(name, A, B)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["add", "less", "logical_or", "abs_max", "rsqrt", "relu", "abs"])
@pytest.mark.parametrize("which", [0, 1])
def test_result_may_replace_an_operand(name: str, which: int) -> None:
    expected = calculate(name, A, B).copy()
    operands = [A.copy(), B.copy()]
    returned = calculate(name, operands[0], operands[1], operands[which])
    assert returned is operands[which]
    np.testing.assert_array_equal(returned, expected)


@pytest.mark.parametrize("operand", [3, 0.1, np.float32(0.1), np.float64(0.1), 1e300, True])
@pytest.mark.parametrize("name", ["multiply", "maximum", "greater", "logical_and", "abs_min"])
def test_numbers_count_as_float32(name: str, operand: float) -> None:
    whole = np.full(A.shape, narrow(float(operand)), np.float32)
    for a, b, x, y in ((A, operand, A, whole), (operand, A, whole, A)):
        result = calculate(name, a, b)
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, calculate(name, x, y))


def test_columns_broadcast() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    column = np.array([[10], [20], [30]], np.float32)
    np.testing.assert_array_equal(calculate("subtract", column, data)[2], [22, 21, 20, 19])
    np.testing.assert_array_equal(calculate("greater", data, column)[0], [0, 0, 0, 0])


def test_signs_of_mod_and_fmod() -> None:
    a, b = np.array([7, -7, 7, -7.5], np.float32), np.array([3, 3, -3, 2], np.float32)
    np.testing.assert_array_equal(calculate("mod", a, b), [1, 2, -2, 0.5])
    np.testing.assert_array_equal(calculate("fmod", a, b), [1, -1, 1, -1.5])


def test_power() -> None:
    base = np.array([2, 4, 9, -8, -8, 0, 0, INF], np.float32)
    exponent = np.array([10, 0.5, -0.5, 3, 0.5, 0, -1, -1], np.float32)
    result = calculate("power", base, exponent)
    np.testing.assert_allclose(result, [1024, 2, 1 / 3, -512, NAN, 1, INF, 0], rtol=1e-6)


def test_unary_operators_ignore_the_other_operand() -> None:
    x = np.array([-4.0, 0.25, INF, 0.0], np.float32)
    for ignored in (0, 0.0, NAN, np.float32(3)):
        np.testing.assert_array_equal(calculate("abs", x, ignored), [4, 0.25, INF, 0])
        np.testing.assert_array_equal(calculate("square", x, ignored), [16, 0.0625, INF, 0])
        np.testing.assert_array_equal(calculate("relu", x, ignored), [0, 0.25, INF, 0])
        np.testing.assert_array_equal(calculate("rsqrt", x, ignored), [NAN, 2, 0, INF])
        np.testing.assert_array_equal(calculate("reciprocal", x, ignored), [-0.25, 4, 0, INF])
        np.testing.assert_array_equal(calculate("bypass", x, ignored), x)
    names = {name for name in alu._BY_NAME if alu.resolve(name).unary}
    assert names == {
        "abs", "absolute", "square", "relu", "rsqrt", "reciprocal", "bypass", "invert"
    }  # fmt: skip


def test_rsqrt_is_right_to_two_units() -> None:
    x = np.geomspace(1e-37, 1e38, 5000).astype(np.float32)
    exact = 1 / np.sqrt(x.astype(np.float64))
    error = np.abs(calculate("rsqrt", x, 0) - exact) / np.spacing(exact.astype(np.float32))
    assert error.max() < 2


def test_magnitudes_keep_their_sign_and_ties_go_to_the_second() -> None:
    a = np.array([-3, 1, 2, -2, NAN, 1, 0.0], np.float32)
    b = np.array([2, -4, -2, 2, 1, NAN, -0.0], np.float32)
    largest, least = calculate("abs_max", a, b), calculate("abs_min", a, b)
    np.testing.assert_array_equal(largest, [-3, -4, -2, 2, NAN, NAN, 0])
    np.testing.assert_array_equal(least, [2, 1, -2, 2, NAN, NAN, 0])
    assert np.signbit(largest[-1]) and np.signbit(least[-1])
    # the use in kernels: the value itself, with its sign
    np.testing.assert_array_equal(calculate("abs_max", a[:4], 0.0), a[:4])


# ---- resolving ----


def test_operators_are_found_by_name() -> None:
    def greater_equal() -> None: ...

    assert alu.resolve("add") is alu.resolve(np.add) is alu.resolve(sum)
    assert alu.resolve(max) is alu.resolve("max") is alu.resolve(np.maximum) is alu.resolve(np.max)
    assert alu.resolve(min).name == "minimum"
    assert alu.resolve(abs) is alu.resolve(np.abs)
    assert alu.resolve("mean") is alu.resolve("average")
    assert alu.resolve(np.mod).name == "mod" and alu.resolve(np.divide).name == "divide"
    assert alu.resolve(greater_equal).name == "greater_equal"


@pytest.mark.parametrize("op", [None, "exp", np.exp, 3, [], object()])
def test_unknown_operators_are_named(op: object) -> None:
    with pytest.raises(NkiValidationError, match=r"^reduce_op is .*abs_max.*right_shift") as error:
        alu.resolve(op, "reduce_op")
    assert repr(op) in str(error.value)


def test_kinds_and_generations() -> None:
    every = {alu.resolve(name) for name in alu._BY_NAME}
    assert {op.name for op in every if op.kind == "bitvec"} == {
        "invert", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"
    }  # fmt: skip
    assert {op.name for op in every if op.min_generation > NcVersion.gen2} == {
        "abs_max", "abs_min", "square", "relu"
    }  # fmt: skip
    assert {op.name for op in every if op.reduce is not None} == {
        "add", "subtract", "multiply", "maximum", "minimum", "logical_and", "logical_or",
        "logical_xor", "abs_max", "abs_min", "average", "bitwise_and", "bitwise_or", "bitwise_xor",
    }  # fmt: skip


@pytest.mark.parametrize("name", [n for n, op in alu._BY_NAME.items() if op.identity is not None])
def test_identities_leave_values_alone(name: str) -> None:
    op = alu.resolve(name)
    values = np.array([0, 1, 1, 0] if name.startswith("logical") else A, np.float32)
    # the accumulator is the first operand, except that it is taken from x in a running difference
    a, b = (values, op.identity) if op.name == "subtract" else (op.identity, values)
    np.testing.assert_array_equal(op.function(a, b), values)  # type: ignore[arg-type]


# ---- reductions ----


def fold(op: alu.AluOp, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    total = rows[:, :1]
    for i in range(1, rows.shape[1]):
        total = op.function(total, rows[:, i : i + 1])
    return total[:, 0]


def small_integers(dtype: Any) -> st.SearchStrategy[Any]:
    shapes = hnp.array_shapes(min_dims=2, max_dims=2, max_side=6)
    return hnp.arrays(dtype, shapes, elements=st.integers(-3, 3).map(float))


@pytest.mark.parametrize(
    "name",
    ["add", "subtract", "multiply", "maximum", "minimum", "abs_max", "abs_min", "logical_and",
     "logical_or"],
)  # fmt: skip
@settings(deadline=None, max_examples=40)
@given(values=small_integers(np.float32))
def test_reductions_are_folds(name: str, values: npt.NDArray[np.float32]) -> None:
    op = alu.resolve(name)
    assert op.reduce is not None
    if name.startswith("logical"):
        values = (values != 0).astype(np.float32)
    for array, axis in ((values, 1), (values, -1), (values.T, 0)):
        result = op.reduce(array, axis)
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, fold(op, values))


@settings(deadline=None, max_examples=40)
@given(values=small_integers(np.float32))
def test_other_reductions(values: npt.NDArray[np.float32]) -> None:
    odd, mean = alu.resolve("logical_xor").reduce, alu.resolve("average").reduce
    assert odd is not None and mean is not None
    np.testing.assert_array_equal(odd(values, 1), [sum(row != 0) % 2 for row in values])
    exact = [math.fsum(column) / len(column) for column in values.T]
    np.testing.assert_allclose(mean(values, 0), exact, rtol=1e-6, atol=1e-7)
    with pytest.raises(NkiValidationError, match="average is a reduction"):
        alu.resolve("average").function(values, values)


def test_reductions_show_nan_and_overflow() -> None:
    rows = np.array([[1, NAN, 3], [MOST, MOST, 1], [INF, -INF, 1]], np.float32)
    for name, expected in {
        "add": [NAN, INF, NAN],
        "maximum": [NAN, MOST, INF],
        "minimum": [NAN, 1, -INF],
        "abs_max": [NAN, MOST, -INF],
        "abs_min": [NAN, 1, 1],
        "logical_and": [1, 1, 1],
    }.items():
        reduce = alu.resolve(name).reduce
        assert reduce is not None
        np.testing.assert_array_equal(reduce(rows, 1), np.array(expected, np.float32))


# ---- bits ----

INTEGERS = [np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32]


@st.composite
def integer_pairs(draw: st.DrawFn) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
    size = draw(st.integers(1, 8))
    arrays = hnp.arrays(dtype, size)
    amounts = hnp.arrays(dtype, size, elements=st.integers(0, 40))
    return draw(arrays), draw(st.one_of(arrays, amounts))


def unsigned(value: int, width: int) -> int:
    return value % (1 << width)


BITS: dict[str, Callable[[int, int, int], int]] = {
    "bitwise_and": lambda x, y, width: x & y,
    "bitwise_or": lambda x, y, width: x | y,
    "bitwise_xor": lambda x, y, width: x ^ y,
    "invert": lambda x, y, width: ~x,
    "left_shift": lambda x, y, width: x << y if y < width else 0,
    "right_shift": lambda x, y, width: x >> y if y < width else 0,
}


@pytest.mark.parametrize("name", BITS)
@settings(deadline=None, max_examples=60)
@given(pair=integer_pairs())
def test_bits(name: str, pair: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> None:
    a, b = pair
    width = 8 * a.itemsize
    expected = [
        unsigned(BITS[name](unsigned(int(x), width), unsigned(int(y), width), width), width)
        for x, y in zip(a, b, strict=True)
    ]
    result = calculate(name, a, b)
    assert result.dtype == a.dtype
    assert [unsigned(int(x), width) for x in result] == expected
    for operands in ((a.copy(), b), (a, b.copy())):
        out = operands[0] if operands[0] is not a else operands[1]
        assert calculate(name, operands[0], operands[1], out) is out
        np.testing.assert_array_equal(out, result)
    numbers = [calculate(name, a[i : i + 1], int(b[i]))[0] for i in range(len(a))]
    np.testing.assert_array_equal(numbers, result)
    reduce = alu.resolve(name).reduce
    if reduce is not None:
        both = np.stack([a, b], axis=1)
        np.testing.assert_array_equal(reduce(both, 1), result)
        assert reduce(both, 1).dtype == a.dtype


def test_bit_patterns_of_numbers_and_of_other_widths() -> None:
    x = np.array([-1, 0x1234, -(2**31)], np.int32)
    np.testing.assert_array_equal(calculate("bitwise_and", x, 0xFFFF0000), [-65536, 0, -(2**31)])
    np.testing.assert_array_equal(calculate("right_shift", x, 31), [1, 0, 1])
    np.testing.assert_array_equal(calculate("right_shift", x, 32), [0, 0, 0])
    np.testing.assert_array_equal(calculate("left_shift", 1, np.array([0, 4, 31, 32, -1])), [
        1, 16, 2**31, 2**32, 0
    ])  # fmt: skip
    byte = np.array([0x81], np.uint8)
    np.testing.assert_array_equal(calculate("left_shift", byte, np.array([[256], [1]])), [[0], [2]])
    np.testing.assert_array_equal(calculate("bitwise_or", byte, np.array([0x10F], np.int32)), 0x8F)


@pytest.mark.parametrize("name", BITS)
def test_bits_of_floats_are_refused(name: str) -> None:
    with pytest.raises(NkiValidationError, match="integers, not float32"):
        calculate(name, np.ones(2, np.float32), np.ones(2, np.int32))
    if name != "invert":
        with pytest.raises(NkiValidationError, match="integers, not 1.5"):
            calculate(name, np.ones(2, np.int32), 1.5)


# ---- exact integers ----


def wrapped(value: int, dtype: np.dtype[Any]) -> int:
    value %= 1 << 32
    return value - (1 << 32) if dtype.kind == "i" and value >= 1 << 31 else value


EXACT: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": max,
    "minimum": min,
    "less": lambda x, y: x < y,
    "equal": lambda x, y: x == y,
    "logical_xor": lambda x, y: (x != 0) != (y != 0),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [np.dtype(np.int32), np.dtype(np.uint32)])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_exact_integers(name: str, dtype: np.dtype[Any], data: st.DataObject) -> None:
    limits = np.iinfo(dtype)
    edge = st.sampled_from([limits.min, limits.max, 0, 1, 2**24 + 1])
    value = st.one_of(edge, st.integers(limits.min, limits.max))
    x, y = data.draw(st.lists(value, min_size=3, max_size=3)), data.draw(value)
    op, a = alu.resolve(name), np.array(x, dtype)
    expected = np.array([wrapped(EXACT[name](v, y), dtype) for v in x], dtype)
    for b in (y, np.full(3, y, dtype), np.full((1,), y, dtype)):
        result = alu.integer(op, a, b, dtype)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, expected)


def test_exact_integers_refuse_what_they_cannot_do() -> None:
    a = np.ones(2, np.int32)
    with pytest.raises(NkiValidationError, match="op is divide.*add"):
        alu.integer(alu.resolve("divide"), a, a, "int32")
    with pytest.raises(NkiValidationError, match="second operand is 4294967296"):
        alu.integer(alu.resolve("add"), a, 2**32, "int32")
    with pytest.raises(NkiValidationError, match="first operand is 0.5"):
        alu.integer(alu.resolve("add"), 0.5, a, "int32")
    with pytest.raises(NkiValidationError, match="second operand is float32"):
        alu.integer(alu.resolve("add"), a, np.ones(2, np.float32), "int32")


# ---- scans ----

STEPS = ["add", "subtract", "multiply", "maximum", "minimum", "bypass", "greater"]
SMALL = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.1, -0.3, 7.0, 1e30, INF, NAN])


def one_step(name: str, x: np.float32, y: np.float32) -> np.float32:
    function = ARITHMETIC.get(name) or TRUTH.get(name) or (lambda x, y: x)
    return narrow(function(float(x), float(y)))


@pytest.mark.parametrize("op0", STEPS)
@pytest.mark.parametrize("op1", STEPS)
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_scan_is_the_recurrence(op0: str, op1: str, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=5))
    arrays = hnp.arrays(np.float32, shape, elements=SMALL.map(lambda x: float(np.float32(x))))
    ones = st.just(np.ones(shape, np.float32))
    first, second = data.draw(st.one_of(ones, arrays)), data.draw(arrays)
    initial = data.draw(arrays)[:, :1]
    reverse0, reverse1 = data.draw(st.booleans()), data.draw(st.booleans())
    expected = np.empty(shape, np.float32)
    for p in range(shape[0]):
        state = initial[p, 0]
        for i in range(shape[1]):
            x, y = first[p, i], second[p, i]
            state = one_step(op0, state, x) if reverse0 else one_step(op0, x, state)
            state = one_step(op1, y, state) if reverse1 else one_step(op1, state, y)
            expected[p, i] = state
    ops = alu.resolve(op0), alu.resolve(op1)
    result = scans.scan(*ops, first, second, initial, reverse0, reverse1)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, expected)
    if shape[0] == 1:
        number = float(initial[0, 0])
        again = scans.scan(*ops, first, second, number, reverse0, reverse1)
        np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize("op0", ["multiply", "add", "bypass", "abs"])
@pytest.mark.parametrize("op1", ["add", "subtract", "multiply", "maximum", "minimum"])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_cumulative_is_the_recurrence(op0: str, op1: str, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=6))
    arrays = hnp.arrays(np.float32, shape, elements=SMALL.map(lambda x: float(np.float32(x))))
    src, imm0 = data.draw(arrays), data.draw(st.sampled_from([1.0, 0.5, -2.0]))
    start = data.draw(st.sampled_from([0.0, 1.0, -INF]))
    expected = np.empty(shape, np.float32)
    for p in range(shape[0]):
        state = np.float32(start)
        for i in range(shape[1]):
            x = np.abs(src[p, i]) if op0 == "abs" else one_step(op0, src[p, i], np.float32(imm0))
            state = expected[p, i] = one_step(op1, x, state)
    ops = alu.resolve(op0), alu.resolve(op1)
    np.testing.assert_array_equal(scans.cumulative(*ops, src, imm0, start), expected)
    column = np.full((shape[0], 1), start, np.float32)
    np.testing.assert_array_equal(scans.cumulative(*ops, src, imm0, column), expected)


def test_running_difference_starts_at_zero() -> None:
    # reg = x - reg
    src = np.array([[5, 3, 10]], np.float32)
    op = alu.resolve("subtract")
    assert op.identity is not None
    result = scans.cumulative(alu.resolve("bypass"), op, src, 0.0, op.identity)
    np.testing.assert_array_equal(result, [[5, -2, 12]])
