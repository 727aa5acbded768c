"""Functions of `nki.language` that work element by element, against torch in float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nkisim
import nkisim.language as nl

RNG = np.random.default_rng(5)


def apply(function, *arrays, buffer=nl.sbuf, **options):
    """`function` on tiles that hold `arrays`, which are [P, ...]."""

    def kernel(*inputs):
        tiles = [nl.load(x) for x in inputs]
        if buffer is nl.psum:
            for i, tile in enumerate(tiles):
                tiles[i] = nl.ndarray(tile.shape, tile.dtype, nl.psum)
                tiles[i][...] = tile
        result = function(*tiles)
        assert result.buffer is nl.sbuf
        out = nl.ndarray(result.shape, result.dtype, nl.shared_hbm)
        nl.store(out, result)
        return out

    return nkisim.simulate(kernel, **options)(*arrays)


def sigmoid(x):
    return torch.sigmoid(x)


def derivative(f):
    def g(x):
        x = x.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(f(x).sum(), x)
        return slope

    return g


F = torch.nn.functional
WIDE, POSITIVE = (-8, 8), (1e-3, 50)
UNARY = {
    "abs": (torch.abs, WIDE),
    "square": (torch.square, WIDE),
    "exp": (torch.exp, WIDE),
    "log": (torch.log, POSITIVE),
    "sqrt": (torch.sqrt, POSITIVE),
    "rsqrt": (torch.rsqrt, POSITIVE),
    "tanh": (torch.tanh, WIDE),
    "sigmoid": (sigmoid, WIDE),
    "relu": (torch.relu, WIDE),
    "gelu": (F.gelu, WIDE),
    "gelu_apprx_sigmoid": (lambda x: x * sigmoid(1.702 * x), WIDE),
    "gelu_apprx_tanh": (lambda x: F.gelu(x, approximate="tanh"), WIDE),
    "gelu_dx": (derivative(F.gelu), WIDE),
    "gelu_apprx_sigmoid_dx": (derivative(lambda x: x * sigmoid(1.702 * x)), WIDE),
    "silu": (F.silu, WIDE),
    "silu_dx": (derivative(F.silu), WIDE),
    "softplus": (F.softplus, WIDE),
    "mish": (F.mish, WIDE),
    "erf": (torch.erf, WIDE),
    "erf_dx": (derivative(torch.erf), WIDE),
    "reciprocal": (torch.reciprocal, POSITIVE),
    "copy": (torch.clone, WIDE),
    "sin": (torch.sin, (-30, 30)),
    "cos": (torch.cos, WIDE),
    "tan": (torch.tan, (-1.4, 1.4)),
    "arctan": (torch.arctan, (-1.5, 1.5)),
    "ceil": (torch.ceil, WIDE),
    "floor": (torch.floor, WIDE),
    "trunc": (torch.trunc, WIDE),
    "negative": (torch.neg, WIDE),
    "sign": (torch.sign, WIDE),
    "logical_not": (lambda x: (x == 0).double(), WIDE),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions(name):
    truth, (low, high) = UNARY[name]
    x = RNG.uniform(low, high, (128, 3, 11)).astype(np.float32)
    x[0, 0, 0] = min(max(0, low), high)
    found = apply(getattr(nl, name), x, target="gen4", rules=nkisim.Rules.all("error"))
    assert found.dtype == np.float32
    expected = truth(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=5e-7)


@pytest.mark.parametrize("name", sorted(set(UNARY) - {"rsqrt"}))
@pytest.mark.parametrize("target", ["gen2", "gen4"])
def test_unary_functions_read_psum_and_narrow_their_result(name, target):
    truth, (low, high) = UNARY[name]
    x = RNG.uniform(low, high, (4, 16)).astype(np.float32)
    function = getattr(nl, name)
    found = apply(lambda t: function(t, nl.bfloat16), x, buffer=nl.psum, target=target)
    assert found.dtype == ml_dtypes.bfloat16
    expected = truth(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2**-8, atol=1e-6)


def test_rsqrt_does_not_reach_psum():
    with pytest.raises(nkisim.NkiValidationError, match="GpSimd"):
        apply(nl.rsqrt, np.ones((2, 2), np.float32), buffer=nl.psum)


def test_the_result_has_the_dtype_of_the_operand():
    x = RNG.normal(size=(4, 4)).astype(ml_dtypes.bfloat16)
    assert apply(nl.exp, x).dtype == ml_dtypes.bfloat16
    assert apply(lambda t: nl.exp(t, dtype=nl.float32), x).dtype == np.float32


@given(st.floats(-8000, 8000, width=32), st.integers(-5000, 5000))
@settings(deadline=None, max_examples=60)
def test_sin_takes_any_angle(x, quarters):
    near = np.float32(quarters * math.pi / 2)
    angles = np.array([[x, near, np.nextafter(near, np.float32(9e9)), -x]], np.float32)
    found = apply(nl.sin, angles, rules=nkisim.Rules.all("error"))
    np.testing.assert_allclose(found, np.sin(angles.astype(np.float64)), rtol=0, atol=6e-7)


BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@pytest.mark.parametrize(
    "dtype", [np.float32, np.int32, np.uint32, np.int8, np.float16, ml_dtypes.bfloat16,
              ml_dtypes.float8_e4m3fn]
)  # fmt: skip
def test_copy_keeps_every_bit(dtype):
    size = np.dtype(dtype).itemsize
    bits = RNG.integers(0, 256, (16, 64 * size), np.uint8).view(BITS[size])
    found = apply(nl.copy, bits.view(dtype), target="gen4")
    np.testing.assert_array_equal(found.view(BITS[size]), bits)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_integers_turn_over_bit_by_bit(dtype):
    limits = np.iinfo(dtype)
    x = RNG.integers(limits.min, limits.max, (4, 8), dtype, endpoint=True)
    np.testing.assert_array_equal(apply(nl.invert, x), ~x)


def test_integers_of_32_bits_are_negated_exactly():
    x = np.array([[16_777_217, -2_147_483_647, 0, 5]], np.int32)
    np.testing.assert_array_equal(apply(nl.negative, x), -x)


BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "abs_max": lambda x, y: np.where(np.abs(x) > np.abs(y), x, y),
    "abs_min": lambda x, y: np.where(np.abs(x) < np.abs(y), x, y),
    "power": lambda x, y: np.abs(x) ** y,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "fmod": np.fmod,
    "mod": np.mod,
}
QUIET = nkisim.Rules(unsupported="off")


def pair(name):
    x = RNG.integers(-6, 7, (32, 2, 25)) / 2
    y = RNG.integers(-6, 7, (32, 2, 25)) / 2
    if name in ("divide", "fmod", "mod"):
        y = np.where(y == 0, 1.5, y)
    if name == "power":
        x = np.abs(x) + 0.5
    return x.astype(np.float32), y.astype(np.float32)


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions(name):
    x, y = pair(name)
    found = apply(getattr(nl, name), x, y, target="gen4", rules=QUIET)
    expected = BINARY[name](x.astype(np.float64), y.astype(np.float64))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.astype(np.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("number", [-1.5, 2, np.float32(0.5)])
def test_one_operand_may_be_a_number_on_either_side(name, number):
    x, _ = pair(name)
    if name in ("divide", "fmod", "mod", "power"):
        x = np.abs(x) + np.float32(0.5)
    function, truth = getattr(nl, name), BINARY[name]
    wide, number64 = x.astype(np.float64), np.float64(number)
    right = apply(lambda t: function(t, number), x, target="gen4", rules=QUIET)
    np.testing.assert_allclose(
        right, truth(wide, number64).astype(np.float64), rtol=2e-6, atol=1e-6
    )
    if name == "power":
        number, number64 = abs(number), abs(number64)
    left = apply(lambda t: function(number, t), x, target="gen4", rules=QUIET)
    np.testing.assert_allclose(left, truth(number64, wide).astype(np.float64), rtol=2e-6, atol=1e-6)


@given(
    hnp.arrays(np.int32, (3, 7), elements=st.integers(-(2**31), 2**31 - 1)),
    hnp.arrays(np.int32, (3, 7), elements=st.integers(-(2**31), 2**31 - 1)),
)
@settings(deadline=None, max_examples=25)
def test_integers_of_32_bits_are_exact(x, y):
    for name in ("add", "subtract", "multiply", "bitwise_and", "bitwise_or", "bitwise_xor"):
        with np.errstate(over="ignore"):
            expected = getattr(np, name)(x, y)
        np.testing.assert_array_equal(apply(getattr(nl, name), x, y), expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_shifts(dtype):
    x = RNG.integers(0, np.iinfo(dtype).max, (4, 9), dtype, endpoint=True)
    amount = RNG.integers(0, 8, (4, 9), dtype)
    np.testing.assert_array_equal(apply(nl.left_shift, x, amount), x << amount)
    np.testing.assert_array_equal(apply(nl.right_shift, x, amount), x >> amount)
    np.testing.assert_array_equal(apply(lambda t: nl.right_shift(t, 3), x), x >> dtype(3))


def test_the_result_of_a_binary_function_has_the_first_dtype_or_the_given_one():
    x, y = np.ones((2, 2), ml_dtypes.bfloat16), np.ones((2, 2), np.float32)
    assert apply(nl.add, x, y).dtype == ml_dtypes.bfloat16
    assert apply(nl.add, y, x).dtype == np.float32
    assert apply(lambda a: nl.add(1.0, a), x).dtype == ml_dtypes.bfloat16
    assert apply(lambda a, b: nl.less(a, b, nl.uint8), x, y).dtype == np.uint8


@pytest.mark.parametrize("shape", [(4, 1), (1, 8), (4, 4)])
def test_nothing_is_broadcast(shape):
    with pytest.raises(nkisim.NkiValidationError, match="must be equal"):
        apply(nl.add, np.ones((4, 8), np.float32), np.ones(shape, np.float32))


def test_two_operands_in_psum_are_too_many():
    ones = np.ones((4, 8), np.float32)
    with pytest.raises(nkisim.NkiValidationError, match="both in PSUM"):
        apply(nl.add, ones, ones, buffer=nl.psum)


def test_operands_must_be_tensors_on_chip():
    def of_hbm(x):
        nl.exp(x)

    def of_hbm_too(x):
        nl.add(1.0, x)

    x = np.ones((2, 2), np.float32)
    for kernel in (of_hbm, of_hbm_too):
        with pytest.raises(nkisim.NkiValidationError, match="load it first"):
            nkisim.simulate(kernel)(x)
    for call in (
        lambda t: nl.exp(1.0),
        lambda t: nl.add(1.0, 2.0),
        lambda t: nl.add(t, "1"),
        lambda t: nl.where(True, t, t),
    ):
        with pytest.raises(TypeError, match="must be a tensor"):
            apply(call, x)


@pytest.mark.parametrize("name", ["divide", "fmod", "mod"])
def test_what_does_not_compile_is_reported(name):
    x = np.ones((2, 2), np.float32)
    with pytest.warns(nkisim.NkiWarning, match="does not compile"):
        apply(getattr(nl, name), x, x)
    with pytest.raises(nkisim.NkiValidationError, match="unsupported"):
        apply(getattr(nl, name), x, x, rules=nkisim.Rules(unsupported="error"))


def test_a_number_as_exponent_does_not_compile():
    with pytest.warns(nkisim.NkiWarning, match="exponent does not compile"):
        apply(lambda t: nl.power(t, 2.0), np.ones((2, 2), np.float32))


@pytest.mark.parametrize("name", ["abs_max", "abs_min"])
def test_the_newest_operators_need_the_newest_chip(name):
    x = np.ones((2, 2), np.float32)
    with pytest.raises(nkisim.NkiValidationError, match="gen4"):
        apply(getattr(nl, name), x, x, target="gen3")


@pytest.mark.parametrize("kind", [np.float32, np.int32, np.uint8, ml_dtypes.bfloat16])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_where_chooses_by_any_nonzero_value(kind, buffer):
    condition = RNG.integers(0, 3, (8, 2, 5)).astype(kind)
    x, y = RNG.normal(size=(2, 8, 2, 5)).astype(np.float32)
    chosen = condition.astype(np.float32) != 0

    def choose(c, a, b):
        return nl.where(c, nl.copy(a), b)

    np.testing.assert_array_equal(
        apply(choose, condition, x, y, buffer=buffer), np.where(chosen, x, y)
    )
    for call, truth in (
        (lambda c: nl.where(c, 2, -0.5, nl.float32), np.where(chosen, 2, -0.5)),
        (lambda c: nl.where(c, 1, 0, nl.uint8), np.where(chosen, 1, 0)),
    ):
        np.testing.assert_array_equal(apply(call, condition, buffer=buffer), truth)


def test_where_keeps_integers_whole_and_converts_the_rest():
    condition = np.array([[1, 0]], np.uint8)
    x = np.array([[16_777_217, 3]], np.int32)
    y = np.array([[3, 16_777_219]], np.int32)
    np.testing.assert_array_equal(apply(nl.where, condition, x, y), [[16_777_217, 16_777_219]])
    mixed = apply(nl.where, condition, x.astype(np.float32), y, target="gen4")
    assert mixed.dtype == np.float32
    np.testing.assert_array_equal(mixed, [[16_777_216, 16_777_220]])


def test_where_needs_a_dtype_for_two_numbers():
    with pytest.raises(TypeError, match="dtype"):
        apply(lambda c: nl.where(c, 1.0, 2.0), np.ones((2, 2), np.uint8))


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_dropout_zeroes_a_share_and_scales_nothing(rate):
    x = RNG.uniform(1, 2, (128, 500)).astype(np.float32)
    found = apply(lambda t: nl.dropout(t, rate), x)
    kept = found != 0
    np.testing.assert_array_equal(found[kept], x[kept])
    # 64000 values: three standard errors are 0.005
    assert abs((1 - kept.mean()) - rate) < 0.01 * (0 < rate < 1) + 1e-9


ENGINES = {
    "exp": "scalar", "square": "scalar", "cos": "scalar", "floor": "scalar", "abs": "vector",
    "reciprocal": "vector", "copy": "vector", "negative": "vector", "rsqrt": "gpsimd",
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_each_function_runs_on_its_engine(name):
    def kernel(x):
        getattr(nl, name)(nl.load(x))

    _, trace = nkisim.World(1).launch(kernel, [(np.ones((2, 2), np.float32),)])
    (_, instruction) = trace.cores[0]
    assert instruction.engine.name == ENGINES[name]
