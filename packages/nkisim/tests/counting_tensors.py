"""Tensors that count their elements, in every memory."""

from __future__ import annotations

import math

import numpy as np
from isa_tiles import empty

from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.tensor import NkiTensor

HBM = MemoryRegion.private_hbm
SBUF = MemoryRegion.sbuf
PSUM = MemoryRegion.psum
REGIONS = (HBM, SBUF, PSUM)


def counting(
    shape: tuple[int, ...], region: MemoryRegion, dtype: DType = dtypes.int32
) -> NkiTensor:
    """A tensor whose elements are 0, 1, 2, ..."""
    tensor = empty(shape, dtype, region)
    values = np.arange(math.prod(tensor.shape)).reshape(tensor.shape)
    tensor.array()[...] = values.astype(dtype.numpy)
    return tensor
