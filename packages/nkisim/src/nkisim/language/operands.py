"""What the functions of `nki.language` take, and the tensors that they make."""

from __future__ import annotations

from typing import Any

from nkisim import dtypes
from nkisim.core import Core
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiValidationError
from nkisim.tensor import NkiTensor


def tensor(what: str, name: str, value: Any) -> NkiTensor:
    """`value`, which must be a tensor."""
    if type(value) is not NkiTensor:
        raise TypeError(f"{what}: {name} is {value!r}; it must be a tensor")
    return value


def on_chip(what: str, name: str, value: Any) -> NkiTensor:
    """`value`, which must be a tensor in SBUF or PSUM."""
    found = tensor(what, name, value)
    if not found.on_chip:
        raise NkiValidationError(
            f"{what}: {name} is {found!r}; it must be in SBUF or PSUM: load it first"
        )
    return found


def in_hbm(what: str, name: str, value: Any) -> NkiTensor:
    """`value`, which must be a tensor in HBM."""
    found = tensor(what, name, value)
    if found.on_chip:
        raise NkiValidationError(f"{what}: {name} is {found!r}; it must be in HBM")
    return found


def chosen(dtype: Any, otherwise: DType) -> DType:
    """The dtype of a result: `dtype`, where it is given."""
    return otherwise if dtype is None else dtypes.resolve(dtype)


def tile(core: Core, shape: tuple[int, ...], dtype: DType) -> NkiTensor:
    """A new SBUF tensor."""
    return core.allocate(shape, dtype, MemoryRegion.sbuf)


def stretched(what: str, name: str, value: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """A view of `value` in which free dimensions of size 1 have the sizes of `shape`.

    Raises:
        NkiValidationError: another dimension differs, or the partitions do.
    """
    fits = value.ndim == len(shape) and value.shape[0] == shape[0]
    if not fits or any(n not in (1, m) for n, m in zip(value.shape, shape, strict=True)):
        raise NkiValidationError(
            f"{what}: {name} is {value!r}; to be used as {list(shape)} it must have as many "
            "dimensions, the same partitions, and in every other dimension that size or 1"
        )
    for dim, (size, wanted) in enumerate(zip(value.shape, shape, strict=True)):
        if size != wanted:
            value = value.broadcast(dim, wanted)
    return value
