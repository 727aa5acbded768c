"""Data types: what they are called, and what becomes of values."""

from __future__ import annotations

import copy
import math
import pickle
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import nkisim.language as nl
from nkisim import dtypes
from nkisim.dtypes import DType, cast, resolve

Array = npt.NDArray[Any]

SIZES = {
    "bool_": 1, "int8": 1, "int16": 2, "int32": 4, "uint8": 1, "uint16": 2, "uint32": 4,
    "float32": 4,
    "tfloat32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "float8_e8m0fnu": 1, "float8_e4m3fn_x4": 4, "float8_e5m2_x4": 4,
    "float4_e2m1fn_x4": 2,
}  # fmt: skip
INTEGERS = (dtypes.int8, dtypes.int16, dtypes.int32, dtypes.uint8, dtypes.uint16, dtypes.uint32)
# sign, exponent and mantissa bits, the exponent's bias, and whether the last exponent is special
FP8 = {
    dtypes.float8_e4m3: (4, 3, 7, True),
    dtypes.float8_e4m3fn: (4, 3, 7, False),
    dtypes.float8_e5m2: (5, 2, 15, True),
}


# Names


def test_there_are_the_types_of_nki() -> None:
    assert {str(dtype): dtype.itemsize for dtype in dtypes.ALL} == SIZES
    for dtype in dtypes.ALL:
        assert dtype.numpy.itemsize == dtype.itemsize
        assert dtype.values == (4 if str(dtype).endswith("_x4") else 1)
        assert dtype.is_integer == str(dtype).lstrip("u").startswith("int")
        assert dtype.is_float == ("float" in dtype and dtype.values == 1)
        assert (dtype.packed is None) == (dtype.values == 1)


@pytest.mark.parametrize("dtype", dtypes.ALL)
def test_a_type_behaves_like_its_name(dtype: DType) -> None:
    name = str(dtype)
    assert type(name) is str
    assert f"{dtype}" == name == repr(dtype) and f"{dtype!s:>20}" == name.rjust(20)
    assert dtype == name and name == dtype and (dtype != name) is False
    keyed: dict[str, int] = {dtype: 1}
    assert hash(dtype) == hash(name) and keyed[name] == 1 == {name: 1}[dtype]
    assert dtype.split(".")[-1] == name and "a " + dtype == "a " + name
    assert resolve(name) is dtype and resolve(dtype) is dtype
    assert getattr(nl, name) is dtype
    for other in dtypes.ALL:
        assert (dtype == other) == (dtype is other) and (dtype != other) == (dtype is not other)


@pytest.mark.parametrize("dtype", dtypes.ALL)
def test_a_type_is_the_same_after_a_copy(dtype: DType) -> None:
    assert copy.copy(dtype) is dtype and copy.deepcopy([dtype])[0] is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype


PLAIN = [dtype for dtype in dtypes.ALL if dtype.values == 1 and dtype is not dtypes.tfloat32]


@pytest.mark.parametrize("dtype", PLAIN)
def test_numpy_and_ml_dtypes_spellings(dtype: DType) -> None:
    scalar = dtype.numpy.type
    for spelling in (dtype.numpy, scalar, np.zeros(1, dtype.numpy).dtype):
        assert resolve(spelling) is dtype
        assert dtype == spelling and (dtype != spelling) is False
    assert dtype != np.float64 and dtype != np.dtype(np.int64)


@pytest.mark.parametrize(
    "name",
    ["int8", "int16", "int32", "uint8", "float32", "bfloat16", "float16", "float8_e4m3fn",
     "float8_e5m2"],
)  # fmt: skip
def test_torch_spellings(name: str) -> None:
    spelling = getattr(torch, name)
    dtype = resolve(spelling)
    assert str(dtype) == name and dtype == spelling and spelling == dtype
    assert resolve(f"torch.{name}") is dtype and dtype != torch.int64


def test_spellings_of_jax() -> None:
    class BFloat16:  # as jax.numpy.bfloat16: no NumPy type, but it carries one
        dtype = np.dtype(ml_dtypes.bfloat16)

    assert resolve(BFloat16) is dtypes.bfloat16
    assert dtypes.bfloat16 == BFloat16


@pytest.mark.parametrize(
    ("alias", "dtype"),
    [
        ("bool", dtypes.bool_), (torch.bool, dtypes.bool_), ("fp32", dtypes.float32),
        ("bf16", dtypes.bfloat16), ("fp16", dtypes.float16),
        ("float8e4", dtypes.float8_e4m3), ("float8e5", dtypes.float8_e5m2),
        (bool, dtypes.bool_), (np.bool_, dtypes.bool_),
    ],
)  # fmt: skip
def test_other_spellings(alias: Any, dtype: DType) -> None:
    assert resolve(alias) is dtype


@pytest.mark.parametrize(
    "spelling",
    ["float64", "int64", "float8_e3m4", "", "float", float, int, np.float64, np.int64, np.uint64,
     np.complex64, torch.int64, torch.float64, ml_dtypes.float8_e4m3fnuz, ml_dtypes.int4, object,
     None, 3, [1], "torch.int64"],
)  # fmt: skip
def test_what_nki_has_no_type_for(spelling: Any) -> None:
    with pytest.raises(TypeError, match=r"my_dtype is .*; NKI has bool_, int8"):
        resolve(spelling, "my_dtype")
    assert dtypes.float32 != spelling and (dtypes.float32 == spelling) is False


def test_a_type_is_not_none() -> None:
    assert (dtypes.float32 == None) is False and dtypes.float32 != None  # noqa: E711


# Codes of 8 and 4 bits


def decoded(code: int, exponent_bits: int, mantissa_bits: int, bias: int, special: bool) -> float:
    """The value of a code, from its bits."""
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    last = (1 << exponent_bits) - 1
    if exponent == last and special:
        return math.nan if mantissa else sign * math.inf
    if exponent == last and mantissa == (1 << mantissa_bits) - 1:
        return math.nan
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


@pytest.mark.parametrize("dtype", FP8)
def test_all_codes_of_8_bits_come_back(dtype: DType) -> None:
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    single = codes.astype(np.float32)
    wanted = [decoded(code, *FP8[dtype]) for code in range(256)]
    np.testing.assert_array_equal(single, np.array(wanted, np.float32))
    back = cast(single, dtype)
    known = ~np.isnan(single)
    np.testing.assert_array_equal(back.view(np.uint8)[known], codes.view(np.uint8)[known])
    assert np.isnan(back[~known].astype(np.float32)).all()


def test_a_scale_is_a_power_of_two() -> None:
    single = np.arange(256, dtype=np.uint8).view(dtypes.float8_e8m0fnu.numpy).astype(np.float64)
    np.testing.assert_array_equal(single[:255], 2.0 ** np.arange(-127, 128))
    assert np.isnan(single[255])


def test_the_values_of_4_bits() -> None:
    assert dtypes.float4_e2m1fn_x4.packed is not None
    codes = np.arange(16, dtype=np.uint8).view(dtypes.float4_e2m1fn_x4.packed)
    half = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    np.testing.assert_array_equal(codes.astype(np.float32), half + [-value for value in half])


# Floating-point values to narrower types


def finite_values(dtype: DType) -> list[tuple[float, bool]]:
    """All finite values of a type of 8 bits, and whether the last bit of their code is 0."""
    values = [(decoded(code, *FP8[dtype]), code % 2 == 0) for code in range(256)]
    return [(value, even) for value, even in values if math.isfinite(value)]


@pytest.mark.parametrize("dtype", FP8)
@settings(deadline=None, max_examples=300)
@given(value=st.floats(-600, 600, width=32) | st.floats(-0.0625, 0.0625, width=32))
def test_the_nearest_value_and_of_two_the_even_one(dtype: DType, value: float) -> None:
    known = finite_values(dtype)
    largest = max(v for v, _ in known)
    assume(abs(value) <= largest)
    found = float(cast(np.array([value], np.float32), dtype).astype(np.float64)[0])
    exact = Fraction(value)
    nearest = min(known, key=lambda entry: (abs(Fraction(entry[0]) - exact), not entry[1]))[0]
    assert found == nearest


@pytest.mark.parametrize(
    ("dtype", "largest", "beyond"),
    [
        (dtypes.float8_e4m3, 240.0, math.inf),
        (dtypes.float8_e4m3fn, 448.0, math.nan),
        (dtypes.float8_e5m2, 57344.0, math.inf),
        (dtypes.float16, 65504.0, math.inf),
        (dtypes.bfloat16, 2.0**127 * (2 - 2**-7), math.inf),
    ],
)
def test_what_is_too_large(dtype: DType, largest: float, beyond: float) -> None:
    with np.errstate(over="ignore"):
        values = np.array([largest, largest * 1.2, -largest * 1.2]).astype(np.float32)
    found = cast(values, dtype)
    assert found[0].astype(np.float64) == largest
    np.testing.assert_array_equal(found[1:].astype(np.float64), [beyond, -beyond])


@pytest.mark.parametrize(
    "dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3, dtypes.float8_e5m2]
)
def test_the_least_fp32_becomes_minus_infinity(dtype: DType) -> None:
    found = cast(np.array([-3.4028235e38], np.float32), dtype)
    assert found.astype(np.float32)[0] == -np.inf


@settings(deadline=None, max_examples=200)
@given(st.floats(width=32))
def test_tfloat32_keeps_ten_bits_of_the_mantissa(value: float) -> None:
    found = cast(np.array([value], np.float32), dtypes.tfloat32)
    assert found.dtype == np.float32
    if not math.isfinite(value) or value == 0:
        np.testing.assert_array_equal(found, np.array([value], np.float32))
        return
    _, exponent = math.frexp(value)
    step = Fraction(2) ** (max(exponent, -125) - 11)
    wanted = round(Fraction(value) / step) * step
    if abs(wanted) >= 2**128:
        assert math.isinf(found[0])
    else:
        assert Fraction(float(found[0])) == wanted


def test_a_type_of_its_own_comes_back_as_it_is() -> None:
    values = np.arange(4, dtype=np.int16)
    assert cast(values, dtypes.int16) is values


# To integers


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (-2.5, -2), (0.4999, 0), (3.7, 4)],
)
def test_ties_go_to_even(value: float, wanted: int) -> None:
    for source in (np.float32, np.float16, ml_dtypes.bfloat16):
        if float(np.array(value).astype(source)) == value:
            assert cast(np.array([value], source), dtypes.int32)[0] == wanted


@pytest.mark.parametrize("dtype", INTEGERS)
def test_what_is_out_of_range_saturates(dtype: DType) -> None:
    limits = np.iinfo(dtype.numpy)
    values = np.array(
        [-np.inf, -3e38, limits.min - 300.0, limits.max + 300.0, 3e38, np.inf, np.nan], np.float32
    )
    wanted = [limits.min] * 3 + [limits.max] * 3 + [0]
    np.testing.assert_array_equal(cast(values, dtype), np.array(wanted, dtype.numpy))


@pytest.mark.parametrize(
    ("dtype", "value", "wanted"),
    [
        (dtypes.int8, 127.4, 127), (dtypes.int8, 127.5, 127), (dtypes.int8, 128.0, 127),
        (dtypes.int8, -128.0, -128), (dtypes.int8, -128.5, -128), (dtypes.uint8, 254.5, 254),
        (dtypes.uint8, 255.5, 255), (dtypes.uint8, -1.0, 0), (dtypes.uint16, 65535.5, 65535),
        (dtypes.uint16, 65536.0, 65535), (dtypes.int32, 2147483648.0, 2147483647),
        (dtypes.uint32, 4294967296.0, 4294967295), (dtypes.uint32, -0.5, 0),
    ],
)  # fmt: skip
def test_the_ends_of_a_range(dtype: DType, value: float, wanted: int) -> None:
    assert cast(np.array([value], np.float32), dtype)[0] == wanted


@pytest.mark.parametrize("dtype", INTEGERS)
@settings(deadline=None, max_examples=100)
@given(value=st.floats(-(2.0**33), 2.0**33, width=32))
def test_integers_against_python(dtype: DType, value: float) -> None:
    limits = np.iinfo(dtype.numpy)
    wanted = min(max(round(value), limits.min), limits.max)
    assert int(cast(np.array([value], np.float32), dtype)[0]) == wanted


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_to_integers_saturate(source: DType, dtype: DType) -> None:
    limits, ends = np.iinfo(dtype.numpy), np.iinfo(source.numpy)
    values = np.array([ends.min, 0, 1, 100, ends.max], source.numpy)
    wanted = [min(max(int(value), limits.min), limits.max) for value in values]
    assert cast(values, dtype).tolist() == wanted


def test_integers_reach_floating_point_types_through_fp32() -> None:
    values = np.array([2**24 + 1, -(2**24) - 1, 2**31 - 1], np.int32)
    found = cast(values, dtypes.float32)
    np.testing.assert_array_equal(found, np.array([2**24, -(2**24), 2**31], np.float32))
    np.testing.assert_array_equal(cast(np.array([257], np.int32), dtypes.bfloat16), [256])


def test_truth() -> None:
    values = np.array([0, -0.0, 0.5, np.nan], np.float32)
    assert cast(values, dtypes.bool_).tolist() == [False, False, True, True]
    assert cast(np.array([True, False]), dtypes.float32).tolist() == [1.0, 0.0]
    assert cast(np.array([True, False]), dtypes.int8).tolist() == [1, 0]
