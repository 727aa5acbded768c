"""FP8 weights with one scale an output channel, and the layout that the kernels read.

The MX matmul contracts 128 partitions of four values each. Which values of ``H`` lie in one
element is a convention of software: here they are neighbours, ``h = 4 k + q``, since then the four
codes of an element of a packed row are one word, and a transposition of words is all it takes to
put activations on partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wantrn.kernels.row_mx.rows import FP8, OCP_LIMIT, reciprocal_of, to_codes

VALUES = 4
"""Values of ``H`` in one element of the MX matmul."""


def kernel_layout(width: int, depth: int) -> tuple[int, int, int]:
    """The shape ``[H/4, I, 4]`` of ``width`` channels ``I`` of ``depth`` values ``H``."""
    return (depth // VALUES, width, VALUES)


def to_kernel_layout(codes: Tensor) -> Tensor:
    """``[I, H]`` as ``[H/4, I, 4]``: element ``[k, i, q]`` is ``codes[i, 4 k + q]``.

    Raises:
        ValueError: ``codes`` is no matrix, or ``H`` no multiple of 4.
    """
    if codes.ndim != 2 or codes.shape[1] % VALUES or not codes.shape[1]:
        raise ValueError(f"codes must be [I, H], H a multiple of 4, got {list(codes.shape)}")
    return codes.reshape(codes.shape[0], -1, VALUES).transpose(0, 1).contiguous()


def from_kernel_layout(weight: Tensor) -> Tensor:
    """``[H/4, I, 4]`` as ``[I, H]``; the inverse of ``to_kernel_layout``.

    Raises:
        ValueError: ``weight`` has another shape.
    """
    if weight.ndim != 3 or weight.shape[2] != VALUES:
        raise ValueError(f"weight must be [H/4, I, 4], got {list(weight.shape)}")
    return weight.transpose(0, 1).reshape(weight.shape[1], -1).contiguous()


def quantize_channels(weight: Tensor, limit: float = OCP_LIMIT) -> tuple[Tensor, Tensor]:
    """FP8 codes of a linear layer's weight, each output channel with a scale of its own.

    ``scale = amax(|row|) * (1 / limit)``, and 1 for a row of zeros; ``code = row / scale`` rounded.

    Args:
        weight: ``[I, H]`` fp32 or bf16, as torch has it.
        limit: ``OCP_LIMIT`` or ``TRN2_LIMIT``.

    Returns:
        codes ``[I, H]`` float8_e4m3fn, and scales ``[I]`` fp32.

    Raises:
        ValueError: another shape, dtype or limit.
    """
    if weight.ndim != 2 or weight.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(
            f"weight must be [I, H] float32 or bfloat16, got {list(weight.shape)} {weight.dtype}"
        )
    wide = weight.float()
    scales = wide.abs().amax(dim=1) * reciprocal_of(limit)
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    return to_codes(wide / scales.unsqueeze(1), limit), scales


def kernel_weight(weight: Tensor | ChannelWeight) -> tuple[Tensor, Tensor | None]:
    """A weight, and its scales if it has them, as kernels take them.

    ``[I, H]`` becomes ``[H, I]``, without scales; FP8 codes and scales are in their layout already.
    """
    if isinstance(weight, ChannelWeight):
        return weight.codes.contiguous(), weight.scales.contiguous()
    return weight.T.contiguous(), None


@dataclass(frozen=True)
class ChannelWeight:
    """A quantized weight as a kernel takes it.

    Attributes:
        codes: ``[H/4, I, 4]`` float8_e4m3fn; see ``to_kernel_layout``
        scales: ``[1, I]`` fp32, what each output channel is multiplied by
    """

    codes: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        if self.codes.ndim != 3 or self.codes.shape[2] != VALUES or self.codes.dtype != FP8:
            raise ValueError(
                f"codes must be [H/4, I, 4] {FP8}, got {list(self.codes.shape)} {self.codes.dtype}"
            )
        wanted = (1, self.codes.shape[1])
        if self.scales.shape != wanted or self.scales.dtype != torch.float32:
            raise ValueError(
                f"scales must be {list(wanted)} torch.float32, got {list(self.scales.shape)} "
                f"{self.scales.dtype}"
            )

    @property
    def width(self) -> int:
        """``I``, output channels."""
        return self.codes.shape[1]

    @property
    def depth(self) -> int:
        """``H``, what is contracted."""
        return self.codes.shape[0] * VALUES

    @classmethod
    def of(cls, weight: Tensor, limit: float = OCP_LIMIT) -> ChannelWeight:
        """Quantized from ``[I, H]``; see ``quantize_channels``."""
        codes, scales = quantize_channels(weight, limit)
        return cls(to_kernel_layout(codes), scales.unsqueeze(0))

    def dequantized(self) -> Tensor:
        """``[I, H]`` fp32."""
        return from_kernel_layout(self.codes.float()) * self.scales.reshape(-1, 1)
