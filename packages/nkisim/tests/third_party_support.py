"""What the kernels of aws-neuron/nki-library need to be run here from a checkout.

The checkout is named by the environment variable `NKI_LIBRARY`. Its torch references import
`neuron_dtypes`, which is not published; what they use of it is below, over ml_dtypes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import types
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

import nkisim

VARIABLE = "NKI_LIBRARY"
MISSING = f"{VARIABLE} does not name a checkout of aws-neuron/nki-library"

Array = npt.NDArray[Any]

# packages that the checkout brings along, or that exist only while it is in use
_PACKAGES = ("nki", "nkilib_src", "test", "neuron_dtypes")
# values in one element, and how many bits each has
_PACKED = {
    "float8_e4m3fn_x4": (ml_dtypes.float8_e4m3fn, np.uint32),
    "float8_e5m2_x4": (ml_dtypes.float8_e5m2, np.uint32),
    "float4_e2m1fn_x4": (ml_dtypes.float4_e2m1fn, np.uint16),
}


def is_checkout() -> bool:
    """Whether the environment names a checkout."""
    return VARIABLE in os.environ


def _root() -> Path:
    root = Path(os.environ[VARIABLE])
    if not (root / "src" / "nkilib_src" / "nkilib").is_dir():
        raise FileNotFoundError(f"{VARIABLE} is {root}, which has no src/nkilib_src/nkilib")
    return root


class Library:
    """The modules of a checkout."""

    def core(self, name: str) -> types.ModuleType:
        """`nkilib.core.<name>`."""
        return importlib.import_module(f"nkilib_src.nkilib.core.{name}")

    def experimental(self, name: str) -> types.ModuleType:
        """`nkilib.experimental.<name>`."""
        return importlib.import_module(f"nkilib_src.nkilib.experimental.{name}")

    def collectives(self, name: str) -> types.ModuleType:
        """`nkilib.experimental.collectives.<name>`."""
        return self.experimental(f"collectives.{name}")


@contextlib.contextmanager
def library() -> Iterator[Library]:
    """Makes the checkout importable, with nkisim as `nki`; afterwards all is as before."""
    root = _root()
    with brought_in([str(root / "src"), str(root)], _PACKAGES):
        sys.modules["neuron_dtypes"] = neuron_dtypes()
        yield Library()


@contextlib.contextmanager
def brought_in(paths: Sequence[str], packages: Collection[str]) -> Iterator[None]:
    """Modules below `paths` can be imported, with nkisim as `nki`; afterwards all is as before.

    `packages` names what they bring along: those of their names that are loaded already are put
    aside, as the standard library's `test` for a checkout with a folder of that name. Modules may
    set environment variables, the target for instance.
    """
    path, finders, environment = list(sys.path), list(sys.meta_path), dict(os.environ)
    before = {name: sys.modules.pop(name) for name in _modules_of(packages)}
    try:
        sys.path[:0] = paths
        nkisim.install()
        yield
    finally:
        sys.path[:], sys.meta_path[:] = path, finders
        os.environ.clear()
        os.environ.update(environment)
        for name in _modules_of(packages):
            del sys.modules[name]
        sys.modules.update(before)


def _modules_of(packages: Collection[str]) -> list[str]:
    return [module for module in sys.modules if module.split(".")[0] in packages]


def neuron_dtypes() -> types.ModuleType:
    """A module with the part of `neuron_dtypes` that the references use."""
    module = types.ModuleType("neuron_dtypes")
    for function in (static_cast, sizeinbytes, is_float_type):
        setattr(module, function.__name__, function)
    module.bfloat16 = np.dtype(ml_dtypes.bfloat16)  # type: ignore[attr-defined]
    for name in _PACKED:
        setattr(module, name, name)
    return module


def static_cast(array: Array, dtype: Any) -> Array:
    """`array` in `dtype`; for a packed type, four neighbours of the last axis in one element."""
    name = str(dtype)
    if name in _PACKED:
        value, element = _PACKED[name]
        return pack(np.asarray(array, np.float32).astype(value), element)
    if name.endswith("_x4"):
        raise TypeError(f"dtype is {name}; packed types are {', '.join(_PACKED)}")
    return np.asarray(array).astype(_numpy_dtype(dtype))


def pack(values: Array, element: Any) -> Array:
    """Four neighbours of the last axis in one element, the first in the lowest bits."""
    width = np.dtype(element).itemsize * 2
    bits = values.view(np.uint8).astype(np.uint32).reshape(*values.shape[:-1], -1, 4)
    shifts = np.arange(4, dtype=np.uint32) * np.uint32(width)
    return np.bitwise_or.reduce(bits << shifts, axis=-1).astype(element)


def unpack(packed: Array) -> Array:
    """The float8_e4m3fn values of elements of four: `[..., n]` uint32 to `[..., 4 n]` float32."""
    values = np.ascontiguousarray(packed).view(np.uint8).view(ml_dtypes.float8_e4m3fn)
    return values.astype(np.float32)


def sizeinbytes(dtype: Any) -> int:
    """Bytes of one element."""
    name = str(dtype)
    return np.dtype(_PACKED[name][1] if name in _PACKED else _numpy_dtype(dtype)).itemsize


def is_float_type(dtype: Any) -> bool:
    """Whether `dtype` is a floating-point type of NumPy or of ml_dtypes."""
    found = _numpy_dtype(dtype)
    return found.kind == "f" or found.name.startswith(("bfloat", "float"))


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    name = str(dtype) if isinstance(dtype, str) else np.dtype(dtype).name
    return np.dtype(getattr(ml_dtypes, name, name))


def to_torch(value: Any) -> Any:
    """An array as a torch tensor, anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(value)


def to_numpy(tensor: torch.Tensor) -> Array:
    """A tensor as an array; bfloat16 as float32."""
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def assert_close(actual: Array, expected: Any, rtol: float, atol: float = 0.0) -> None:
    """Each difference is at most `atol + rtol` times the largest expected magnitude."""
    if isinstance(expected, torch.Tensor):
        expected = to_numpy(expected)
    found, wanted = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert found.shape == wanted.shape
    assert np.isfinite(found).all()
    difference = float(np.abs(found - wanted).max())
    assert difference <= atol + rtol * float(np.abs(wanted).max())
