"""Addresses that depend on values in tensors and registers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from nkisim.errors import NkiValidationError
from nkisim.register import VirtualRegister

if TYPE_CHECKING:
    from nkisim.tensor import NkiTensor

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
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
    index: NkiTensor | VirtualRegister
    stride: int
    limit: int


def scalar_value(index: NkiTensor | VirtualRegister, argument: str) -> int:
    """The integer in a register or in a tensor of one element.

    Raises:
        NkiValidationError: it has none, since the run computes no values or nothing wrote it.
    """
    if isinstance(index, VirtualRegister):
        value = index.value
        if value is None:
            raise NkiValidationError(
                f"{argument}: the register holds no value; a run without numerics knows only values "
                "that come from Python numbers or directly from input arrays"
            )
        return int(value)
    if index.storage.data is None:
        raise NkiValidationError(
            f"{argument}: {index!r} has no values in a run without numerics"
        )
    return int(index.array().reshape(-1)[0])


def row_starts(view: NkiTensor, dynamic: Dynamic, rows: int) -> tuple[Index, npt.NDArray[np.bool_]]:
    """For a `vector` view: where each row starts, in elements, and whether it is in range."""
    assert not isinstance(dynamic.index, VirtualRegister)
    chosen = dynamic.index.array().reshape(-1, order="F")[:rows].astype(np.int64)
    valid = (chosen >= 0) & (chosen < dynamic.limit)
    return view.offset + np.where(valid, chosen, 0) * dynamic.stride, valid


def elements_of(view: NkiTensor) -> tuple[Index, npt.NDArray[np.bool_]]:
    """The flat element numbers, in HBM, of a `vector` view; and, for each row, whether it is valid.

    Shape `[rows, elements of a row]`.
    """
    dynamic = view.dynamic
    assert dynamic is not None and dynamic.kind == "vector"
    starts, valid = row_starts(view, dynamic, view.shape[0])
    inner: Any = np.zeros(1, np.int64)
    for size, stride in zip(view.shape[1:], view.strides[1:], strict=True):
        inner = (inner[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return starts[:, None] + inner[None, :], valid


def gather_columns(view: NkiTensor, group: int) -> Index:
    """For a `gather` view: the free element that each output element is, `[P, K]`.

    Output `i` of a group of `group` partitions uses `index[i % group, i // group]` of that group.
    """
    dynamic = view.dynamic
    assert dynamic is not None and not isinstance(dynamic.index, VirtualRegister)
    index = dynamic.index.array().astype(np.int64)
    index = index.reshape(index.shape[0], -1)
    partitions, count = view.shape[0], view.shape[-1]
    columns = np.empty((partitions, count), np.int64)
    for first in range(0, partitions, group):
        part = index[first : first + group]
        columns[first : first + group] = part.reshape(-1, order="F")[:count][None, :]
    if columns.size and (columns.min() < 0 or columns.max() >= dynamic.limit):
        raise NkiValidationError(
            f"indirect: an index of {dynamic.index!r} is {int(columns.max())} "
            f"(least {int(columns.min())}); it must be in 0..{dynamic.limit - 1}"
        )
    return columns
