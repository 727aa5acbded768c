"""What stands between the brackets of a tensor, and what serves as an index at run time."""

from __future__ import annotations

import operator
from typing import Any

from nkisim import dtypes
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiValidationError
from nkisim.memory_view import MemoryView
from nkisim.register import VirtualRegister


class DynamicSlice:
    """`nl.ds(start, size)` with a start that is known only when the kernel runs; or of size 0."""

    __slots__ = ("size", "start")

    def __init__(self, start: MemoryView | VirtualRegister | int, size: int) -> None:
        self.start = start
        self.size = size


def static_slice(view: MemoryView, dim: int, key: slice) -> tuple[int, int, int]:
    """Start, count and step of a slice of one dimension.

    Raises:
        IndexError: it leaves the dimension, is empty, or runs backwards.
        TypeError: its parts are no integers.
    """
    size = view.shape[dim]
    start, stop = key.start, key.stop
    if key.step is None and start is None and stop is None:
        return 0, size, 1
    if key.step is None and type(start) is int and type(stop) is int and 0 <= start < stop <= size:
        return start, stop - start, 1
    step = 1 if key.step is None else _part(view, dim, key.step)
    start = 0 if key.start is None else _part(view, dim, key.start)
    stop = size if key.stop is None else _part(view, dim, key.stop)
    if start < 0:
        start += size
    if stop < 0:
        stop += size
    if step < 1:
        raise IndexError(f"step is {step} in dimension {dim} of {view!r}; it must be at least 1")
    if not 0 <= start < stop <= size:
        raise IndexError(
            f"slice {key.start}:{key.stop} of dimension {dim} of {view!r}; it must hold at least "
            f"one element and lie in 0..{size}"
        )
    return start, (stop - start + step - 1) // step, step


def _part(view: MemoryView, dim: int, value: Any) -> int:
    if isinstance(value, VirtualRegister):
        raise TypeError(
            f"a register in a slice of dimension {dim} of {view!r}; use nl.ds(register, size)"
        )
    return operator.index(value)


def static_index(view: MemoryView, dim: int, key: Any) -> int:
    """The element of one dimension that an integer, negative ones from the end, means.

    Raises:
        IndexError: there is no such element.
        TypeError: it is no integer.
    """
    size = view.shape[dim]
    if type(key) is int and 0 <= key < size:
        return key
    if isinstance(key, bool):
        raise TypeError(f"index {key} of dimension {dim} of {view!r}; booleans are no indices")
    if key is None:
        raise TypeError(f"None is no index of {view!r}; use expand_dim")
    try:
        at = operator.index(key)
    except TypeError:
        raise TypeError(
            f"index {key!r} of dimension {dim} of {view!r}; it must be an integer, a slice, "
            "nl.ds, a register or ..."
        ) from None
    if not -size <= at < size:
        raise IndexError(f"index {at} of dimension {dim} of {view!r}; its size is {size}")
    return at + size if at < 0 else at


def check_scalar_index(argument: str, index: Any) -> None:
    """A register, or an SBUF tensor of one int32 or uint32.

    Raises:
        NkiValidationError: it is neither.
    """
    if isinstance(index, VirtualRegister):
        return
    if not _in_sbuf(index) or index.size != 1:
        raise NkiValidationError(
            f"{argument} is {index!r}; it must be a register or an SBUF tensor of one element"
        )
    _check_integers(argument, index)


def check_vector_index(argument: str, index: Any, rows: int) -> None:
    """An SBUF tensor with an int32 or uint32 for each of `rows` rows.

    Raises:
        NkiValidationError: it is none.
    """
    if not _in_sbuf(index):
        raise NkiValidationError(f"{argument} is {index!r}; it must be an SBUF tensor [P, 1]")
    _check_integers(argument, index)
    if index.size < rows:
        raise NkiValidationError(
            f"{argument} is {index!r} of {index.size} elements; it must have one for each of "
            f"{rows} rows"
        )


def _in_sbuf(index: Any) -> bool:
    return isinstance(index, MemoryView) and index.buffer is MemoryRegion.sbuf


def _check_integers(argument: str, index: MemoryView) -> None:
    if index.dtype is not dtypes.int32 and index.dtype is not dtypes.uint32:
        raise NkiValidationError(f"{argument} is {index!r}; it must be int32 or uint32")
    if index.dynamic is not None:
        raise NkiValidationError(f"{argument} is {index!r}, which has a dynamic index itself")
