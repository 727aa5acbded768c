"""``row_mx_o_proj``: ``o_proj`` with an FP8 weight."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.kernels.backend import log_fallback
from wantrn.kernels.machine import machine_for
from wantrn.kernels.ops.channel_linear import as_row, check_blocks, check_channel_linear
from wantrn.kernels.ops.registration import operator
from wantrn.kernels.row_mx import ChannelWeight


def row_mx_o_proj(x: Tensor, weight: ChannelWeight, bias: Tensor | None) -> Tensor:
    """``concat_heads(x) @ weight.T + bias``, with ``x`` quantized to MX on the way.

    Blocks of 32 neighbouring channels of a token share a power of two as their scale. Sums of
    products, the channels' scales and the bias are fp32; the result is rounded once.

    Args:
        x: ``[B, S, N, D]`` bf16, ``N*D`` a multiple of 32.
        weight: ``H`` channels of ``N*D``.
        bias: ``[H]`` bf16 or fp32, or None.

    Returns:
        ``[B, S, H]`` bf16.

    Raises:
        ValueError: an argument whose shape or dtype does not fit the others, by name.
    """
    if x.ndim != 4 or x.dtype != torch.bfloat16:
        raise ValueError(f"x must be [B, S, N, D] bfloat16, got {list(x.shape)} {x.dtype}")
    check_channel_linear("weight", x.shape[2] * x.shape[3], weight, bias)
    check_blocks("weight", weight.depth)
    out: Tensor = _row_mx_o_proj(x, weight.codes, weight.scales, bias)
    return out


@operator("row_mx_o_proj")
def _row_mx_o_proj(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    machine = machine_for(x)
    if machine is not None:
        from wantrn.kernels.projections import torch_call

        weight = ChannelWeight(codes, scales)
        reason = torch_call.o_proj_refusal_of(x, weight, machine)
        if reason is None:
            return torch_call.o_proj_computed(x, weight, bias, machine)
        log_fallback("row_mx_o_proj", reason)
    from wantrn.kernels.projections.reference import o_proj_reference

    return o_proj_reference(x.permute(0, 2, 3, 1), codes, scales, as_row(bias))


@_row_mx_o_proj.register_fake
def _(x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], codes.shape[1]))
