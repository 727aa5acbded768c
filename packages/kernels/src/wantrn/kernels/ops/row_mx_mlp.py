"""``row_mx_mlp``: ``mlp`` of packed rows with FP8 weights."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.kernels.backend import log_fallback
from wantrn.kernels.machine import machine_for
from wantrn.kernels.ops.channel_linear import (
    as_row,
    check_blocks,
    check_channel_linear,
    check_packed,
)
from wantrn.kernels.ops.registration import operator
from wantrn.kernels.row_mx import ChannelWeight


def row_mx_mlp(
    packed: Tensor,
    up: ChannelWeight,
    up_bias: Tensor | None,
    down: ChannelWeight,
    down_bias: Tensor | None,
) -> Tensor:
    """``gelu(x @ up.T + up_bias) @ down.T + down_bias`` with the tanh form of GELU.

    What GELU gives is rounded to bf16 and then quantized to MX: blocks of 32 neighbouring channels
    of a token share a power of two as their scale. All else is fp32, and the result rounded once.

    Args:
        packed: ``[B, S, H + 4]`` float8_e4m3fn.
        up: ``F`` channels of ``H``, ``F`` a multiple of 32; ``up_bias`` ``[F]`` or None.
        down: ``H_out`` channels of ``F``; ``down_bias`` ``[H_out]`` or None. Biases are bf16 or
            fp32.

    Returns:
        ``[B, S, H_out]`` bf16.

    Raises:
        ValueError: an argument whose shape or dtype does not fit the others, by name.
    """
    check_channel_linear("up", check_packed(packed), up, up_bias)
    check_channel_linear("down", up.width, down, down_bias)
    check_blocks("down", down.depth)
    out: Tensor = _row_mx_mlp(
        packed, up.codes, up.scales, up_bias, down.codes, down.scales, down_bias
    )
    return out


@operator("row_mx_mlp")
def _row_mx_mlp(
    packed: Tensor,
    up: Tensor,
    up_scales: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_scales: Tensor,
    down_bias: Tensor | None,
) -> Tensor:
    machine = machine_for(packed)
    if machine is not None:
        from wantrn.kernels.projections import torch_call

        weights = (ChannelWeight(up, up_scales), ChannelWeight(down, down_scales))
        reason = torch_call.mlp_refusal_of(packed, *weights, machine)
        if reason is None:
            biases = (up_bias, down_bias)
            return torch_call.mlp_computed(packed, weights, biases, machine)
        log_fallback("row_mx_mlp", reason)
    from wantrn.kernels.projections.reference import mlp_reference

    rows = (as_row(up_bias), as_row(down_bias))
    return mlp_reference(packed, up, down, up_scales, down_scales, *rows)


@_row_mx_mlp.register_fake
def _(
    packed: Tensor,
    up: Tensor,
    up_scales: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_scales: Tensor,
    down_bias: Tensor | None,
) -> Tensor:
    shape = (packed.shape[0], packed.shape[1], down.shape[1])
    return packed.new_empty(shape, dtype=torch.bfloat16)
