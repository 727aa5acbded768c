"""``mlp``: the feed-forward layer, up, GELU (tanh form), down."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.kernels.backend import log_fallback
from wantrn.kernels.machine import machine_for
from wantrn.kernels.ops.linear import check_linear, wide_linear
from wantrn.kernels.ops.registration import operator


def mlp(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None
) -> Tensor:
    """``gelu(x @ up.T + up_bias) @ down.T + down_bias`` with the tanh form of GELU.

    Args:
        x: ``[B, S, H]``, fp32 or bf16.
        up: ``[F, H]`` of ``x.dtype``; ``up_bias`` ``[F]`` or None.
        down: ``[H_out, F]`` of ``x.dtype``; ``down_bias`` ``[H_out]`` or None.

    Returns:
        ``[B, S, H_out]`` of ``x.dtype``.

    Raises:
        ValueError: an argument whose shape or dtype does not fit the others, by name.
    """
    if x.ndim != 3:
        raise ValueError(f"x must be [B, S, H], got {list(x.shape)}")
    check_linear("up", x.shape[-1], x, up, up_bias)
    check_linear("down", up.shape[0], x, down, down_bias)
    out: Tensor = _mlp(x, up, up_bias, down, down_bias)
    return out


@operator("mlp")
def _mlp(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None
) -> Tensor:
    machine = machine_for(x)
    if machine is not None:
        from wantrn.kernels.projections import torch_call

        reason = torch_call.mlp_refusal_of(x, up, down, machine)
        if reason is None:
            biases = (up_bias, down_bias)
            return torch_call.mlp_computed(x, (up, down), biases, machine)
        log_fallback("mlp", reason)
    inner = torch.ops.aten.gelu_(wide_linear(x, up, up_bias), approximate="tanh")
    return wide_linear(inner, down, down_bias).to(x.dtype)


@_mlp.register_fake
def _(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None
) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], down.shape[0]))
