"""Tensors of random bits for transfers, and what their bits are afterwards."""

from __future__ import annotations

import math

import numpy as np
from isa_tiles import Array, empty, tile

from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion, OobMode
from nkisim.tensor import NkiTensor

SBUF = MemoryRegion.sbuf
PSUM = MemoryRegion.psum
HBM = MemoryRegion.private_hbm
SHARED = MemoryRegion.shared_hbm
REACHED = (SBUF, HBM, SHARED)
SKIP = OobMode.skip

BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def noise(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    """Random bits."""
    count = math.prod(shape) * dtype.itemsize
    found = np.random.default_rng(seed).integers(0, 256, count).astype(np.uint8)
    return found.view(dtype.numpy).reshape(shape)


def held(values: Array, dtype: DType, region: MemoryRegion = SBUF) -> NkiTensor:
    """A tensor with these bits."""
    tensor = empty(values.shape, dtype, region)
    if tensor.storage.data is not None:
        tensor.array()[...] = values
    tensor.storage.coverage.full = True
    return tensor


def bits(array: Array) -> Array:
    """A copy of the elements as unsigned integers."""
    return np.array(array, order="C").view(BITS[array.dtype.itemsize])


def row_index(*numbers: int) -> NkiTensor:
    """An index of rows."""
    return tile(np.array(numbers, np.int64).astype(np.uint32)[:, None], dtypes.uint32)
