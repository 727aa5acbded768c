"""Addresses that depend on values in tensors and registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from nkisim.errors import NkiValidationError
from nkisim.register import VirtualRegister

if TYPE_CHECKING:
    from nkisim.memory_view import MemoryView

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Dynamic:
    """What a view adds to its static addresses when it is used.

    Attributes:
        kind: `scalar` moves the whole view by one value; `vector` gives each row of dimension 0 a
            start of its own; `gather` chooses free elements (NKI's tensor indirection)
        index: the values: a register, or a tensor in SBUF
        stride: elements that one step of the index moves
        limit: the index must be less than this
    """

    kind: Literal["scalar", "vector", "gather"]
    index: MemoryView | VirtualRegister
    stride: int
    limit: int


def is_known(index: MemoryView | VirtualRegister) -> bool:
    """Whether the run knows what an index holds; it may have the values of all else."""
    if isinstance(index, VirtualRegister):
        return index.value is not None
    return index.storage.data is not None


def scalar_value(index: MemoryView | VirtualRegister, argument: str) -> int:
    """The integer in a register or in a tensor of one element.

    Raises:
        NkiValidationError: it has none, since the run computes no values or nothing wrote it.
    """
    if isinstance(index, VirtualRegister):
        if index.value is None:
            raise NkiValidationError(
                f"{argument}: the register holds no value; a run without numerics knows only "
                "values that come from Python numbers or directly from input arrays"
            )
        return int(index.value)
    if not is_known(index):
        raise NkiValidationError(f"{argument}: {index!r} has no values in a run without numerics")
    return int(index.array().reshape(-1)[0])


def index_value(view: MemoryView) -> tuple[int, bool]:
    """The index of a `scalar` view, and whether it is in range.

    Raises:
        NkiValidationError: it is not known, or no integer.
    """
    dynamic = view.dynamic
    assert dynamic is not None and dynamic.kind == "scalar"
    argument = f"the index of {view!r}"
    value = scalar_value(dynamic.index, argument)
    if isinstance(dynamic.index, VirtualRegister) and dynamic.index.value != value:
        raise NkiValidationError(f"{argument} is {dynamic.index.value}, which is no integer")
    return value, 0 <= value < dynamic.limit


def resolved_offset(view: MemoryView) -> int:
    """Where a `scalar` view begins, in elements.

    Raises:
        NkiValidationError: the index is out of range, or the view leaves its tensor.
    """
    dynamic = view.dynamic
    assert dynamic is not None
    value, in_range = index_value(view)
    if not in_range:
        raise NkiValidationError(
            f"the dynamic index of {view!r} is {value}; it must be in 0..{dynamic.limit - 1}"
        )
    moved = value * dynamic.stride
    place = view.storage.place
    total = place.bytes_per_partition // view.dtype.itemsize
    first = 1 if view.on_chip else 0
    last = view.offset % total + moved if first else view.offset + moved
    last += _reach(view, first)
    if last >= total:
        raise NkiValidationError(
            f"the dynamic index of {view!r} is {value}, with which it reaches element {last} of "
            f"{total}{' in a partition' if first else ''}"
        )
    return view.offset + moved


def _reach(view: MemoryView, first: int) -> int:
    """Elements from the first to the last of dimensions `first` and on."""
    pairs = zip(view.shape[first:], view.strides[first:], strict=True)
    return sum((size - 1) * stride for size, stride in pairs)


def row_starts(view: MemoryView) -> tuple[Index, Mask]:
    """For a `vector` view: where each row starts, in elements, and whether it is in range.

    The indices are those of the first column of the index from top to bottom, then those of the
    second column, and so on.

    Raises:
        NkiValidationError: a row whose index is in range leaves the tensor.
    """
    dynamic = view.dynamic
    assert dynamic is not None and not isinstance(dynamic.index, VirtualRegister)
    chosen = dynamic.index.array().reshape(-1, order="F")[: view.shape[0]].astype(np.int64)
    valid = (chosen >= 0) & (chosen < dynamic.limit)
    starts = view.offset + np.where(valid, chosen, 0) * dynamic.stride
    last = int(starts.max()) + _reach(view, 1)
    total = view.storage.place.bytes_per_partition // view.dtype.itemsize
    if last >= total:
        raise NkiValidationError(
            f"a row of {view!r} reaches element {last} of {total} where its index is "
            f"{int(chosen[starts.argmax()])}"
        )
    return starts, valid


def elements_of(view: MemoryView) -> tuple[Index, Mask]:
    """The flat element numbers, in HBM, of a `vector` view; and, for each row, whether it is valid.

    Shape `[rows, elements of a row]`.
    """
    starts, valid = row_starts(view)
    inner: Any = np.zeros(1, np.int64)
    for size, stride in zip(view.shape[1:], view.strides[1:], strict=True):
        inner = (inner[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return starts[:, None] + inner[None, :], valid


def out_of_range(view: MemoryView, valid: Mask) -> NkiValidationError:
    """The error of a `vector` view some of whose rows are out of range."""
    dynamic = view.dynamic
    assert dynamic is not None and not isinstance(dynamic.index, VirtualRegister)
    row = int(np.flatnonzero(~valid)[0])
    value = dynamic.index.array().reshape(-1, order="F")[row]
    return NkiValidationError(
        f"the index of row {row} of {view!r} is {int(value)}; it must be in "
        f"0..{dynamic.limit - 1} (oob_mode.skip leaves such rows alone)"
    )


def gather_columns(view: MemoryView, group: int) -> Index:
    """For a `gather` view: the free element that each output element is, `[P, K]`.

    Output `i` of a group of `group` partitions uses `index[i % group, i // group]` of that group.

    Raises:
        NkiValidationError: the partitions are no whole groups, there are too few indices, or one of
            them is out of range.
    """
    dynamic = view.dynamic
    assert dynamic is not None and not isinstance(dynamic.index, VirtualRegister)
    index = dynamic.index.array().astype(np.int64)
    index = index.reshape(index.shape[0], -1)
    partitions, count = view.shape
    if partitions % group or count > group * index.shape[1]:
        raise NkiValidationError(
            f"indirect: {view!r} with an index of {index.shape[1]} columns; an engine that shares "
            f"them among {group} partitions needs a multiple of {group} partitions and takes at "
            f"most {group * index.shape[1]} elements"
        )
    groups = index.reshape(partitions // group, group, -1).transpose(0, 2, 1)
    columns = np.repeat(groups.reshape(partitions // group, -1)[:, :count], group, axis=0)
    if columns.min() < 0 or columns.max() >= dynamic.limit:
        raise NkiValidationError(
            f"indirect: an index of {dynamic.index!r} is {int(columns.max())} "
            f"(least {int(columns.min())}); it must be in 0..{dynamic.limit - 1}"
        )
    return columns
