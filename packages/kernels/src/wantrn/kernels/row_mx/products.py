"""What a ROW_MX kernel computes, in torch: it rounds where the kernel rounds."""

from __future__ import annotations

from torch import Tensor

from wantrn.kernels.row_mx.rows import unpack_rows
from wantrn.kernels.row_mx.weights import ChannelWeight, from_kernel_layout

NEUTRAL_SCALE = 127
"""The block scale that stands for 1: a byte ``e`` means ``2 ** (e - 127)``.

ROW_MX scales whole rows and channels after the contraction, so every block of the MX matmul has it,
and one constant tile serves all operands.
"""


def dequantize_products(
    products: Tensor, row_scales: Tensor, channel_scales: Tensor, bias: Tensor | None
) -> Tensor:
    """``(products * row scale) * channel scale + bias``, each step rounded to fp32.

    Args:
        products: ``[..., I]`` fp32, sums of products of codes.
        row_scales: ``[...]`` fp32.
        channel_scales: ``[1, I]`` fp32.
        bias: ``[1, I]`` or None.
    """
    scaled = (products * row_scales.unsqueeze(-1)) * channel_scales.reshape(-1)
    return scaled if bias is None else scaled + bias.float().reshape(-1)


def row_mx_linear(packed: Tensor, weight: ChannelWeight, bias: Tensor | None = None) -> Tensor:
    """A linear layer of packed rows, not yet rounded to bf16.

    A product of two codes is exact in fp32; sums differ from the chip's by their order.

    Args:
        packed: ``[..., H + 4]`` float8_e4m3fn, see ``pack_rows``.
        weight: ``I`` output channels.
        bias: ``[1, I]`` fp32 or bf16, or None.

    Returns:
        ``[..., I]`` fp32.

    Raises:
        ValueError: ``packed`` and ``weight`` disagree about ``H``, or ``bias`` about ``I``.
    """
    codes, row_scales = unpack_rows(packed)
    depth, width, values = weight.codes.shape
    if codes.shape[-1] != depth * values:
        raise ValueError(
            f"packed has rows of {codes.shape[-1]} codes; weight needs {depth * values}"
        )
    if bias is not None and bias.shape != (1, width):
        raise ValueError(f"bias must be {[1, width]}, got {list(bias.shape)}")
    products = codes.float() @ from_kernel_layout(weight.codes.float()).T
    return dequantize_products(products, row_scales, weight.scales, bias)
