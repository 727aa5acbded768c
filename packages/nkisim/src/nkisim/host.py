"""Arrays of the caller: what a launch takes and what it gives back."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion, NcVersion
from nkisim.errors import NkiValidationError
from nkisim.storage import Storage, flat_bytes
from nkisim.tensor import NkiTensor, whole
from nkisim.trace import Place

Array = npt.NDArray[Any]

# what torch calls the types that NumPy does not have
_TORCH_NAMES = {
    dtypes.bfloat16: "bfloat16",
    dtypes.float8_e4m3: "float8_e4m3fn",
    dtypes.float8_e4m3fn: "float8_e4m3fn",
    dtypes.float8_e5m2: "float8_e5m2",
    dtypes.float8_e8m0fnu: "float8_e8m0fnu",
}


@dataclass(frozen=True)
class TensorSpec:
    """The shape and dtype of a tensor, without values: an argument or a result of a run that
    computes none."""

    shape: tuple[int, ...]
    dtype: DType

    def __init__(self, shape: tuple[int, ...] | list[int], dtype: Any) -> None:
        sizes = tuple(operator.index(size) for size in shape)
        if not sizes or any(size < 1 for size in sizes):
            raise ValueError(f"shape is {shape!r}; it must have sizes of at least 1")
        object.__setattr__(self, "shape", sizes)
        object.__setattr__(self, "dtype", dtypes.resolve(dtype))


class Argument:
    """One array of the caller, as the kernel sees it.

    The kernel works on the caller's memory where it is contiguous and writable, so that what it
    writes to an input is there afterwards; `finish` does the same for any other array.

    Args:
        value: array or TensorSpec
        place: of the tensor that the kernel sees
        numerics: whether the run computes values
        several: another rank has the same memory among its arguments, so none may write there
    """

    def __init__(self, value: Any, place: Place, numerics: bool, several: bool) -> None:
        self._name = place.name
        self._several = several
        # the caller's array, and what the kernel has instead of it
        self._original: Array | None = None
        self._copy: Array | None = None
        data = None
        if not isinstance(value, TensorSpec):
            data = flat_bytes(self._held(to_numpy(value), numerics))
        elif numerics:
            raise NkiValidationError(
                f"argument {place.name} is {value}; a run with numerics needs an array of values"
            )
        storage = Storage(place, data, 0, 0)
        storage.coverage.full = True
        self.tensor = whole(storage)

    def _held(self, array: Array, numerics: bool) -> Array:
        """An array that the kernel may write to."""
        if not numerics:
            return np.ascontiguousarray(array)
        if array.flags.c_contiguous and array.flags.writeable and not self._several:
            return array
        self._original = array
        self._copy = np.array(array, order="C", copy=True)
        return self._copy

    def finish(self) -> None:
        """Bring what the kernel wrote into the caller's own array.

        Raises:
            NkiValidationError: the kernel wrote to an array that is read-only, or that was given to
                several ranks.
        """
        if self._original is None or self._copy is None:
            return
        if np.array_equal(flat_bytes(self._copy), flat_bytes(np.ascontiguousarray(self._original))):
            return
        if self._several:
            raise NkiValidationError(
                f"the kernel wrote to argument {self._name}, whose array was given to several "
                "ranks; each rank needs its own"
            )
        if not self._original.flags.writeable:
            raise NkiValidationError(
                f"the kernel wrote to argument {self._name}, whose array is read-only"
            )
        self._original[...] = self._copy


def given_to_several(arguments: Sequence[Any]) -> frozenset[int]:
    """The `id` of each array among the arguments that shares memory with one of another rank.

    `arguments` has an entry for each rank.
    """
    if len(arguments) == 1:
        return frozenset()
    found = []
    for rank, entry in enumerate(arguments):
        for value in arrays_in(entry):
            if not _has_known_dtype(value):
                # refused by name when it is converted
                continue
            array = to_numpy(value)
            found.append((*_byte_bounds(array), rank, id(value), array))
    found.sort(key=lambda item: item[:3])
    several = set()
    for index, (_, end, rank, one, array) in enumerate(found):
        for start, _, other_rank, other, other_array in found[index + 1 :]:
            if start >= end:
                break
            if rank != other_rank and np.shares_memory(array, other_array):
                several |= {one, other}
    return frozenset(several)


def _has_known_dtype(value: Any) -> bool:
    try:
        dtypes.resolve(value.dtype)
    except TypeError:
        return False
    return True


def arrays_in(values: Any) -> Iterator[Any]:
    """The arrays among arguments, and in the lists, tuples and dictionaries among them."""
    if isinstance(values, dict):
        for value in values.values():
            yield from arrays_in(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from arrays_in(value)
    elif isinstance(values, np.ndarray) or _is_torch(values):
        yield values


def is_array(value: Any) -> bool:
    """Whether a kernel gets `value` as a tensor."""
    return isinstance(value, (np.ndarray, TensorSpec)) or _is_torch(value)


def shape_and_dtype(value: Any, name: str, target: NcVersion) -> tuple[tuple[int, ...], DType]:
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
    if dtype in _TORCH_NAMES:
        # NumPy has no such types of its own, so torch hands out the bits
        bits = torch.int16 if dtype.itemsize == 2 else torch.uint8
        array: Array = tensor.view(bits).numpy().view(dtype.numpy)
        return array
    plain: Array = tensor.numpy()
    return plain


def to_host(tensor: NkiTensor, as_torch: bool, numerics: bool) -> Any:
    """The values of a returned tensor, as a new array; its shape and dtype without numerics.

    torch has no `float8_e4m3`: it gets the bits as `float8_e4m3fn`, the type that a torch argument
    of such a kernel has.
    """
    if not numerics:
        return TensorSpec(tensor.shape, tensor.dtype)
    array = np.array(tensor.values(), order="C", copy=True)
    if not as_torch:
        return array
    torch = sys.modules["torch"]
    name = _TORCH_NAMES.get(tensor.dtype)
    if name is not None:
        bits = array.view(np.int16 if tensor.dtype.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits).view(getattr(torch, name))
    return torch.from_numpy(array)


def contains_torch(values: Any) -> bool:
    """Whether any of these arguments, or of what they contain, is a torch tensor."""
    return any(_is_torch(value) for value in arrays_in(values))


def argument_region(lnc: int) -> MemoryRegion:
    """Where arguments lie: cores of one rank share them."""
    return MemoryRegion.private_hbm if lnc == 1 else MemoryRegion.shared_hbm


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _byte_bounds(array: Array) -> tuple[int, int]:
    """The address of the first byte of an array, and that past its last one."""
    first = last = int(array.__array_interface__["data"][0])
    for size, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            first += stride * (size - 1)
        else:
            last += stride * (size - 1)
    return first, last + array.itemsize
