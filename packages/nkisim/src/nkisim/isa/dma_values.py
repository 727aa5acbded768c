"""What a transfer reads and where it puts it: gathers, scatters, and indices out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim.dynamic import elements_of, index_value, out_of_range
from nkisim.enums import OobMode
from nkisim.tensor import NkiTensor

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]


def load(tensor: NkiTensor, mode: OobMode) -> tuple[Array, Mask | None]:
    """The elements of `tensor`, and which of them are there; None for all.

    With `oob_mode.skip`, elements whose index is out of range are not there.

    Raises:
        NkiValidationError: an index is out of range, with `oob_mode.error`.
    """
    dynamic = tensor.dynamic
    if dynamic is None:
        return tensor.array(), None
    if mode is OobMode.error or dynamic.kind == "gather":
        return tensor.values(), None
    if dynamic.kind == "scalar":
        if index_value(tensor)[1]:
            return tensor.values(), None
        return np.zeros(tensor.shape, tensor.dtype.numpy), np.zeros(tensor.shape, np.bool_)
    elements, valid = elements_of(tensor)
    found = tensor.flat()[elements].reshape(tensor.shape)
    if valid.all():
        return found, None
    return found, np.repeat(valid, elements.shape[1]).reshape(tensor.shape)


def store(tensor: NkiTensor, values: Array, there: Mask | None, mode: OobMode) -> None:
    """Put `values`, in row-major order, into `tensor`; only those that are `there`.

    Raises:
        NkiValidationError: an index is out of range, with `oob_mode.error`.
    """
    dynamic = tensor.dynamic
    if dynamic is not None and dynamic.kind == "vector":
        elements, place = destinations(tensor, there, mode)
        tensor.flat()[elements[place]] = values.reshape(elements.shape)[place]
        return
    if dynamic is not None:
        if mode is OobMode.skip and not index_value(tensor)[1]:
            return
        tensor = tensor.resolved()
    target = tensor.array()
    if there is None:
        target[...] = values if values.shape == target.shape else values.reshape(target.shape)
    else:
        np.copyto(target, values.reshape(target.shape), where=there.reshape(target.shape))


def destinations(
    tensor: NkiTensor, there: Mask | None, mode: OobMode
) -> tuple[npt.NDArray[np.int64], Mask]:
    """Of a scatter: where in its tensor each element goes, and whether it does `[rows, N]`.

    Raises:
        NkiValidationError: an index is out of range, with `oob_mode.error`.
    """
    elements, valid = elements_of(tensor)
    if mode is OobMode.error and not valid.all():
        raise out_of_range(tensor, valid)
    place = np.repeat(valid, elements.shape[1]).reshape(elements.shape)
    if there is not None:
        place &= there.reshape(elements.shape)
    return elements, place
