"""Packed rows: a token's FP8 codes, and behind them the fp32 number that they are multiplied by.

A row of ``H`` values takes ``H + 4`` bytes, so that codes and scale travel together through
all-gathers and copies. A row of zero bytes is a row of zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
SCALE_BYTES = 4
"""Bytes of the scale at the end of a row: little-endian fp32."""

OCP_LIMIT = 448.0
"""The largest number of float8_e4m3fn, the OCP format of Trainium3."""

TRN2_LIMIT = 240.0
"""The largest finite number of Trainium2's float8_e4m3; up to it both formats have equal bytes."""

SMALLEST_ROW_SCALE = 1e-6
"""What a row's scale is at least: a row of zeros has a reciprocal too."""


def pack_rows(codes: Tensor, scales: Tensor) -> Tensor:
    """Codes and scales as packed rows; the inverse of ``unpack_rows``.

    Args:
        codes: ``[..., H]`` float8_e4m3fn, ``H`` a multiple of 4.
        scales: ``[...]`` fp32, one a row.

    Returns:
        ``[..., H + 4]`` float8_e4m3fn.

    Raises:
        ValueError: an argument whose shape or dtype does not fit, by name.
    """
    if codes.dtype != FP8 or codes.ndim < 1:
        raise ValueError(f"codes must be [..., H] {FP8}, got {_described(codes)}")
    _check_width("codes", codes.shape[-1])
    if scales.dtype != torch.float32 or scales.shape != codes.shape[:-1]:
        raise ValueError(
            f"scales must be {list(codes.shape[:-1])} torch.float32, got {_described(scales)}"
        )
    tail = scales.contiguous().unsqueeze(-1).view(torch.uint8)
    return torch.cat((codes.contiguous().view(torch.uint8), tail), dim=-1).view(FP8)


def unpack_rows(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The codes ``[..., H]`` and the scales ``[...]`` of packed rows ``[..., H + 4]``.

    Raises:
        ValueError: ``packed`` has another dtype, or a width that no packed row has.
    """
    if packed.dtype != FP8 or packed.ndim < 1:
        raise ValueError(f"packed must be [..., H + {SCALE_BYTES}] {FP8}, got {_described(packed)}")
    width = packed.shape[-1] - SCALE_BYTES
    _check_width("packed", width)
    tail = packed[..., width:].contiguous().view(torch.float32)
    return packed[..., :width], tail.squeeze(-1)


def quantize_rows(x: Tensor, limit: float = OCP_LIMIT) -> Tensor:
    """Packed rows of ``x``, each with the scale that puts its largest value at ``limit``.

    In fp32, as an engine does it, which has no division::

        scale = max(amax(|x|) * (1 / limit), 1e-6)
        code  = x * (1 / scale), rounded to FP8

    Args:
        x: ``[..., H]`` fp32 or bf16, ``H`` a multiple of 4.
        limit: ``OCP_LIMIT`` or ``TRN2_LIMIT``.

    Returns:
        ``[..., H + 4]`` float8_e4m3fn.

    Raises:
        ValueError: another dtype, width or limit.
    """
    if x.dtype not in (torch.float32, torch.bfloat16) or x.ndim < 1:
        raise ValueError(f"x must be [..., H] float32 or bfloat16, got {_described(x)}")
    _check_width("x", x.shape[-1])
    wide = x.float()
    scales = (wide.abs().amax(dim=-1) * reciprocal_of(limit)).clamp(min=SMALLEST_ROW_SCALE)
    return pack_rows(to_codes(wide * scales.reciprocal().unsqueeze(-1), limit), scales)


def dequantize_rows(packed: Tensor) -> Tensor:
    """The values of packed rows: ``[..., H + 4]`` FP8 to ``[..., H]`` fp32."""
    codes, scales = unpack_rows(packed)
    return codes.float() * scales.unsqueeze(-1)


def to_codes(values: Tensor, limit: float) -> Tensor:
    """fp32 values rounded to FP8. What a reciprocal's rounding puts above ``limit`` is ``limit``:
    torch would make NaN of it."""
    return values.clamp(-limit, limit).to(FP8)


def reciprocal_of(limit: float) -> float:
    """``1 / limit`` in fp32.

    Raises:
        ValueError: ``limit`` is that of no format.
    """
    if limit not in (OCP_LIMIT, TRN2_LIMIT):
        raise ValueError(f"limit must be {OCP_LIMIT} or {TRN2_LIMIT}, got {limit}")
    return float(torch.tensor(limit, dtype=torch.float32).reciprocal())


def _check_width(name: str, width: int) -> None:
    if width < 4 or width % 4:
        raise ValueError(f"{name} has rows of {width} codes; it must be a multiple of 4")


def _described(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {tensor.dtype}"
