"""``mlp``: the feed-forward layer, up, GELU (tanh form), down."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from wantrn.kernels.ops.linear import check_linear, wide_linear

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


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


@torch.library.custom_op("wantrn::mlp", mutates_args=())
def _mlp(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None
) -> Tensor:
    inner = _gelu_tanh_(wide_linear(x, up, up_bias))
    return wide_linear(inner, down, down_bias).to(x.dtype)


def _gelu_tanh_(x: Tensor) -> Tensor:
    """``x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`` in place.

    As ``1 + tanh(z) = 2 sigmoid(2 z)``, this is ``x * sigmoid(x * (a + b x^2))``. torch's own GELU
    takes twice as long on a CPU, and loses all digits of its tail, where tanh is almost -1.
    """
    gate = x * x
    gate.mul_(2 * _SQRT_2_OVER_PI * 0.044715).add_(2 * _SQRT_2_OVER_PI).mul_(x)
    return x.mul_(gate.sigmoid_())


@_mlp.register_fake
def _(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None
) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], down.shape[0]))
