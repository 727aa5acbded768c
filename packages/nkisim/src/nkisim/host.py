"""Arrays of the caller: what a launch takes and what it gives back."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion, NcVersion
from nkisim.errors import NkiValidationError
from nkisim.storage import Storage, flat_bytes
from nkisim.tensor import NkiTensor
from nkisim.trace import Place
from nkisim.views import contiguous_strides

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TensorSpec:
    """The shape and dtype of a tensor, without values: an argument or a result of a run that
    computes none."""

    shape: tuple[int, ...]
    dtype: DType

    def __init__(self, shape: tuple[int, ...] | list[int], dtype: Any) -> None:
        sizes = tuple(int(size) for size in shape)
        if not sizes or any(size < 1 for size in sizes):
            raise ValueError(f"shape is {shape!r}; it must have sizes of at least 1")
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", dtypes.resolve(dtype))


class Argument:
    """One array of the caller, as the kernel sees it.

    The kernel works on the caller's memory where it is contiguous and writable, so that what it
    writes to an input is there afterwards; `finish` does the same for any other array.
    """

    def __init__(self, value: Any, name: str, place: Place, numerics: bool) -> None:
        self._name = name
        self._original: Array | None = None
        self._held: Array | None = None
        data = None
        if not isinstance(value, TensorSpec):
            array = to_numpy(value)
            if array.flags.c_contiguous and array.flags.writeable:
                self._held = array
            else:
                self._original = array
                self._held = np.array(array, order="C", copy=True)
            data = flat_bytes(self._held)
        elif numerics:
            raise NkiValidationError(
                f"argument {name} is {value}; a run with numerics needs an array of values"
            )
        storage = Storage(place, data, 0, 0)
        storage.coverage.full = True
        self.tensor = NkiTensor(
            storage, place.dtype, place.shape, contiguous_strides(place.shape), 0
        )

    def finish(self) -> None:
        """Bring what the kernel wrote into the caller's own array.

        Raises:
            NkiValidationError: the kernel wrote to an array that is read-only.
        """
        if self._original is None or self._held is None:
            return
        if self._original.flags.writeable:
            self._original[...] = self._held
        elif self._held.tobytes() != self._original.tobytes():
            raise NkiValidationError(
                f"the kernel wrote to argument {self._name}, whose array is read-only"
            )


def is_array(value: Any) -> bool:
    """Whether a kernel gets `value` as a tensor."""
    return isinstance(value, (np.ndarray, TensorSpec)) or _is_torch(value)


def shape_and_dtype(
    value: Any, name: str, target: NcVersion
) -> tuple[tuple[int, ...], DType]:
    """What the kernel sees of an argument.

    `float8_e4m3fn` before gen4 is read as the `float8_e4m3` that those chips have, bit for bit.

    Raises:
        TypeError: NKI has no such data type.
        ValueError: it has no elements.
    """
    dtype = dtypes.resolve(value.dtype, f"the dtype of argument {name}")
    shape = tuple(int(size) for size in value.shape) or (1,)
    if 0 in shape:
        raise ValueError(f"argument {name} has shape {list(shape)}; it must have elements")
    if dtype is dtypes.float8_e4m3fn and target < NcVersion.gen4:
        dtype = dtypes.float8_e4m3
    return shape, dtype


def to_numpy(value: Any) -> Array:
    """A NumPy array over the memory of `value`, a NumPy array or a torch tensor on the CPU."""
    if isinstance(value, np.ndarray):
        return value
    torch = sys.modules["torch"]
    tensor = value.detach()
    dtype = dtypes.resolve(tensor.dtype)
    if dtype in (dtypes.bfloat16, dtypes.float8_e4m3fn, dtypes.float8_e5m2, dtypes.float8_e8m0fnu):
        # NumPy has no such types of its own, so torch hands out the bits
        bits = torch.int16 if dtype.itemsize == 2 else torch.uint8
        array: Array = tensor.view(bits).numpy().view(dtype.numpy)
        return array
    plain: Array = tensor.numpy()
    return plain


def to_host(tensor: NkiTensor, as_torch: bool) -> Any:
    """The values of a returned tensor, as a new array."""
    if tensor.storage.data is None:
        return TensorSpec(tensor.shape, tensor.dtype)
    array = np.array(tensor.values(), order="C", copy=True)
    if not as_torch:
        return array
    torch = sys.modules["torch"]
    name = str.__str__(tensor.dtype)
    if tensor.dtype in (dtypes.bfloat16, dtypes.float8_e4m3fn, dtypes.float8_e5m2):
        bits = array.view(np.int16 if tensor.dtype.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits).view(getattr(torch, name))
    return torch.from_numpy(array)


def contains_torch(values: Any) -> bool:
    """Whether any of these arguments, or of what they contain, is a torch tensor."""
    if isinstance(values, dict):
        return any(contains_torch(value) for value in values.values())
    if isinstance(values, (list, tuple)):
        return any(contains_torch(value) for value in values)
    return _is_torch(values)


def argument_region(lnc: int) -> MemoryRegion:
    """Where arguments lie: cores of one rank share them."""
    return MemoryRegion.private_hbm if lnc == 1 else MemoryRegion.shared_hbm


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
