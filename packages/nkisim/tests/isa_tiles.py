"""Single instructions on a simulated core: tiles with known contents, in every layout."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.core import Core, current
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiValidationError, NkiWarning
from nkisim.settings import Rules
from nkisim.simulation import simulate
from nkisim.tensor import NkiTensor

Array = npt.NDArray[Any]

FLOATS = (
    dtypes.float32, dtypes.bfloat16, dtypes.float16, dtypes.float8_e4m3, dtypes.float8_e4m3fn,
    dtypes.float8_e5m2,
)  # fmt: skip
INTEGERS = (
    dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16, dtypes.int32, dtypes.uint32,
)  # fmt: skip
DTYPES = FLOATS + INTEGERS

STRICT = Rules(uninitialized="error")

# ways to hold the same [P, N] elements
LAYOUTS = ("plain", "three", "four", "strided", "permuted", "psum", "addressed")


def on_core(body: Callable[[], Any], target: str = "gen4", **settings: Any) -> Any:
    """What `body` returns on a core of `target`, which must not read what nothing wrote."""
    return simulate(body, target=target, **{"rules": STRICT, **settings})()


def rejected(body: Callable[[], Any], *words: str, target: str = "gen4", **settings: Any) -> None:
    """`body` breaks a constraint, and the text has all of `words`."""
    with pytest.raises(NkiValidationError) as raised:
        on_core(body, target, **settings)
    for word in words:
        assert word in str(raised.value)


def refused(body: Callable[[], Any], *words: str, target: str = "gen4") -> None:
    """`body` hands over something of a wrong Python type, and the text has all of `words`."""
    with pytest.raises(TypeError) as raised:
        on_core(body, target)
    for word in words:
        assert word in str(raised.value)


def warned(body: Callable[[], Any], text: str, target: str = "gen4", **rules: Any) -> Any:
    """What `body` returns; it warns of `text`."""
    with pytest.warns(NkiWarning, match=re.escape(text)):
        return on_core(body, target, rules=Rules(**rules))


def tile(
    values: npt.ArrayLike,
    dtype: DType | None = None,
    region: MemoryRegion = MemoryRegion.sbuf,
    partition: int = 0,
) -> NkiTensor:
    """A tile with these elements; with `partition`, at that partition and bytes of its own."""
    array = np.asarray(values)
    kind = dtypes.resolve(array.dtype) if dtype is None else dtype
    address = (partition, 4096 * (len(core().trace.places) % 32)) if partition else None
    tensor = empty(array.shape, kind, region, address)
    if tensor.storage.data is not None:
        tensor.assign(array.astype(kind.numpy))
    tensor.storage.coverage.full = True
    return tensor


def empty(
    shape: tuple[int, ...],
    dtype: DType = dtypes.float32,
    region: MemoryRegion = MemoryRegion.sbuf,
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """A tile that nothing has written."""
    return current("a test").allocate(shape, dtype, region, "", address)


def core() -> Core:
    return current("a test")


def of(shape: tuple[int, ...], dtype: DType = dtypes.float32, region: Any = None) -> Any:
    """What makes a tile of ones."""
    return lambda: tile(np.ones(shape), dtype, region or MemoryRegion.sbuf)


def calling(function: Any, **defaults: Any) -> Any:
    """What makes a call of `function`; callables among the arguments make tensors."""

    def call(**changed: Any) -> Any:
        def body() -> Any:
            given = defaults | changed
            return function(
                **{
                    k: v() if callable(v) and not isinstance(v, nl.Operation) else v
                    for k, v in given.items()
                }
            )

        return body

    return call


def laid(values: Array, dtype: DType, layout: str) -> NkiTensor:
    """A view whose elements, row by row, are `values` [P, N]."""
    P, N = values.shape
    if layout == "plain":
        return tile(values, dtype)
    if layout == "psum":
        return tile(values, dtype, MemoryRegion.psum)
    if layout == "addressed":
        first = 32 if P <= 32 else 64 if P <= 64 else 0
        return tile(values, dtype, partition=first)
    if layout == "strided":
        wide = np.zeros((P, 3 * N + 1), values.dtype)
        wide[:, 1::3] = values
        return tile(wide, dtype)[:, 1 : 3 * N + 1 : 3]
    a = next(d for d in range(int(N**0.5), 0, -1) if N % d == 0)
    if layout == "three":
        return tile(values.reshape(P, N // a, a), dtype)
    if layout == "four":
        return tile(values.reshape(P, a, 1, N // a), dtype)
    assert layout == "permuted"
    return tile(values.reshape(P, a, N // a).transpose(0, 2, 1), dtype).permute((0, 2, 1))


def contents(tensor: NkiTensor) -> Array:
    """The elements as [P, N], a copy."""
    found = tensor.array()
    return found.reshape(found.shape[0], -1).copy()


def stored(values: npt.ArrayLike, dtype: DType) -> Array:
    """`values` rounded to float32 and then to `dtype`, one by one in plain Python for integers."""
    single = np.asarray(values).astype(np.float32)
    if not dtype.is_integer:
        with np.errstate(all="ignore"):
            return single.astype(dtype.numpy)
    limits = np.iinfo(dtype.numpy)
    flat = [
        0 if x != x else round(max(min(x, float(limits.max)), float(limits.min)))
        for x in single.reshape(-1).tolist()
    ]
    return np.array(flat, np.int64).astype(dtype.numpy).reshape(single.shape)


def sample(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, scale: float = 3.0
) -> Array:
    """Random values that `dtype` holds exactly, of a moderate size, as float64."""
    if dtype.is_integer:
        low = -20 if np.iinfo(dtype.numpy).min < 0 else 0
        return rng.integers(low, 21, shape).astype(np.float64)
    exact: Array = (rng.standard_normal(shape) * scale).astype(dtype.numpy).astype(np.float64)
    return exact


def assert_same(found: Array, wanted: Array) -> None:
    """Equal elements of one type, NaN equal to NaN."""
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    if found.dtype.kind in "iu":
        np.testing.assert_array_equal(found, wanted)
    else:
        np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def assert_near(
    found: Array, wanted: Array, relative: float = 2e-6, absolute: float = 1e-6
) -> None:
    """Float results of a computation in another order, up to one rounding of their type."""
    kind = dtypes.resolve(found.dtype)
    steps = {
        "float32": 0.0, "bfloat16": 2**-7, "float16": 2**-10, "float8_e4m3": 2**-3,
        "float8_e4m3fn": 2**-3, "float8_e5m2": 2**-2,
    }  # fmt: skip
    step = steps.get(str.__str__(kind), 0.0)
    np.testing.assert_allclose(
        found.astype(np.float64),
        stored(wanted, kind).astype(np.float64),
        rtol=relative + step,
        atol=1.0 if kind.is_integer else absolute,
    )
