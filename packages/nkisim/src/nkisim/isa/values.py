"""Operands as arrays `[P, N]`, and results back into tensors.

The engines read any type as fp32, compute in fp32 and convert when they write.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim import dtypes
from nkisim.core import Core
from nkisim.tensor import NkiTensor

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


def raw(tensor: NkiTensor) -> Array:
    """The elements as `[P, N]` in their own type; may be a view of the memory."""
    values = tensor.values()
    return values if values.ndim == 2 else values.reshape(values.shape[0], -1)


def single(tensor: NkiTensor) -> Float32:
    """The elements as `[P, N]` in fp32; may be a view of the memory."""
    values = tensor.array() if tensor.dynamic is None else tensor.values()
    if values.ndim != 2:
        values = values.reshape(values.shape[0], -1)
    if tensor.dtype is dtypes.float32:
        return values
    return values.astype(np.float32, copy=False)


def scalar(value: Any) -> Any:
    """A scalar operand: `[P, 1]` in fp32, or a NumPy float32."""
    if type(value) is NkiTensor:
        return single(value)
    return np.float32(value)


def put(core: Core, op: str, tensor: NkiTensor, values: Array) -> None:
    """Convert `values` `[P, N]` to the tensor's type, and store them."""
    dtype = tensor.dtype
    if tensor.dynamic is not None or not dtype.is_float or dtype is dtypes.tfloat32:
        tensor.assign(dtypes.cast(values, dtype))
        return
    target = tensor.array()
    # NumPy converts while it stores, which saves a temporary
    target[...] = values if values.shape == target.shape else values.reshape(target.shape)
    if dtype.itemsize == 1:
        check_overflow(core, op, tensor, target, values)


def check_overflow(core: Core, op: str, tensor: NkiTensor, stored: Array, values: Array) -> None:
    """Report finite `values` that are not finite as they are `stored` in an 8-bit type."""
    if core.rules.fp8_overflow == "off" or dtypes.is_numpy_float(values.dtype) is False:
        return
    lost = ~np.isfinite(stored.astype(np.float32))
    if lost.any():
        finite = np.isfinite(values.astype(np.float32)).reshape(stored.shape)
        if (lost & finite).any():
            largest = float(np.abs(values[np.isfinite(values)]).max())
            core.violation(
                "fp8_overflow",
                f"{op}: values up to {largest:g} do not fit dst {tensor!r} and became infinity or "
                "NaN; what the hardware makes of them is not published",
            )
