"""Where tensors live, and slices that may start at a register."""

from __future__ import annotations

import operator
from typing import Any

from nkisim.enums import MemoryRegion
from nkisim.register import VirtualRegister
from nkisim.tensor import DynamicSlice, NkiTensor

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
private_hbm = MemoryRegion.private_hbm
hbm = MemoryRegion.private_hbm
shared_hbm = MemoryRegion.shared_hbm


def region(what: str, buffer: Any) -> MemoryRegion:
    """`buffer`, which must be one of the memory regions.

    Raises:
        TypeError: it is none; strings, which NKI took before 0.3, are none either.
    """
    if isinstance(buffer, MemoryRegion):
        return buffer
    raise TypeError(
        f"{what}: buffer is {buffer!r}; it must be one of the objects nl.sbuf, nl.psum, "
        "nl.private_hbm (also called nl.hbm) and nl.shared_hbm"
    )


def is_hbm(buffer: MemoryRegion) -> bool:
    """Whether `buffer` is private or shared HBM."""
    found = region("nl.is_hbm", buffer)
    return found is private_hbm or found is shared_hbm


def is_sbuf(buffer: MemoryRegion) -> bool:
    """Whether `buffer` is SBUF."""
    return region("nl.is_sbuf", buffer) is sbuf


def is_psum(buffer: MemoryRegion) -> bool:
    """Whether `buffer` is PSUM."""
    return region("nl.is_psum", buffer) is psum


def is_on_chip(buffer: MemoryRegion) -> bool:
    """Whether `buffer` is SBUF or PSUM."""
    found = region("nl.is_on_chip", buffer)
    return found is sbuf or found is psum


def ds(start: Any, size: int) -> slice | DynamicSlice:
    """`size` elements from `start`, as an index of a tensor.

    Args:
        start: an integer of at least 0; or a register, or a tensor of one element in SBUF, with the
            start at run time.
        size: at least 1. With an integer `start` it may be 0: kernels make such a view on a core
            for which there is no work. No instruction takes it.
    """
    count = operator.index(size)
    if isinstance(start, (VirtualRegister, NkiTensor)):
        if count < 1:
            raise ValueError(f"nl.ds: size is {size}; it must be at least 1")
        return DynamicSlice(start, count)
    first = operator.index(start)
    if first < 0 or count < 0:
        raise ValueError(f"nl.ds: start is {start}, size {size}; they must be at least 0")
    if count == 0:
        return DynamicSlice(first, 0)
    return slice(first, first + count)
