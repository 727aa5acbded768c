"""The data types of NKI: a string to the kernel, a NumPy type to the simulator."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt


class DType(str):
    """A data type, equal to its name and to the NumPy type of the same name.

    Attributes:
        numpy: the NumPy type that stores one element
        itemsize: bytes of one element
        is_float: a floating-point type of one value an element
        is_integer: an integer type (booleans are none)
        packed: the type of one of the values packed into an element, None for ordinary types
        values: how many values one element holds, 1 or 4
    """

    __slots__ = ("is_float", "is_integer", "itemsize", "numpy", "packed", "values")

    numpy: np.dtype[Any]
    itemsize: int
    is_float: bool
    is_integer: bool
    packed: np.dtype[Any] | None
    values: int

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, str):
            return str.__eq__(self, other)
        if other is None:
            return False
        try:
            return resolve(other) is self
        except (TypeError, ValueError):
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __repr__(self) -> str:
        return str.__str__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return resolve, (str.__str__(self),)


def _make(name: str, storage: Any, kind: str, packed: Any = None) -> DType:
    dtype = DType(name)
    dtype.numpy = np.dtype(storage)
    dtype.itemsize = dtype.numpy.itemsize
    dtype.is_float = kind == "f"
    dtype.is_integer = kind == "i"
    dtype.packed = None if packed is None else np.dtype(packed)
    dtype.values = 1 if packed is None else 4
    return dtype


# a boolean in a byte
bool_ = _make("bool_", np.bool_, "b")
int8 = _make("int8", np.int8, "i")
int16 = _make("int16", np.int16, "i")
int32 = _make("int32", np.int32, "i")
uint8 = _make("uint8", np.uint8, "i")
uint16 = _make("uint16", np.uint16, "i")
uint32 = _make("uint32", np.uint32, "i")
float32 = _make("float32", np.float32, "f")
# 1 sign, 8 exponent and 10 mantissa bits, kept in four bytes
tfloat32 = _make("tfloat32", np.float32, "f")
bfloat16 = _make("bfloat16", ml_dtypes.bfloat16, "f")
float16 = _make("float16", np.float16, "f")
# the e4m3 with infinities of Trainium 1 and 2, at most 240
float8_e4m3 = _make("float8_e4m3", ml_dtypes.float8_e4m3, "f")
# the e4m3 of the Open Compute Project, without infinities, at most 448
float8_e4m3fn = _make("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "f")
float8_e5m2 = _make("float8_e5m2", ml_dtypes.float8_e5m2, "f")
# the scale of a block of MX values: 2 ** (byte - 127)
float8_e8m0fnu = _make("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, "f")
# four values an element, the first at the lowest address (for fp4: in the lowest bits)
float8_e4m3fn_x4 = _make("float8_e4m3fn_x4", np.uint32, "x", ml_dtypes.float8_e4m3fn)
float8_e5m2_x4 = _make("float8_e5m2_x4", np.uint32, "x", ml_dtypes.float8_e5m2)
float4_e2m1fn_x4 = _make("float4_e2m1fn_x4", np.uint16, "x", ml_dtypes.float4_e2m1fn)

ALL = (
    bool_, int8, int16, int32, uint8, uint16, uint32, float32, tfloat32, bfloat16, float16,
    float8_e4m3, float8_e4m3fn, float8_e5m2, float8_e8m0fnu,
    float8_e4m3fn_x4, float8_e5m2_x4, float4_e2m1fn_x4,
)  # fmt: skip

_BY_NAME: dict[str, DType] = {str.__str__(dtype): dtype for dtype in ALL} | {
    # spellings that kernels of nki-library use
    "bool": bool_,
    "fp32": float32,
    "bf16": bfloat16,
    "fp16": float16,
    "float8e4": float8_e4m3,
    "float8e5": float8_e5m2,
}
_BY_NUMPY: dict[np.dtype[Any], DType] = {
    dtype.numpy: dtype for dtype in ALL if dtype.values == 1 and dtype is not tfloat32
}


def resolve(dtype: Any, argument: str = "dtype") -> DType:
    """The data type that `dtype` means.

    Args:
        dtype: one of ours, its name, or a NumPy, ml_dtypes, torch or JAX type.
        argument: the name to use in the error.

    Raises:
        TypeError: NKI has no such type, 64-bit types for instance.
    """
    if type(dtype) is DType:
        return dtype
    if isinstance(dtype, str):
        found = _BY_NAME.get(str(dtype).removeprefix("torch."))
    else:
        found = _from_object(dtype)
    if found is None:
        names = ", ".join(str.__str__(known) for known in ALL)
        raise TypeError(f"{argument} is {dtype!r}; NKI has {names}")
    return found


def _from_object(dtype: Any) -> DType | None:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return _BY_NAME.get(str(dtype).removeprefix("torch."))
    try:
        # also takes JAX's scalar types, which carry a `dtype`
        return _BY_NUMPY.get(np.dtype(dtype))
    except TypeError:
        return None


def cast(values: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """`values` as an engine writes them to `dtype`.

    Floating-point values go to integers by rounding to nearest, ties to even, and saturate; NaN
    gives 0. To narrower floating-point types they round to nearest even; what is too large becomes
    what ml_dtypes makes of it (infinity, or NaN where the type has none), because what the hardware
    does is not published.
    """
    target = dtype.numpy
    if dtype is tfloat32:
        return to_tfloat32(values)
    if values.dtype == target:
        return values
    if dtype.is_integer:
        return _to_integer(values, target)
    if dtype is bool_:
        truth: npt.NDArray[np.bool_] = values != 0
        return truth
    with np.errstate(over="ignore", invalid="ignore"):
        if values.dtype.kind != "f" and not is_numpy_float(values.dtype):
            # integers reach a narrow type through float32, as in the engines
            values = values.astype(np.float32)
        return values.astype(target)


def _to_integer(values: npt.NDArray[Any], target: np.dtype[Any]) -> npt.NDArray[Any]:
    limits = np.iinfo(target)
    if values.dtype.kind in "iub":
        return np.clip(values.astype(np.int64), limits.min, limits.max).astype(target)
    with np.errstate(invalid="ignore"):
        rounded = np.rint(values.astype(np.float64))
        rounded = np.where(np.isnan(rounded), 0.0, np.clip(rounded, limits.min, limits.max))
        return rounded.astype(target)


def is_numpy_float(dtype: np.dtype[Any]) -> bool:
    """Whether `dtype` is a floating-point type of NumPy or of ml_dtypes."""
    return dtype.kind == "f" or (dtype in _BY_NUMPY and _BY_NUMPY[dtype].is_float)


def to_tfloat32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """`values` rounded to the ten mantissa bits of tfloat32, ties to even, as float32."""
    single = np.ascontiguousarray(values, dtype=np.float32)
    bits = single.view(np.uint32)
    rounded = bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    rounded &= np.uint32(0xFFFFE000)
    return np.where(np.isfinite(single), rounded.view(np.float32), single)
