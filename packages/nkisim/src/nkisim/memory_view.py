"""Which bytes a view of a tensor covers, and what they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from nkisim import dynamic, views
from nkisim.dtypes import DType
from nkisim.dynamic import Dynamic
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiValidationError
from nkisim.storage import Storage
from nkisim.trace import Access
from nkisim.views import Shape

Array = npt.NDArray[Any]


class MemoryView:
    """A shape, strides and an offset over the memory of one allocated tensor.

    All views share that memory. On chip, dimension 0 is the partition dimension, whose stride is
    the number of elements that a partition of the allocated tensor holds.

    Attributes:
        storage: the allocated tensor
        dtype: of the elements as this view reads them
        shape, strides, offset: in elements of `dtype`
        dynamic: an index that takes part in the addresses at run time, or None
    """

    __slots__ = ("_access", "_array", "dtype", "dynamic", "offset", "shape", "storage", "strides")

    def __init__(
        self,
        storage: Storage,
        dtype: DType,
        shape: Shape,
        strides: Shape,
        offset: int,
        dynamic: Dynamic | None = None,
    ) -> None:
        self.storage = storage
        self.dtype = dtype
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.dynamic = dynamic
        self._access: Access | None = None
        self._array: Array | None = None

    @property
    def name(self) -> str:
        return self.storage.place.name

    @property
    def buffer(self) -> MemoryRegion:
        return self.storage.place.region

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def on_chip(self) -> bool:
        return self.storage.pitch != 0

    def is_contiguous(self) -> bool:
        """Whether the elements (on chip: of each partition) lie one after the other."""
        first = 1 if self.on_chip else 0
        return views.is_contiguous(self.shape[first:], self.strides[first:])

    def is_indirect(self) -> bool:
        """Whether a tensor chooses the rows or the elements of this view."""
        return self.dynamic is not None and self.dynamic.kind != "scalar"

    def get_pattern(self) -> list[list[int]]:
        """`[[stride, size], ...]`, outermost dimension first."""
        return [[stride, size] for stride, size in zip(self.strides, self.shape, strict=True)]

    def __repr__(self) -> str:
        return f"NkiTensor({self.name!r}, {list(self.shape)}, {self.dtype}, {self.buffer.value})"

    # Bytes

    def access(self) -> Access:
        """The bytes that an instruction with this operand touches."""
        found = self._access
        if found is None:
            if 0 in self.shape:
                raise NkiValidationError(f"{self!r} has no elements; an instruction needs one")
            found = _on_chip(self) if self.storage.pitch else _in_hbm(self)
            place = found.place
            if (
                found.hi > place.bytes_per_partition
                or found.p1 > place.base_partition + place.partitions
            ):
                raise _beyond(self, found)
            self._access = found
        return found

    def touched(self) -> list[Access] | None:
        """Of a view with a dynamic index: the bytes that it means at this moment.

        None where that is not known: the run does not compute the index, or it is of a `gather`.
        """
        assert self.dynamic is not None
        if self.dynamic.kind == "gather" or not dynamic.is_known(self.dynamic.index):
            return None
        if self.dynamic.kind == "scalar":
            _, in_range = dynamic.index_value(self)
            return [self.resolved().access()] if in_range else []
        starts, valid = dynamic.row_starts(self)
        shape, strides = (1, *self.shape[1:]), (0, *self.strides[1:])
        rows = (int(start) for start in np.unique(starts[valid]))
        return [_in_hbm(MemoryView(self.storage, self.dtype, shape, strides, at)) for at in rows]

    # Values

    def has_values(self, numerics: bool) -> bool:
        """Whether `values` can tell what this view holds at this moment.

        A run without `numerics` has the values of the caller's arrays, as long as the kernel writes
        nothing to them, and not those of a view whose index it does not compute.
        """
        if numerics:
            return True
        if self.storage.data is None or self.storage.version > 0:
            return False
        return self.dynamic is None or dynamic.is_known(self.dynamic.index)

    def array(self) -> Array:
        """The elements as a NumPy view of the simulated memory; any dynamic index is left out.

        What matmuls have left to add up in PSUM is added up first.
        """
        storage = self.storage
        if storage.accumulation is not None:
            storage.accumulation.flush(storage)
        found = self._array
        if found is None:
            found = self._array = self._new_array()
        return found

    def _new_array(self) -> Array:
        storage = self.storage
        data = storage.data
        if data is None:
            raise NkiValidationError(f"{self!r} has no values in a run without numerics")
        if storage.fresh:
            storage.settle()
        dtype = self.dtype
        item = dtype.itemsize
        given = self.strides
        pitch = storage.pitch
        if not pitch:
            strides = [stride * item for stride in given]
            return np.ndarray(
                self.shape, dtype.numpy, data, storage.base + self.offset * item, strides
            )
        width = storage.place.bytes_per_partition // item
        partition, free = divmod(self.offset, width)
        rows = given[0] // width * pitch
        if len(given) == 2:
            # most tiles
            strides = [rows, given[1] * item]
        else:
            strides = [rows, *[stride * item for stride in given[1:]]]
        start = storage.base + partition * pitch + free * item
        return np.ndarray(self.shape, dtype.numpy, data, start, strides)

    def values(self, group: int = 16) -> Array:
        """The elements, with any dynamic index followed; may be a view of the memory.

        `group` is the number of partitions that share the indices of an `indirect` view.
        """
        if self.dynamic is None:
            return self.array()
        if self.dynamic.kind == "scalar":
            return self.resolved().array()
        if self.dynamic.kind == "gather":
            columns = dynamic.gather_columns(self, group)
            found: Array = np.take_along_axis(self._gathered().array(), columns, axis=1)
            return found
        elements, valid = dynamic.elements_of(self)
        if not valid.all():
            raise dynamic.out_of_range(self, valid)
        return self.flat()[elements].reshape(self.shape)

    def assign(self, values: Array, group: int = 16) -> None:
        """Store elements that have this view's dtype already, following any dynamic index."""
        if self.dynamic is None:
            target = self.array()
            target[...] = values.reshape(target.shape)
        elif self.dynamic.kind == "scalar":
            self.resolved().assign(values)
        elif self.dynamic.kind == "gather":
            columns = dynamic.gather_columns(self, group)
            gathered = self._gathered().array()
            np.put_along_axis(gathered, columns, values.reshape(columns.shape), axis=1)
        else:
            elements, valid = dynamic.elements_of(self)
            if not valid.all():
                raise dynamic.out_of_range(self, valid)
            self.flat()[elements] = values.reshape(elements.shape)

    def flat(self) -> Array:
        """All elements of the HBM tensor behind this view, in one dimension."""
        data = self.storage.data
        assert data is not None and not self.on_chip
        count = self.storage.place.bytes_per_partition // self.dtype.itemsize
        return np.ndarray((count,), self.dtype.numpy, data, self.storage.base)

    def resolved(self) -> Self:
        """A `scalar` view with its index followed.

        Raises:
            NkiValidationError: the index is out of range, or the view leaves its tensor.
        """
        offset = dynamic.resolved_offset(self)
        return type(self)(self.storage, self.dtype, self.shape, self.strides, offset)

    def _gathered(self) -> MemoryView:
        """What the index of a `gather` view chooses from."""
        assert self.dynamic is not None
        shape = (self.shape[0], self.dynamic.limit)
        return MemoryView(self.storage, self.dtype, shape, (self.strides[0], 1), self.offset)


def _beyond(view: MemoryView, access: Access) -> NkiValidationError:
    place = access.place
    item = view.dtype.itemsize
    last, width = (access.hi - 1) // item, place.bytes_per_partition // item
    where = f"{view!r} with the pattern {view.get_pattern()} from element {view.offset} reaches"
    if not place.on_chip:
        return NkiValidationError(f"{where} element {last}; its tensor has {width}")
    return NkiValidationError(
        f"{where} partition {access.p1 - place.base_partition - 1}, element {last}; its tensor has "
        f"{place.partitions} partitions of {width} elements"
    )


def _on_chip(view: MemoryView) -> Access:
    place = view.storage.place
    dtype = view.dtype
    item = dtype.itemsize
    shape, strides = view.shape, view.strides
    width = place.bytes_per_partition // item
    p0, free = divmod(view.offset, width)
    p0 += place.base_partition
    if len(shape) == 2 and strides == (width, 1) and view.dynamic is None:
        # by far the most frequent
        lo = free * item
        run = shape[1] * item
        hi = lo + run
        return Access(place, dtype, p0, p0 + shape[0], lo, hi, run, (), shape[1], item, False)
    p1 = p0 + (shape[0] - 1) * (strides[0] // width) + 1
    if view.dynamic is not None:
        run, steps, elements, inner, _ = _pattern(shape[1:], strides[1:], item)
        reach = place.bytes_per_partition
        return Access(place, dtype, p0, p1, 0, reach, run, steps, elements, inner, True)
    lo = free * item
    run, steps, elements, inner, extent = _pattern(shape[1:], strides[1:], item)
    return Access(place, dtype, p0, p1, lo, lo + extent, run, steps, elements, inner, False)


def _in_hbm(view: MemoryView) -> Access:
    place = view.storage.place
    dtype = view.dtype
    item = dtype.itemsize
    run, steps, elements, inner, extent = _pattern(view.shape, view.strides, item)
    if view.dynamic is not None:
        reach = place.bytes_per_partition
        return Access(place, dtype, 0, 1, 0, reach, run, steps, elements, inner, True)
    lo = view.offset * item
    return Access(place, dtype, 0, 1, lo, lo + extent, run, steps, elements, inner, False)


def _pattern(
    shape: Sequence[int], strides: Sequence[int], item: int
) -> tuple[int, tuple[tuple[int, int], ...], int, int, int]:
    """The run, steps, elements and inner step of an `Access`, and the bytes from first to last.

    Dimensions that continue one another are merged.
    """
    run = extent = item
    elements = 1
    inner = -1
    steps: list[tuple[int, int]] = []
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        step = stride * item
        elements *= size
        if inner < 0:
            inner = step
        if step == 0:
            continue
        extent += (size - 1) * step
        if steps:
            if step == steps[0][0] * steps[0][1]:
                steps[0] = (steps[0][0], steps[0][1] * size)
            else:
                steps.insert(0, (step, size))
        elif step == run:
            run *= size
        else:
            steps.append((step, size))
    return run, tuple(steps), elements, item if inner < 0 else inner, extent
