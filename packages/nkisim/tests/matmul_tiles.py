"""Operands and results of the Tensor engine, as tests make them."""

from __future__ import annotations

from typing import Any

import numpy as np
from isa_tiles import Array, empty, tile

from nkisim import dtypes
from nkisim.enums import MemoryRegion

PSUM = MemoryRegion.psum
F32, BF16, FP16 = dtypes.float32, dtypes.bfloat16, dtypes.float16
FP8 = (dtypes.float8_e4m3, dtypes.float8_e4m3fn, dtypes.float8_e5m2)
BANK_BYTES = 2048


def psum(shape: tuple[int, ...], dtype: Any = F32, bank: int | None = None) -> Any:
    """A new tile in PSUM, at the beginning of a bank if one is given."""
    return empty(shape, dtype, PSUM, None if bank is None else (0, bank * BANK_BYTES))


def ones(shape: tuple[int, ...], dtype: Any = F32, region: MemoryRegion = MemoryRegion.sbuf) -> Any:
    return tile(np.ones(shape), dtype, region)


def integers(seed: int, *shape: int) -> Array:
    """Small ones, so that sums of products are exact in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float64)


def any_bits(seed: int, shape: tuple[int, int], dtype: Any) -> Array:
    """Every pattern of bits, NaN and infinity included."""
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return raw.view(dtype.numpy)[..., 0]


def bits(array: Array) -> Array:
    """The elements as unsigned integers, so that NaN can be compared."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def tile_of(values: Array, dtype: Any, region: MemoryRegion = MemoryRegion.sbuf) -> Any:
    """A tile with these very bits."""
    found = empty(values.shape, dtype, region)
    found.assign(values)
    found.storage.coverage.full = True
    return found
