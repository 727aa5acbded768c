"""Other shapes for the same elements: the methods of a tensor that move nothing."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Self

from nkisim import dtypes, views
from nkisim.dynamic import Dynamic
from nkisim.errors import NkiValidationError
from nkisim.memory_view import MemoryView
from nkisim.views import Names, Shape


class ShapedView(MemoryView):
    """A view that gives further views: none of them costs an instruction.

    On chip, the partition dimension stays the first one in all of them; so does the dimension of an
    HBM tensor whose rows an index chooses.
    """

    __slots__ = ()

    def _shown(self, shape: Shape, strides: Shape) -> Self:
        return type(self)(self.storage, self.dtype, shape, strides, self.offset, self.dynamic)

    def _first_stays(self) -> bool:
        return self.storage.pitch != 0 or self.is_indirect()

    def _dim(self, dim: int, argument: str = "dim", first: bool = False) -> int:
        """The dimension that `dim`, negative ones from the end, means.

        `first` allows the first dimension where it has to stay what it is.
        """
        rank = len(self.shape)
        at = operator.index(dim)
        if not -rank <= at < rank:
            raise IndexError(f"{argument} is {dim}; {self!r} has dimensions 0..{rank - 1}")
        at %= rank
        if at == 0 and not first and self._first_stays():
            what = "partition dimension" if self.on_chip else "dimension that an index chooses from"
            raise NkiValidationError(f"{argument} is {dim}, the {what} of {self!r}")
        if self.dynamic is not None and self.dynamic.kind == "gather":
            raise NkiValidationError(f"{self!r} is indirect: it has no other views")
        return at

    def permute(self, dims: Sequence[int]) -> Self:
        """The dimensions in another order."""
        order = tuple(self._dim(dim, "dims", first=True) for dim in dims)
        if sorted(order) != list(range(self.ndim)):
            raise NkiValidationError(
                f"dims is {list(dims)}; it must be an order of the {self.ndim} dimensions of "
                f"{self!r}"
            )
        if order[0] != 0 and self._first_stays():
            raise NkiValidationError(
                f"dims is {list(dims)}; the first dimension of {self!r} must stay the first"
            )
        return self._shown(
            tuple([self.shape[i] for i in order]), tuple([self.strides[i] for i in order])
        )

    def broadcast(self, dim: int, size: int) -> Self:
        """A dimension of size 1 as one of `size` equal elements, with stride 0."""
        at = self._dim(dim)
        count = operator.index(size)
        if self.shape[at] != 1 or count < 1:
            raise NkiValidationError(
                f"broadcast of dimension {at} of {self!r} to {size}; its size must be 1"
            )
        shape = (*self.shape[:at], count, *self.shape[at + 1 :])
        return self._shown(shape, (*self.strides[:at], 0, *self.strides[at + 1 :]))

    def expand_dim(self, dim: int) -> Self:
        """A dimension of size 1 before dimension `dim`; -1 puts it behind the last."""
        rank = self.ndim
        at = operator.index(dim)
        if not -rank - 1 <= at <= rank:
            raise IndexError(f"dim is {dim}; it must be in {-rank - 1}..{rank} for {self!r}")
        at %= rank + 1
        if at == 0 and self._first_stays():
            raise NkiValidationError(f"dim is {dim}; {self!r} cannot get a dimension there")
        self._dim(0, first=True)
        stride = self.strides[at] * self.shape[at] if at < rank else 1
        shape = (*self.shape[:at], 1, *self.shape[at:])
        return self._shown(shape, (*self.strides[:at], stride, *self.strides[at:]))

    def squeeze_dim(self, dim: int) -> Self:
        """Without dimension `dim`, whose size is 1; at least two remain on chip, and one in HBM."""
        at = self._dim(dim)
        if self.shape[at] != 1:
            raise NkiValidationError(f"dim is {dim}; its size in {self!r} must be 1")
        return self._without(at, self.offset, self.dynamic)

    def _without(self, at: int, offset: int, dynamic: Dynamic | None) -> Self:
        """This view without dimension `at`, which stays with size 1 where too few would be left."""
        shape = self.shape[:at] + self.shape[at + 1 :]
        strides = self.strides[:at] + self.strides[at + 1 :]
        if len(shape) < (2 if self.on_chip else 1):
            shape, strides = (*shape, 1), (*strides, 1)
        return type(self)(self.storage, self.dtype, shape, strides, offset, dynamic)

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> Self:
        """One dimension as several; one size may be -1."""
        at = self._dim(dim)
        sizes = views.filled(shape, self.shape[at])
        stride = self.strides[at]
        inner = tuple([stride * step for step in views.contiguous_strides(sizes)])
        return self._shown(
            (*self.shape[:at], *sizes, *self.shape[at + 1 :]),
            (*self.strides[:at], *inner, *self.strides[at + 1 :]),
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> Self:
        """Dimensions `start_dim` to `end_dim`, both included, as one; they must be contiguous."""
        first = self._dim(start_dim, "start_dim")
        last = self._dim(end_dim, "end_dim")
        if first > last:
            raise NkiValidationError(f"start_dim is {start_dim}, after end_dim {end_dim}")
        shape = self.shape[first : last + 1]
        size = math.prod(shape)
        strides = views.reshaped(shape, self.strides[first : last + 1], (size,))
        return self._shown(
            (*self.shape[:first], size, *self.shape[last + 1 :]),
            (*self.strides[:first], *strides, *self.strides[last + 1 :]),
        )

    def reshape(self, shape: Sequence[int]) -> Self:
        """The same elements in the same order under another shape; one size may be -1."""
        given = (shape,) if isinstance(shape, int) else shape
        new = views.filled(given, self.size)
        if not self._first_stays():
            return self._shown(new, views.reshaped(self.shape, self.strides, new))
        self._dim(0, first=True)
        if new[0] != self.shape[0]:
            raise NkiValidationError(
                f"shape is {list(new)}; the first dimension of {self!r} must stay {self.shape[0]}"
            )
        inner = views.reshaped(self.shape[1:], self.strides[1:], new[1:])
        if len(new) == 1 and self.on_chip:
            return self._shown((*new, 1), (self.strides[0], 1))
        return self._shown(new, (self.strides[0], *inner))

    def rearrange(
        self, src_pattern: Names, dst_pattern: Names, fixed_sizes: Mapping[str, int] | None = None
    ) -> Self:
        """Split, reorder and merge dimensions by name; see `nkisim.views.rearranged`."""
        shape, strides = views.rearranged(
            self.shape, self.strides, src_pattern, dst_pattern, fixed_sizes
        )
        self._dim(0, first=True)
        if self._first_stays():
            # a dimension of size 1 is as good as any other of size 1
            if shape[0] != self.shape[0] or (shape[0] > 1 and strides[0] != self.strides[0]):
                raise NkiValidationError(
                    f"dst_pattern is {dst_pattern!r}; the first dimension of {self!r} must stay"
                )
            strides = (self.strides[0], *strides[1:])
        return self._shown(shape, strides)

    def view(self, dtype: Any) -> Self:
        """The same bytes as elements of another type; the last dimension changes its size."""
        new = dtypes.resolve(dtype)
        old, item = self.dtype.itemsize, new.itemsize
        if old == item:
            return type(self)(
                self.storage, new, self.shape, self.strides, self.offset, self.dynamic
            )
        if self.is_indirect():
            raise NkiValidationError(f"{self!r} is indirect: it has no view of another size")
        if self.shape[-1] != 1 and self.strides[-1] != 1:
            raise NkiValidationError(f"{self!r}: its last dimension must be contiguous")
        dynamic = self.dynamic
        if dynamic is not None:
            stride = self._rescaled(dynamic.stride, new)
            dynamic = Dynamic(dynamic.kind, dynamic.index, stride, dynamic.limit)
        if self.on_chip:
            self._rescaled(self.storage.place.bytes_per_partition // old, new)
        # the stride of a dimension of size 1 says nothing
        outer = [
            self._rescaled(stride, new) if size > 1 else stride * old // item
            for size, stride in zip(self.shape[:-1], self.strides[:-1], strict=True)
        ]
        last = self._rescaled(self.shape[-1], new)
        offset = self._rescaled(self.offset, new)
        return type(self)(self.storage, new, (*self.shape[:-1], last), (*outer, 1), offset, dynamic)

    reinterpret_cast = view

    def _rescaled(self, elements: int, new: dtypes.DType) -> int:
        """A size, a stride or an offset in elements of another type."""
        size = elements * self.dtype.itemsize
        if size % new.itemsize:
            raise NkiValidationError(
                f"{self!r} cannot be seen as {new}: {size} bytes, its last size, a stride or its "
                f"offset, do not divide by {new.itemsize}"
            )
        return size // new.itemsize
