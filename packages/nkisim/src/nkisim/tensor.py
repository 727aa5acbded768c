"""`NkiTensor`: a view of memory, as kernels see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nkisim import indexing
from nkisim.access_pattern import Offsets, access_pattern, indirect
from nkisim.dynamic import Dynamic
from nkisim.errors import NkiValidationError
from nkisim.indexing import DynamicSlice
from nkisim.memory_view import MemoryView
from nkisim.register import VirtualRegister
from nkisim.shaped_view import ShapedView
from nkisim.storage import Storage
from nkisim.views import contiguous_strides

__all__ = ["DynamicSlice", "NkiTensor", "whole"]

_FULL = slice(None)
_DYNAMIC = (DynamicSlice, VirtualRegister, MemoryView)


class NkiTensor(ShapedView):
    """A tensor of a kernel, or a view of one: a shape, strides and an offset over its memory.

    See `nkisim.memory_view` for its attributes and its bytes, and `nkisim.shaped_view` for other
    shapes of the same elements.
    """

    __slots__ = ()

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        raise TypeError("a tensor cannot be iterated over; index it")

    def __getitem__(self, key: Any) -> NkiTensor:
        """Elements by integers, slices of positive step, `...`, `nl.ds`, and one dynamic index.

        An integer drops its dimension; on chip, one for the partitions leaves a size of 1, and two
        dimensions remain at least.
        """
        if type(key) is not tuple:
            return self._indexed((key,))
        shape = self.shape
        if len(key) == 2 == len(shape) and self.dynamic is None:
            # rows and columns of a tile: by far the most frequent
            rows, columns = key
            if (
                type(rows) is slice
                and type(columns) is slice
                and rows.step is None
                and columns.step is None
            ):
                top = 0 if rows.start is None else rows.start
                bottom = shape[0] if rows.stop is None else rows.stop
                left = 0 if columns.start is None else columns.start
                right = shape[1] if columns.stop is None else columns.stop
                if (
                    type(top) is type(bottom) is type(left) is type(right) is int
                    and 0 <= top < bottom <= shape[0]
                    and 0 <= left < right <= shape[1]
                ):
                    strides = self.strides
                    at = self.offset + top * strides[0] + left * strides[1]
                    part = (bottom - top, right - left)
                    return NkiTensor(self.storage, self.dtype, part, strides, at)
        return self._indexed(key)

    def _indexed(self, keys: tuple[Any, ...]) -> NkiTensor:
        rank = len(self.shape)
        offset = self.offset
        dynamic = self.dynamic
        on_chip = self.storage.pitch != 0
        shape: list[int] = []
        strides: list[int] = []
        dim = 0
        filled = False
        for k in keys:
            if k is Ellipsis:
                if filled:
                    raise IndexError(f"two ... in the index of {self!r}; there may be one")
                filled = True
                following = max(dim, dim + rank - len(keys) + 1)
                shape += self.shape[dim:following]
                strides += self.strides[dim:following]
                dim = following
                continue
            if dim == rank:
                raise IndexError(f"{len(keys)} indices for {self!r} of {rank} dimensions")
            stride = self.strides[dim]
            if type(k) is slice:
                start, count, step = indexing.static_slice(self, dim, k)
                offset += start * stride
                shape.append(count)
                strides.append(stride * step)
            elif type(k) is int or not isinstance(k, _DYNAMIC):
                offset += indexing.static_index(self, dim, k) * stride
                if on_chip and dim == 0:
                    shape.append(1)
                    strides.append(stride)
            elif isinstance(k, DynamicSlice):
                if not isinstance(k.start, int):
                    dynamic = self._dynamic_index(k.start, dim, k.size, dynamic)
                shape.append(k.size)
                strides.append(stride)
            else:
                dynamic = self._dynamic_index(k, dim, 1, dynamic)
            dim += 1
        shape += self.shape[dim:]
        strides += self.strides[dim:]
        while len(shape) < (2 if on_chip else 1):
            shape.append(1)
            strides.append(1)
        view = NkiTensor(self.storage, self.dtype, tuple(shape), tuple(strides), offset, dynamic)
        if self.dynamic is not None and self.dynamic.kind != "scalar":
            self._check_indirect(view)
        return view

    def __setitem__(self, key: Any, value: Any) -> None:
        """`t[key] = tensor` copies, as in NKI's load/store style."""
        from nkisim.language.creation import assign

        assign(self[key], value)

    def _check_indirect(self, view: NkiTensor) -> None:
        """A slice of rows or elements that a tensor chooses: those must all be in it."""
        assert self.dynamic is not None
        fixed = 1 if self.dynamic.kind == "vector" else self.ndim
        if view.shape[:fixed] != self.shape[:fixed] or view.strides[:fixed] != self.strides[:fixed]:
            raise NkiValidationError(
                f"{self!r} is indirect: the dimension that its index chooses cannot be sliced"
            )

    def _dynamic_index(
        self,
        index: MemoryView | VirtualRegister,
        dim: int,
        count: int,
        present: Dynamic | None,
    ) -> Dynamic:
        """An index of dimension `dim`, from which on `count` elements are taken."""
        if present is not None:
            raise NkiValidationError(f"{self!r} has a dynamic index already; a view takes one")
        if self.on_chip and dim == 0:
            raise NkiValidationError(f"{self!r}: the partition dimension takes no dynamic index")
        if count > self.shape[dim]:
            raise IndexError(
                f"nl.ds of {count} elements in dimension {dim} of {self!r}; it has "
                f"{self.shape[dim]}"
            )
        indexing.check_scalar_index("index", index)
        return Dynamic("scalar", index, self.strides[dim], self.shape[dim] - count + 1)

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements `start:end:step` of one dimension."""
        at = self._dim(dim, first=True)
        if not 0 <= start < end <= self.shape[at] or step < 1:
            raise IndexError(
                f"slice {start}:{end}:{step} of dimension {at} of {self!r}; "
                f"0 <= start < end <= {self.shape[at]} and step >= 1 must hold"
            )
        return self[(_FULL,) * at + (slice(start, end, step),)]

    def select(self, dim: int, index: Any) -> NkiTensor:
        """One element of a dimension, which goes; the index may be a `[1, 1]` tensor in SBUF."""
        at = self._dim(dim)
        if isinstance(index, (VirtualRegister, MemoryView)):
            dynamic = self._dynamic_index(index, at, 1, self.dynamic)
            return self._without(at, self.offset, dynamic)
        offset = self.offset + indexing.static_index(self, at, index) * self.strides[at]
        return self._without(at, offset, self.dynamic)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Rows of dimension 0 of an HBM tensor, chosen by a `[P, 1]` tensor in SBUF."""
        if dim != 0 or self.on_chip:
            raise NkiValidationError(
                f"vector_select: dim is {dim} of {self!r}; it takes dimension 0 of an HBM tensor"
            )
        if self.dynamic is not None:
            raise NkiValidationError(f"{self!r} has a dynamic index already; a view takes one")
        indexing.check_vector_index("vector_select: vector_offset", vector_offset, 1)
        rows = vector_offset.shape[0]
        if vector_offset.size != rows:
            raise NkiValidationError(
                f"vector_select: vector_offset is {vector_offset!r}; it must be [P, 1]"
            )
        dynamic = Dynamic("vector", vector_offset, self.strides[0], self.shape[0])
        shape = (rows, *self.shape[1:])
        return NkiTensor(self.storage, self.dtype, shape, self.strides, self.offset, dynamic)

    def ap(
        self,
        pattern: Sequence[Sequence[int]],
        offset: int | None = None,
        scalar_offset: Any = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: Any = None,
    ) -> NkiTensor:
        """An explicit access pattern over the allocated tensor; see `nkisim.access_pattern`."""
        offsets = Offsets(offset, scalar_offset, vector_offset, indirect_dim)
        return NkiTensor(self.storage, *access_pattern(self, pattern, offsets, dtype))

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Free elements chosen by `index`; see `nkisim.access_pattern`."""
        return NkiTensor(self.storage, *indirect(self, index, num_elem))


def whole(storage: Storage) -> NkiTensor:
    """All of an allocated tensor, as it was allocated."""
    place = storage.place
    return NkiTensor(storage, place.dtype, place.shape, contiguous_strides(place.shape), 0)
