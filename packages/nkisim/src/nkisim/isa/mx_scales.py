"""The scales of MX operands: a tile of bytes of which four rows of each quadrant count."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim import dtypes, mx
from nkisim.core import Core
from nkisim.errors import NkiValidationError
from nkisim.isa import checks
from nkisim.tensor import NkiTensor

_DTYPES = (dtypes.uint8, dtypes.float8_e8m0fnu)
# 57344 * 2 ** (239 - 127), the largest value of any format with this scale, is less than 2 ** 128
_LARGEST_SINGLE = 239
_NAN = 255
_ROWS = mx.QUADRANT_PARTITIONS // mx.BLOCK_PARTITIONS


def check(core: Core, op: str, name: str, scale: Any, partitions: int, columns: int) -> None:
    """A scale of data with so many partitions and columns, in the layout of `mx.scale_partitions`.

    The view begins with the first of the rows that count: at partition 0, 4, 8 or 12 of a quadrant.
    """
    if type(scale) is not NkiTensor:
        raise TypeError(f"{op}: {name} is {scale!r}; it must be a tensor")
    if scale.buffer not in checks.SBUF:
        core.violation("constraint", f"{op}: {name} is {scale!r}; it must be in SBUF")
    checks.dtype_in(core, op, name, scale, _DTYPES)
    access = scale.access()
    first = access.p0 % mx.QUADRANT_PARTITIONS
    if first not in mx.SCALE_OFFSETS:
        core.violation(
            "partition_start",
            f"{op}: {name} starts at partition {access.p0}; within its quadrant of "
            f"{mx.QUADRANT_PARTITIONS} it must start at one of {mx.SCALE_OFFSETS}",
        )
    blocks = max(partitions // mx.BLOCK_PARTITIONS, 1)
    needed = (blocks - 1) // _ROWS * mx.QUADRANT_PARTITIONS + (blocks - 1) % _ROWS + 1
    if scale.shape[0] < needed or access.elements < columns:
        # at any level: there is nothing that could serve as the others
        raise NkiValidationError(
            f"{op}: {name} is {scale!r}; for data of {partitions} partitions and {columns} columns "
            f"it must have at least {needed} partitions and {columns} elements of each"
        )


def views(scale: NkiTensor, partitions: int, columns: int) -> list[NkiTensor]:
    """The rows that count, one view `[4, columns]` for each quadrant of the data."""
    # what slices would be, at a fraction of their time: every MX product needs up to eight
    free = (columns,) if scale.ndim == 2 else scale.shape[1:]
    step = scale.strides[0] * mx.QUADRANT_PARTITIONS
    return [
        NkiTensor(
            scale.storage,
            scale.dtype,
            (_ROWS, *free),
            scale.strides,
            scale.offset + step * quadrant,
            scale.dynamic,
        )
        for quadrant in range(-(-partitions // mx.QUADRANT_PARTITIONS))
    ]


def rows(scale: NkiTensor, partitions: int, columns: int) -> npt.NDArray[np.uint8]:
    """The bytes of these rows, `[partitions // 8, columns]`: block after block."""
    # what an indirect operand gathers is shared by the 32 partitions of a quadrant
    found = scale.values(mx.QUADRANT_PARTITIONS)
    return mx.scale_rows(found.reshape(found.shape[0], -1)[:, :columns], partitions)


def fit_single(scale: npt.NDArray[np.uint8]) -> bool:
    """Whether fp32 can hold any value with one of these scales."""
    return bool(((scale <= _LARGEST_SINGLE) | (scale == _NAN)).all())
