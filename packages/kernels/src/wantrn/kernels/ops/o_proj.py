"""``o_proj``: the projection of attention's heads back to the residual stream."""

from __future__ import annotations

from torch import Tensor

from wantrn.kernels.backend import log_fallback
from wantrn.kernels.machine import machine_for
from wantrn.kernels.ops.linear import check_linear, linear
from wantrn.kernels.ops.registration import operator


def o_proj(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``concat_heads(x) @ weight.T + bias``.

    Args:
        x: ``[B, S, N, D]``, fp32 or bf16.
        weight: ``[H, N*D]`` of ``x.dtype``.
        bias: ``[H]`` of ``x.dtype``, or None.

    Returns:
        ``[B, S, H]`` of ``x.dtype``.

    Raises:
        ValueError: an argument whose shape or dtype does not fit the others, by name.
    """
    if x.ndim != 4:
        raise ValueError(f"x must be [B, S, N, D], got {list(x.shape)}")
    check_linear("weight", x.shape[2] * x.shape[3], x, weight, bias)
    out: Tensor = _o_proj(x, weight, bias)
    return out


@operator("o_proj")
def _o_proj(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    machine = machine_for(x)
    if machine is not None:
        from wantrn.kernels.projections import torch_call

        reason = torch_call.o_proj_refusal_of(x, weight, machine)
        if reason is None:
            return torch_call.o_proj_computed(x, weight, bias, machine)
        log_fallback("o_proj", reason)
    return linear(x.flatten(2), weight, bias)


@_o_proj.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], weight.shape[0]))
