"""One linear layer in FP8: its codes and scales, and what rounding has cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from wantrn.kernels.row_mx import (
    VALUES,
    ChannelWeight,
    kernel_layout,
    quantize_channels,
    to_kernel_layout,
)

FP8 = torch.float8_e4m3fn

_CHUNK_VALUES = 1 << 19  # rows are taken so many values at a time: 2 MiB in fp32


@dataclass(frozen=True)
class LayerError:
    """Relative error of an output channel, ``|rounded row - row| / |row|``, over all channels.

    It is what rounding the weight does to that output, relative to the output, for random inputs.
    The number is the root mean square over channels that are not zero: an RMS over the elements
    would be that of the largest channels alone.

    Attributes:
        per_channel: with one scale an output channel, which is what was made
        per_tensor: with one scale for each of the checkpoint's matrices (Q, K and V apart)
    """

    per_channel: float
    per_tensor: float


@dataclass(frozen=True)
class QuantizedLayer:
    """``error`` is None where the checkpoint's own codes were kept: nothing was rounded."""

    weight: ChannelWeight
    error: LayerError | None


def quantize_layer(weight: Tensor, limit: float, parts: int = 1) -> QuantizedLayer:
    """Codes in kernel layout and scales of one weight, with the error of every channel's own scale.

    Takes memory for the codes and a few MiB more, whatever the size and dtype of ``weight``. The
    result does not depend on the number of threads.

    Args:
        weight: ``[I, H]`` of any plain floating-point dtype, finite; ``H`` a multiple of 4.
        limit: ``OCP_LIMIT`` or ``TRN2_LIMIT``.
        parts: how many matrices of equal height were joined into ``weight``; each has a scale of
            its own in the error per tensor.

    Raises:
        ValueError: a shape, limit or number of parts that does not fit.
    """
    _check(weight, parts)
    rows, width = weight.shape
    codes = torch.empty(kernel_layout(rows, width), dtype=FP8)
    scales = torch.empty(1, rows)
    per_channel: list[float] = []
    per_tensor: list[float] = []
    for part in range(parts):
        height = rows // parts
        first = part * height
        peak = max(_amax(wide) for _, wide in _chunks(weight, first, first + height))
        for begin, wide in _chunks(weight, first, first + height):
            end = begin + wide.shape[0]
            chunk_codes, chunk_scales = quantize_channels(wide, limit)
            codes.view(torch.uint8)[:, begin:end] = to_kernel_layout(chunk_codes).view(torch.uint8)
            scales[0, begin:end] = chunk_scales
            rounded = chunk_codes.float() * chunk_scales.unsqueeze(1)
            per_channel += _row_errors(wide, rounded)
            per_tensor += _row_errors(wide, _round_trip(wide, peak, limit))
    error = LayerError(_mean_root(per_channel), _mean_root(per_tensor))
    return QuantizedLayer(ChannelWeight(codes, scales), error)


def keep_codes(codes: Tensor, scales: Tensor) -> QuantizedLayer:
    """A layer that is FP8 already, in kernel layout: the same codes, so nothing is rounded.

    Args:
        codes: ``[I, H]`` float8_e4m3fn, ``H`` a multiple of 4.
        scales: ``[I]`` fp32, for each row; equal ones where they were per tensor.

    Raises:
        ValueError: a shape or dtype that does not fit.
    """
    # torch copies bytes of any layout; not every operator knows float8
    moved = to_kernel_layout(codes.view(torch.uint8)).view(FP8)
    return QuantizedLayer(ChannelWeight(moved, scales.unsqueeze(0)), None)


def has_nan(codes: Tensor) -> bool:
    """Whether any of the float8_e4m3fn ``codes`` is NaN; the format has no infinity."""
    magnitudes = codes.view(torch.uint8) & 0x7F
    return bool((magnitudes == 0x7F).any())


def _check(weight: Tensor, parts: int) -> None:
    if weight.ndim != 2 or not weight.is_floating_point() or not weight.numel():
        raise ValueError(
            f"weight must be [I, H] in floating point, got {list(weight.shape)} {weight.dtype}"
        )
    if weight.shape[1] % VALUES:
        raise ValueError(f"weight has rows of {weight.shape[1]}; it must be a multiple of {VALUES}")
    if parts < 1 or weight.shape[0] % parts:
        raise ValueError(f"weight has {weight.shape[0]} rows, which are no {parts} equal parts")


def _chunks(weight: Tensor, begin: int, end: int) -> Iterator[tuple[int, Tensor]]:
    """First row and fp32 values of some rows at a time."""
    step = max(1, _CHUNK_VALUES // weight.shape[1])
    for first in range(begin, end, step):
        yield first, weight[first : min(first + step, end)].float()


def _amax(values: Tensor) -> float:
    low, high = torch.aminmax(values)
    return max(-low.item(), high.item())


def _round_trip(values: Tensor, peak: float, limit: float) -> Tensor:
    """``values`` in FP8 and back, all with the scale that puts ``peak`` at ``limit``."""
    # the scale of a channel that holds the peak alone: the rule stays in one place
    scale = quantize_channels(torch.full((1, 1), peak), limit)[1].item()
    return (values / scale).clamp_(-limit, limit).to(FP8).float().mul_(scale)


def _row_errors(values: Tensor, rounded: Tensor) -> list[float]:
    """Squared relative error of each row that is not zero."""
    norms = values.double().square_().sum(dim=1)
    errors = (values - rounded).double().square_().sum(dim=1)
    found = norms > 0
    return list((errors[found] / norms[found]).tolist())


def _mean_root(squares: list[float]) -> float:
    # fsum rounds once, whatever the order and the chunks
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0
