"""`NkiTensor`: a view of memory, as kernels see it."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim import dtypes, views
from nkisim.dtypes import DType
from nkisim.dynamic import Dynamic, elements_of, gather_columns, scalar_value
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiValidationError
from nkisim.register import VirtualRegister
from nkisim.storage import Storage
from nkisim.trace import Access
from nkisim.views import Names, Shape

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

_FULL = slice(None)


class DynamicSlice:
    """`nl.ds(start, size)` with a start that is known only when the kernel runs."""

    __slots__ = ("size", "start")

    def __init__(self, start: NkiTensor | VirtualRegister, size: int) -> None:
        self.start = start
        self.size = size


class NkiTensor:
    """A shape, strides and an offset over the memory of one allocated tensor.

    All views share that memory. On chip, dimension 0 is the partition dimension, whose stride is
    the number of elements that a partition of the allocated tensor holds.

    Attributes:
        storage: the allocated tensor
        dtype: of the elements as this view reads them
        shape, strides, offset: in elements of `dtype`
        dynamic: an index that takes part in the addresses at run time, or None
    """

    __slots__ = ("_access", "dtype", "dynamic", "offset", "shape", "storage", "strides")

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

    # What kernels ask

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
        return (
            f"NkiTensor({self.name!r}, {list(self.shape)}, {self.dtype}, {self.buffer.value})"
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        raise TypeError("a tensor cannot be iterated over; index it")

    # Indexing

    def __getitem__(self, key: Any) -> NkiTensor:
        keys = key if type(key) is tuple else (key,)
        rank = len(self.shape)
        if any(k is Ellipsis for k in keys):
            at = next(i for i, k in enumerate(keys) if k is Ellipsis)
            keys = keys[:at] + (_FULL,) * (rank - len(keys) + 1) + keys[at + 1 :]
        if len(keys) > rank:
            raise IndexError(f"{len(keys)} indices for {self!r} of {rank} dimensions")
        on_chip = self.storage.pitch != 0
        offset = self.offset
        shape: list[int] = []
        strides: list[int] = []
        dynamic = self.dynamic
        position = 0
        for k in keys:
            size = self.shape[position]
            stride = self.strides[position]
            if type(k) is slice:
                if k.start is None and k.stop is None and k.step is None:
                    shape.append(size)
                    strides.append(stride)
                else:
                    start, count, step = _slice(self, position, k, size)
                    offset += start * stride
                    shape.append(count)
                    strides.append(stride * step)
            elif isinstance(k, (VirtualRegister, NkiTensor, DynamicSlice)):
                index, count = (k.start, k.size) if isinstance(k, DynamicSlice) else (k, 0)
                dynamic = self._dynamic_index(index, position, max(count, 1))
                if count:
                    shape.append(count)
                    strides.append(stride)
            else:
                at = _integer(self, position, k, size)
                offset += at * stride
                if on_chip and position == 0:
                    shape.append(1)
                    strides.append(stride)
            position += 1
        shape += self.shape[position:]
        strides += self.strides[position:]
        least = 2 if on_chip else 1
        while len(shape) < least:
            shape.append(1)
            strides.append(1)
        if dynamic is not None and dynamic.kind != "scalar":
            self._check_indirect_slice(shape)
        return NkiTensor(
            self.storage, self.dtype, tuple(shape), tuple(strides), offset, dynamic
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        """`t[key] = tensor` copies, as in NKI's load/store style."""
        from nkisim.language.creation import assign

        assign(self[key], value)

    def _check_indirect_slice(self, shape: Sequence[int]) -> None:
        if tuple(shape[:1]) != self.shape[:1] or (
            self.dynamic is not None and self.dynamic.kind == "gather" and tuple(shape) != self.shape
        ):
            raise NkiValidationError(
                f"{self!r} is indirect: the dimension that its index chooses cannot be sliced"
            )

    def _dynamic_index(
        self, index: NkiTensor | VirtualRegister, dim: int, count: int
    ) -> Dynamic:
        if self.dynamic is not None:
            raise NkiValidationError(f"{self!r} has a dynamic index already; a view takes one")
        if self.on_chip and dim == 0:
            raise NkiValidationError(f"{self!r}: the partition dimension takes no dynamic index")
        _check_scalar_index(index, "index")
        return Dynamic("scalar", index, self.strides[dim], self.shape[dim] - count + 1)

    # Views

    def _view(self, shape: Shape, strides: Shape, offset: int) -> NkiTensor:
        return NkiTensor(self.storage, self.dtype, shape, strides, offset, self.dynamic)

    def _dim(self, dim: int, argument: str = "dim", partition: bool = False) -> int:
        rank = len(self.shape)
        at = operator.index(dim)
        if not -rank <= at < rank:
            raise IndexError(f"{argument} is {dim}; {self!r} has dimensions 0..{rank - 1}")
        at %= rank
        if at == 0 and self.on_chip and not partition:
            raise NkiValidationError(f"{argument} is {dim}, the partition dimension of {self!r}")
        return at

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> NkiTensor:
        """Elements `start:end:step` of one dimension."""
        at = self._dim(dim, partition=True)
        if not 0 <= start < end <= self.shape[at] or step < 1:
            raise IndexError(
                f"slice {start}:{end}:{step} of dimension {at} of {self!r}; "
                f"0 <= start < end <= {self.shape[at]} and step >= 1 must hold"
            )
        return self[(_FULL,) * at + (slice(start, end, step),)]

    def select(self, dim: int, index: Any) -> NkiTensor:
        """One element of a dimension, which goes; the index may be a `[1, 1]` tensor in SBUF."""
        at = self._dim(dim)
        if isinstance(index, (VirtualRegister, NkiTensor)):
            dynamic: Dynamic | None = self._dynamic_index(index, at, 1)
            offset = self.offset
        else:
            dynamic = self.dynamic
            offset = self.offset + _integer(self, at, index, self.shape[at]) * self.strides[at]
        shape = self.shape[:at] + self.shape[at + 1 :]
        strides = self.strides[:at] + self.strides[at + 1 :]
        if len(shape) < (2 if self.on_chip else 1):
            shape, strides = (*shape, 1), (*strides, 1)
        return NkiTensor(self.storage, self.dtype, shape, strides, offset, dynamic)

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> NkiTensor:
        """Rows of dimension 0 of an HBM tensor, chosen by a `[P, 1]` tensor in SBUF."""
        if dim != 0 or self.on_chip:
            raise NkiValidationError(
                f"vector_select: dim is {dim} of {self!r}; it takes dimension 0 of an HBM tensor"
            )
        if self.dynamic is not None:
            raise NkiValidationError(f"{self!r} has a dynamic index already; a view takes one")
        _check_vector_index(vector_offset)
        dynamic = Dynamic("vector", vector_offset, self.strides[0], self.shape[0])
        shape = (vector_offset.shape[0], *self.shape[1:])
        return NkiTensor(self.storage, self.dtype, shape, self.strides, self.offset, dynamic)

    def permute(self, dims: Sequence[int]) -> NkiTensor:
        """The dimensions in another order; on chip the partition dimension stays first."""
        order = tuple(self._dim(dim, "dims", partition=True) for dim in dims)
        if sorted(order) != list(range(self.ndim)) or (self.on_chip and order[0] != 0):
            raise NkiValidationError(
                f"dims is {list(dims)}; it must be an order of the {self.ndim} dimensions of "
                f"{self!r}{', partitions first' if self.on_chip else ''}"
            )
        if self.is_indirect() and order[0] != 0:
            raise NkiValidationError(f"{self!r} is indirect: dimension 0 must stay first")
        return self._view(
            tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset
        )

    def broadcast(self, dim: int, size: int) -> NkiTensor:
        """A dimension of size 1 as one of `size` equal elements, with stride 0."""
        at = self._dim(dim)
        if self.shape[at] != 1 or size < 1:
            raise NkiValidationError(
                f"broadcast of dimension {at} of {self!r} to {size}; its size must be 1"
            )
        shape = (*self.shape[:at], int(size), *self.shape[at + 1 :])
        return self._view(shape, (*self.strides[:at], 0, *self.strides[at + 1 :]), self.offset)

    def expand_dim(self, dim: int) -> NkiTensor:
        """A dimension of size 1 before dimension `dim`."""
        at = operator.index(dim)
        if at < 0:
            at += self.ndim + 1
        if not (1 if self.on_chip else 0) <= at <= self.ndim:
            raise NkiValidationError(f"dim is {dim}; {self!r} cannot get a dimension there")
        stride = self.strides[at] * self.shape[at] if at < self.ndim else 1
        shape = (*self.shape[:at], 1, *self.shape[at:])
        return self._view(shape, (*self.strides[:at], stride, *self.strides[at:]), self.offset)

    def squeeze_dim(self, dim: int) -> NkiTensor:
        """Without dimension `dim`, whose size is 1."""
        at = self._dim(dim)
        if self.shape[at] != 1:
            raise NkiValidationError(f"dim is {dim}; its size in {self!r} must be 1")
        return self._view(
            self.shape[:at] + self.shape[at + 1 :],
            self.strides[:at] + self.strides[at + 1 :],
            self.offset,
        )

    def reshape_dim(self, dim: int, shape: Sequence[int]) -> NkiTensor:
        """One dimension as several; one size may be -1."""
        at = self._dim(dim)
        sizes = views.filled(shape, self.shape[at])
        stride = self.strides[at]
        inner = tuple(stride * step for step in views.contiguous_strides(sizes))
        return self._view(
            (*self.shape[:at], *sizes, *self.shape[at + 1 :]),
            (*self.strides[:at], *inner, *self.strides[at + 1 :]),
            self.offset,
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> NkiTensor:
        """Dimensions `start_dim` to `end_dim`, both included, as one."""
        first = self._dim(start_dim, "start_dim")
        last = self._dim(end_dim, "end_dim")
        if first > last:
            raise NkiValidationError(f"start_dim is {start_dim}, after end_dim {end_dim}")
        shape = self.shape[first : last + 1]
        size = math.prod(shape)
        strides = views.reshaped(shape, self.strides[first : last + 1], (size,))
        return self._view(
            (*self.shape[:first], size, *self.shape[last + 1 :]),
            (*self.strides[:first], *strides, *self.strides[last + 1 :]),
            self.offset,
        )

    def reshape(self, shape: Sequence[int]) -> NkiTensor:
        """The same elements under another shape; on chip the partitions stay."""
        if isinstance(shape, int):
            shape = (shape,)
        new = views.filled(shape, self.size)
        if self.dynamic is not None and self.dynamic.kind != "scalar" and new[0] != self.shape[0]:
            raise NkiValidationError(f"{self!r} is indirect: dimension 0 must stay")
        if not self.on_chip:
            return self._view(new, views.reshaped(self.shape, self.strides, new), self.offset)
        if new[0] != self.shape[0]:
            raise NkiValidationError(
                f"shape is {list(new)}; the {self.shape[0]} partitions of {self!r} must stay"
            )
        if len(new) == 1:
            return self._view((*new, 1), (self.strides[0], 1), self.offset)
        inner = views.reshaped(self.shape[1:], self.strides[1:], new[1:])
        return self._view(new, (self.strides[0], *inner), self.offset)

    def rearrange(
        self, src_pattern: Names, dst_pattern: Names, fixed_sizes: Mapping[str, int] | None = None
    ) -> NkiTensor:
        """Split, reorder and merge dimensions by name; see `nkisim.views.rearranged`."""
        shape, strides = views.rearranged(
            self.shape, self.strides, src_pattern, dst_pattern, fixed_sizes
        )
        if self.on_chip and (shape[0], strides[0]) != (self.shape[0], self.strides[0]):
            raise NkiValidationError(f"rearrange: the partition dimension of {self!r} must stay")
        return self._view(shape, strides, self.offset)

    def view(self, dtype: Any) -> NkiTensor:
        """The same bytes as elements of another type; the last dimension changes its size."""
        new = dtypes.resolve(dtype)
        old_size, new_size = self.dtype.itemsize, new.itemsize
        if old_size == new_size:
            return NkiTensor(
                self.storage, new, self.shape, self.strides, self.offset, self.dynamic
            )
        if self.dynamic is not None:
            raise NkiValidationError(f"{self!r} has a dynamic index: it has no other view")
        if self.shape[-1] != 1 and self.strides[-1] != 1:
            raise NkiValidationError(f"{self!r}: its last dimension must be contiguous")
        last = self.shape[-1] * old_size
        outer = self.strides[:-1]
        if last % new_size or self.offset * old_size % new_size or any(
            s * old_size % new_size for s, n in zip(outer, self.shape, strict=False) if n > 1
        ):
            raise NkiValidationError(
                f"{self!r} cannot be seen as {new}: {last} bytes, or a stride or the offset of it, "
                f"do not divide by {new_size}"
            )
        return NkiTensor(
            self.storage,
            new,
            (*self.shape[:-1], last // new_size),
            (*(s * old_size // new_size for s in outer), 1),
            self.offset * old_size // new_size,
        )

    reinterpret_cast = view

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
        from nkisim.access_pattern import access_pattern

        return access_pattern(
            self, pattern, offset, scalar_offset, vector_offset, indirect_dim, dtype
        )

    def indirect(self, index: NkiTensor, num_elem: int | None = None) -> NkiTensor:
        """Free elements chosen by `index`; see `nkisim.access_pattern`."""
        from nkisim.access_pattern import indirect

        return indirect(self, index, num_elem)

    # Bytes

    def access(self) -> Access:
        """The bytes that an instruction with this operand touches."""
        if self._access is None:
            self._access = _access(self)
        return self._access

    def array(self) -> Array:
        """The elements as a NumPy view of the simulated memory; for static views.

        What matmuls have left to add up in PSUM is added up first.
        """
        storage = self.storage
        data = storage.data
        if data is None:
            raise NkiValidationError(f"{self!r} has no values in a run without numerics")
        if storage.accumulation is not None:
            storage.accumulation.flush(storage)
            for other in storage.alive_neighbours():
                if other.accumulation is not None:
                    other.accumulation.flush(other)
        item = self.dtype.itemsize
        if storage.pitch:
            width = storage.place.bytes_per_partition // item
            partition, free = divmod(self.offset, width)
            start = storage.base + partition * storage.pitch + free * item
            strides = [stride * item for stride in self.strides]
            strides[0] = self.strides[0] // width * storage.pitch
        else:
            start = storage.base + self.offset * item
            strides = [stride * item for stride in self.strides]
        return np.ndarray(self.shape, self.dtype.numpy, data, start, strides)

    def values(self, group: int = 16) -> Array:
        """The elements, with any dynamic index followed; may be a view of the memory.

        `group` is the number of partitions that share the indices of an `indirect` view.
        """
        dynamic = self.dynamic
        if dynamic is None:
            return self.array()
        if dynamic.kind == "scalar":
            return self.resolved().array()
        if dynamic.kind == "gather":
            columns = gather_columns(self, group)
            found: Array = np.take_along_axis(self._gather_base().array(), columns, axis=1)
            return found
        elements, valid = elements_of(self)
        if not valid.all():
            raise self.out_of_range(valid)
        return self.flat()[elements].reshape(self.shape)

    def assign(self, values: Array, group: int = 16) -> None:
        """Store elements that have this view's dtype already, following any dynamic index."""
        dynamic = self.dynamic
        if dynamic is None:
            target = self.array()
            target[...] = values.reshape(target.shape)
        elif dynamic.kind == "scalar":
            self.resolved().assign(values)
        elif dynamic.kind == "gather":
            columns = gather_columns(self, group)
            np.put_along_axis(
                self._gather_base().array(), columns, values.reshape(columns.shape), axis=1
            )
        else:
            elements, valid = elements_of(self)
            if not valid.all():
                raise self.out_of_range(valid)
            self.flat()[elements] = values.reshape(elements.shape)

    def flat(self) -> Array:
        """All elements of the HBM tensor behind this view, in one dimension."""
        data = self.storage.data
        assert data is not None and not self.on_chip
        count = self.storage.place.bytes_per_partition // self.dtype.itemsize
        return np.ndarray((count,), self.dtype.numpy, data, self.storage.base)

    def resolved(self) -> NkiTensor:
        """A `scalar` view with its index followed.

        Raises:
            NkiValidationError: the index is out of range.
        """
        dynamic = self.dynamic
        assert dynamic is not None and dynamic.kind == "scalar"
        value = scalar_value(dynamic.index, f"the index of {self!r}")
        if not 0 <= value < dynamic.limit:
            raise NkiValidationError(
                f"the dynamic index of {self!r} is {value}; it must be in 0..{dynamic.limit - 1}"
            )
        return NkiTensor(
            self.storage, self.dtype, self.shape, self.strides, self.offset + value * dynamic.stride
        )

    def out_of_range(self, valid: npt.NDArray[np.bool_]) -> NkiValidationError:
        """The error of a `vector` view some of whose rows are out of range."""
        dynamic = self.dynamic
        assert dynamic is not None and not isinstance(dynamic.index, VirtualRegister)
        row = int(np.flatnonzero(~valid)[0])
        value = dynamic.index.array().reshape(-1, order="F")[row]
        return NkiValidationError(
            f"the index of row {row} of {self!r} is {int(value)}; it must be in "
            f"0..{dynamic.limit - 1} (oob_mode.skip leaves such rows alone)"
        )

    def _gather_base(self) -> NkiTensor:
        assert self.dynamic is not None
        shape = (self.shape[0], self.dynamic.limit)
        return NkiTensor(self.storage, self.dtype, shape, (self.strides[0], 1), self.offset)



def _slice(tensor: NkiTensor, dim: int, key: slice, size: int) -> tuple[int, int, int]:
    """Start, count and step of a static slice."""
    step = 1 if key.step is None else operator.index(key.step)
    start = 0 if key.start is None else operator.index(key.start)
    stop = size if key.stop is None else operator.index(key.stop)
    if start < 0:
        start += size
    if stop < 0:
        stop += size
    if step < 1:
        raise IndexError(f"step is {step} in dimension {dim} of {tensor!r}; it must be at least 1")
    if not 0 <= start < stop <= size:
        raise IndexError(
            f"slice {key.start}:{key.stop} of dimension {dim} of {tensor!r}; it must hold at least "
            f"one element and lie in 0..{size}"
        )
    return start, (stop - start + step - 1) // step, step


def _integer(tensor: NkiTensor, dim: int, key: Any, size: int) -> int:
    if key is None:
        raise IndexError(f"None is no index of {tensor!r}; use expand_dim")
    try:
        at = operator.index(key)
    except TypeError:
        raise TypeError(
            f"index {key!r} of dimension {dim} of {tensor!r}; it must be an integer, a slice, "
            "nl.ds, a register or ..."
        ) from None
    if not -size <= at < size:
        raise IndexError(f"index {at} of dimension {dim} of {tensor!r}; its size is {size}")
    return at + size if at < 0 else at


def _check_scalar_index(index: Any, argument: str) -> None:
    if isinstance(index, VirtualRegister):
        return
    if not isinstance(index, NkiTensor) or index.size != 1 or index.buffer is not MemoryRegion.sbuf:
        raise NkiValidationError(
            f"{argument} is {index!r}; it must be a register or an SBUF tensor of one element"
        )
    if index.dtype not in (dtypes.int32, dtypes.uint32):
        raise NkiValidationError(f"{argument} is {index!r}; it must be int32 or uint32")


def _check_vector_index(index: Any) -> None:
    if not isinstance(index, NkiTensor) or index.buffer is not MemoryRegion.sbuf:
        raise NkiValidationError(f"vector_offset is {index!r}; it must be an SBUF tensor [P, 1]")
    if index.dtype not in (dtypes.int32, dtypes.uint32):
        raise NkiValidationError(f"vector_offset is {index!r}; it must be int32 or uint32")


def _access(tensor: NkiTensor) -> Access:
    """The canonical byte pattern of a view: contiguous dimensions are merged into runs."""
    place = tensor.storage.place
    dtype = tensor.dtype
    item = dtype.itemsize
    shape, strides = tensor.shape, tensor.strides
    if tensor.storage.pitch:
        width = place.bytes_per_partition // item
        p0, free = divmod(tensor.offset, width)
        p0 += place.base_partition
        p1 = p0 + (shape[0] - 1) * (strides[0] // width) + 1
        last = 1
    else:
        p0, p1, free, last = 0, 1, tensor.offset, 0
    lo = free * item
    run, elements, span = item, 1, 0
    inner_step = -1
    steps: list[tuple[int, int]] = []
    for dim in range(len(shape) - 1, last - 1, -1):
        size = shape[dim]
        if size == 1:
            continue
        step = strides[dim] * item
        elements *= size
        if inner_step < 0:
            inner_step = step
        if step == 0:
            continue
        span += (size - 1) * step
        if steps:
            if step == steps[0][0] * steps[0][1]:
                steps[0] = (steps[0][0], steps[0][1] * size)
            else:
                steps.insert(0, (step, size))
        elif step == run:
            run *= size
        else:
            steps.append((step, size))
    if inner_step < 0:
        inner_step = item
    if tensor.dynamic is None:
        return Access(
            place, dtype, p0, p1, lo, lo + span + item, run, tuple(steps), elements, inner_step, False
        )
    reach = place.bytes_per_partition
    return Access(place, dtype, p0, p1, 0, reach, run, tuple(steps), elements, inner_step, True)
