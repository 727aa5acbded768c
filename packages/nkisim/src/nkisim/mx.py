"""MX formats: four values an element, a scale for each block of 32.

A block is 8 consecutive partitions times the 4 values of one element. Its scale byte `e` means
`2 ** (e - 127)`, 255 means NaN. Layouts: NKI guide "MXFP matmul" and OCP Microscaling Formats (MX)
specification 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.errors import NkiValidationError

Array = npt.NDArray[Any]
Single = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

BLOCK_PARTITIONS = 8
QUADRANT_PARTITIONS = 32
# where within its quadrant the four scale rows of a tensor may begin
SCALE_OFFSETS = (0, 4, 8, 12)


def _frozen(values: Array) -> Array:
    values.setflags(write=False)
    return values


def _values_of_bytes(dtype: type) -> Array:
    every = np.arange(256, dtype=np.uint8)
    return _frozen(every.view(dtype).astype(np.float32).reshape(256, 1))


def _values_of_fp4_pairs() -> Array:
    every = np.arange(256, dtype=np.uint8)
    codes = np.stack([every & 15, every >> 4], axis=1)
    return _frozen(codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32))


def _scales_of_bytes(sign: int) -> Array:
    """`2 ** (sign * (byte - 127))`, NaN for 255."""
    exponents = sign * (np.arange(256, dtype=np.int32) - 127)
    scales = np.ldexp(np.float64(1.0), exponents)
    scales[255] = np.nan
    return _frozen(scales)


@dataclass(frozen=True)
class _Format:
    """How one packed type is decoded, and what quantisation needs to know.

    Attributes:
        values: the values in one byte, by byte: float32 [256, 1 or 2]
        max_exponent: the exponent of the largest value, the Emax of the specification
        largest: the largest value
    """

    values: Array
    max_exponent: int
    largest: float


_FORMATS: dict[DType, _Format] = {
    dtypes.float8_e4m3fn_x4: _Format(_values_of_bytes(ml_dtypes.float8_e4m3fn), 8, 448.0),
    dtypes.float8_e5m2_x4: _Format(_values_of_bytes(ml_dtypes.float8_e5m2), 15, 57344.0),
    dtypes.float4_e2m1fn_x4: _Format(_values_of_fp4_pairs(), 2, 6.0),
}
_SCALES = _scales_of_bytes(1)
_INVERSE_SCALES = _frozen(_scales_of_bytes(-1).astype(np.float32))


def _format(dtype: DType) -> _Format:
    found = _FORMATS.get(dtype)
    if found is None:
        names = ", ".join(str.__str__(known) for known in _FORMATS)
        raise NkiValidationError(f"the MX data type is {dtype}; it must be one of {names}")
    return found


def unpack(array: Array, dtype: DType) -> Single:
    """The values in elements of a packed type.

    Args:
        array: the storage of `dtype`, uint32 or uint16 `[..., F]`.
        dtype: a packed type.

    Returns:
        float32 `[..., F, 4]`; value 0 is the one at the lowest address, of fp4 the one in the
        lowest bits.
    """
    table = _format(dtype).values
    if array.dtype != dtype.numpy:
        raise NkiValidationError(f"{dtype} is stored as {dtype.numpy}, not as {array.dtype}")
    codes: Bytes = np.ascontiguousarray(array)[..., None].view(np.uint8)
    return table.take(codes, axis=0).reshape(*array.shape, 4)


def pack(values: Array, dtype: DType) -> Array:
    """Elements of a packed type; the inverse of `unpack`.

    Args:
        values: floating-point `[..., F, 4]`, rounded to nearest even. What is too large becomes
            what ml_dtypes makes of it.
        dtype: a packed type.

    Returns:
        uint32 or uint16 `[..., F]`.
    """
    _format(dtype)
    if values.ndim == 0 or values.shape[-1] != 4:
        raise NkiValidationError(f"values have the shape {values.shape}; the last must be 4")
    with np.errstate(all="ignore"):
        codes: Array = np.ascontiguousarray(values).astype(dtype.packed).view(np.uint8)
    if dtype is dtypes.float4_e2m1fn_x4:
        codes = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return codes.view(dtype.numpy)[..., 0]


def scale_partitions(partitions: int, offset: int = 0) -> npt.NDArray[np.intp]:
    """The partitions of a scale tile that hold the blocks of a tensor, in order.

    Block `g` lies in partition `g // 4 * 32 + offset + g % 4`: four rows in each quadrant of 32.

    Args:
        partitions: of the data, a multiple of 8.
        offset: where the four rows begin, one of 0, 4, 8 and 12. 0 also for a view of a scale tile
            that begins with them.
    """
    if offset not in SCALE_OFFSETS:
        raise NkiValidationError(f"the scale offset is {offset}; it must be one of {SCALE_OFFSETS}")
    if partitions <= 0 or partitions % BLOCK_PARTITIONS:
        raise NkiValidationError(
            f"the data have {partitions} partitions; they must be a multiple of {BLOCK_PARTITIONS}"
        )
    block = np.arange(partitions // BLOCK_PARTITIONS)
    return block // 4 * QUADRANT_PARTITIONS + offset + block % 4


def scale_rows(scale: Array, partitions: int, offset: int = 0) -> Bytes:
    """The scale bytes of data with `partitions` partitions, block after block.

    Args:
        scale: a scale tile, uint8 or float8_e8m0fnu `[S, F]`.
        partitions, offset: as in `scale_partitions`.

    Returns:
        uint8 `[partitions // 8, F]`.

    Raises:
        NkiValidationError: the tile has too few partitions.
    """
    rows = scale_partitions(partitions, offset)
    if scale.shape[0] <= rows[-1]:
        raise NkiValidationError(
            f"the scale has {scale.shape[0]} partitions; {partitions} partitions of data with "
            f"offset {offset} need {rows[-1] + 1}"
        )
    return _as_bytes(scale)[rows]


def _as_bytes(scale: Array) -> Bytes:
    if scale.dtype != np.uint8 and scale.dtype != dtypes.float8_e8m0fnu.numpy:
        raise NkiValidationError(f"the scale is {scale.dtype}; it must be uint8 or float8_e8m0fnu")
    return scale.view(np.uint8)


def dequantized_rows(array: Array, dtype: DType, scale: Array) -> Single:
    """What elements of a packed type stand for, with the contraction in front.

    Args:
        array: the storage of `dtype`, uint32 or uint16 `[K, F]`, K partitions.
        dtype: a packed type.
        scale: bytes `[K // 8, F]`, as `scale_rows` gives them.

    Returns:
        float32 `[4 * K, F]`, as `scaled_rows`.
    """
    return scaled_rows(unpack(array, dtype), scale)


def scaled_rows(values: Array, scale: Array, dtype: npt.DTypeLike = np.float32) -> Array:
    """Values times the scales of their blocks, with the contraction in front.

    Args:
        values: float32 `[K, F, 4]`, K partitions.
        scale: bytes `[K // 8, F]`, as `scale_rows` gives them.
        dtype: float32 or float64.

    Returns:
        `dtype` `[4 * K, F]`; row `4 * p + q` is value q of partition p. All of it is NaN where the
        scale is.
    """
    K, F, _ = values.shape
    blocks = K // BLOCK_PARTITIONS
    factors = _SCALES.take(_as_bytes(scale)).astype(dtype).reshape(blocks, 1, 1, F)
    result = np.empty((blocks, BLOCK_PARTITIONS, 4, F), dtype)
    source = values.reshape(blocks, BLOCK_PARTITIONS, F, 4).transpose(0, 1, 3, 2)
    with np.errstate(all="ignore"):
        np.multiply(source, factors, out=result)
    return result.reshape(4 * K, F)


# 57344 * 2 ** (239 - 127) is still less than 2 ** 128
_LARGEST_SINGLE_SCALE = 239


def matmul(
    stationary: Single, moving: Single, stationary_scale: Array, moving_scale: Array
) -> Single:
    """The product of two MX operands, `nc_matmul_mx` without the accumulation.

    Args:
        stationary: float32 `[K, M, 4]`, as `unpack` gives it.
        moving: float32 `[K, N, 4]`.
        stationary_scale: bytes `[K // 8, M]`, as `scale_rows` gives them.
        moving_scale: bytes `[K // 8, N]`.

    Returns:
        float32 `[M, N]`: the sum over all partitions and the four values, accumulated in float32.
    """
    scales = [_as_bytes(stationary_scale), _as_bytes(moving_scale)]
    # scaled operands that float32 cannot hold may still have products that it can
    single = all(bool(((s <= _LARGEST_SINGLE_SCALE) | (s == 255)).all()) for s in scales)
    dtype = np.float32 if single else np.float64
    with np.errstate(all="ignore"):
        left = scaled_rows(stationary, scales[0], dtype)
        product: Array = np.matmul(left.T, scaled_rows(moving, scales[1], dtype))
        return product.astype(np.float32, copy=False)


def quantize(src: Array, dtype: DType, legacy: bool = False) -> tuple[Array, Bytes]:
    """`quantize_mx`: MX elements of fp8 and their scale bytes.

    The scale of a block with largest magnitude `amax` is `2 ** (floor(log2(amax)) - (Emax - 1))`,
    Emax being 8 for e4m3fn and 15 for e5m2 (NKI 0.5 and later). `legacy` is the rule before it:
    `Emax` in place of `Emax - 1`, and values held to the largest of the type. A block of zeros has
    scale byte 0. Infinity and NaN count as `2 ** 128`, and stay what they are as far as the type
    has them (an infinity becomes NaN in e4m3fn; `legacy` makes it the largest value).

    Args:
        src: float16, bfloat16 or float32 `[P, 4 * F]`, P a multiple of 8.
        dtype: float8_e4m3fn_x4 or float8_e5m2_x4.

    Returns:
        the elements, uint32 `[P, F]`, and the scale bytes `[P // 8, F]`, block after block.
    """
    kind = _format(dtype)
    if dtype is dtypes.float4_e2m1fn_x4:
        raise NkiValidationError(f"quantize_mx cannot give {dtype}; dst must be an fp8 x4 type")
    P, width = src.shape
    if P % BLOCK_PARTITIONS or width % 4:
        raise NkiValidationError(
            f"src is {list(src.shape)}; it must be a multiple of {BLOCK_PARTITIONS} partitions and "
            "of 4 elements"
        )
    blocks = np.ascontiguousarray(src, np.float32).reshape(P // 8, 8, width // 4, 4)
    # the exponent field of the largest magnitude; 0 for subnormals, whose scale byte is 0 anyway
    magnitude = (blocks.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=1).max(axis=-1)
    exponent = (magnitude >> np.uint32(23)).astype(np.int32)
    shift = kind.max_exponent if legacy else kind.max_exponent - 1
    scale = np.maximum(exponent - shift, 0).astype(np.uint8)
    with np.errstate(all="ignore"):
        scaled = blocks * _INVERSE_SCALES[scale][:, None, :, None]
        if legacy:
            np.clip(scaled, -kind.largest, kind.largest, out=scaled)
    return pack(scaled.reshape(P, width // 4, 4), dtype), scale
