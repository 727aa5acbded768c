"""What `o_proj` and `mlp` compute, in torch; it rounds where the kernels round."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from wantrn.kernels.row_mx import ChannelWeight, from_kernel_layout, row_mx_linear

BLOCK = 32
"""Channels of a block of MX: eight partitions of four values."""

LARGEST_EXPONENT = 8
"""Of float8_e4m3fn: its largest number is 1.75 * 2 ** 8."""


def quantized_mx(x: Tensor) -> Tensor:
    """What `quantize_mx` makes of bf16 `[..., C]`, as numbers: fp32 `[..., C]`.

    Blocks of 32 neighbouring channels have the scale `2 ** (floor(log2(amax)) - 7)`: NKI's rule
    since 0.5, see `nkisim.mx.quantize`. `C` is a multiple of 32.
    """
    blocks = x.float().reshape(*x.shape[:-1], -1, BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True)
    # frexp's fraction is from 0.5 to 1
    exponent = torch.frexp(largest).exponent - 1 - (LARGEST_EXPONENT - 1)
    exponent = exponent.clamp(min=-127)
    codes = torch.ldexp(blocks, -exponent).to(torch.float8_e4m3fn)
    return torch.ldexp(codes.float(), exponent).flatten(-2)


def o_proj_reference(
    x: Tensor, weight: Tensor, weight_scales: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """`[B, S, H]` bf16; arguments as of `o_proj`."""
    rows = x.flatten(1, 2).transpose(1, 2)
    return _projected(rows, weight, weight_scales, bias).bfloat16()


def mlp_reference(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    up_scales: Tensor | None = None,
    down_scales: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """`[B, S, H_out]` bf16; arguments as of `mlp`."""
    if up_scales is None:
        wide = _projected(x, up, None, up_bias)
    else:
        wide = row_mx_linear(x, ChannelWeight(up, up_scales), up_bias)
    inner = F.gelu(wide, approximate="tanh").bfloat16()
    return _projected(inner, down, down_scales, down_bias).bfloat16()


def _projected(x: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None) -> Tensor:
    """fp32; with scales `x` is quantized to MX."""
    if scales is None:
        y = x.float() @ weight.float()
    else:
        y = (quantized_mx(x) @ from_kernel_layout(weight.float()).T) * scales
    return y if bias is None else y + bias.float()
