"""``row_mx_qkv_proj``: ``qkv_proj`` of packed rows with an FP8 weight."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.kernels.backend import log_fallback
from wantrn.kernels.machine import machine_for
from wantrn.kernels.ops.channel_linear import as_row, check_channel_linear, check_packed
from wantrn.kernels.ops.qkv_proj import (
    HeadNorm,
    QKVLayout,
    Rotary,
    check_heads,
    library_arguments,
    q_heads,
    result_shape,
)
from wantrn.kernels.ops.registration import operator
from wantrn.kernels.replicas import groups_of, summed
from wantrn.kernels.row_mx import ChannelWeight, row_mx_linear


def row_mx_qkv_proj(
    packed: Tensor,
    weight: ChannelWeight,
    bias: Tensor | None,
    *,
    head_dim: int,
    num_kv_heads: int,
    norm: HeadNorm | None = None,
    rotary: Rotary | None = None,
    layout: QKVLayout = QKVLayout.BSD,
) -> Tensor:
    """Project packed rows to Q, K and V; normalise and rotate Q and K.

    With ``y = row_mx_linear(packed, weight, bias)`` in fp32 and ``q`` its Q columns (K alike)::

        inv = rsqrt(mean(q**2 over all columns of Q) + eps)                 where norm is given
        q = bf16(q * q_weight)                                              where norm is given
        q = bf16(rotated(q * inv))                                          by ``rotary``

    V is rounded to bf16 alone.

    Args:
        packed: ``[B, S, H + 4]`` float8_e4m3fn.
        weight: ``I = (N + 2*num_kv_heads) * head_dim`` channels of ``H``, in the order Q | K | V.
        bias: ``[I]`` bf16 or fp32, or None.
        head_dim, num_kv_heads, norm, rotary, layout: as of ``qkv_proj``.

    Returns:
        ``[B, S, I]`` or ``[N + 2*num_kv_heads, B, S, D]`` bf16.

    Raises:
        ValueError: an argument whose shape or dtype does not fit the others, by name.
    """
    check_channel_linear("weight", check_packed(packed), weight, bias)
    check_heads(packed.shape[1], weight.width, head_dim, num_kv_heads, norm, rotary)
    replicas = None if norm is None else norm.replicas()
    out: Tensor = _row_mx_qkv_proj(
        packed,
        weight.codes,
        weight.scales,
        bias,
        head_dim,
        num_kv_heads,
        None if norm is None else norm.q_weight,
        None if norm is None else norm.k_weight,
        # without a norm there is none
        1e-6 if norm is None else norm.eps,
        None if rotary is None else rotary.cos,
        None if rotary is None else rotary.sin,
        layout is QKVLayout.NBSD,
        *library_arguments(replicas),
    )
    return out


@operator("row_mx_qkv_proj")
def _row_mx_qkv_proj(
    packed: Tensor,
    codes: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    head_dim: int,
    num_kv_heads: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos: Tensor | None,
    sin: Tensor | None,
    heads_first: bool,
    ranks: list[int],
    group_size: int,
    group: str,
) -> Tensor:
    from wantrn.kernels.qkv.options import Options
    from wantrn.kernels.qkv.reference import finished_reference, squares_reference

    weight = ChannelWeight(codes, scales)
    heads = q_heads(weight.width, head_dim, num_kv_heads)
    groups = groups_of(ranks, group_size)
    options = Options(heads, num_kv_heads, head_dim, eps, heads_first, groups)
    machine = machine_for(packed)
    if machine is not None:
        from wantrn.kernels.qkv.torch_call import Call

        call = Call(packed, weight, bias, options, q_weight, k_weight, cos, sin, group)
        reason = call.refusal(machine)
        if reason is None:
            return call.computed(machine)
        log_fallback("row_mx_qkv_proj", reason)
    projected = row_mx_linear(packed, weight, as_row(bias))
    gammas = None if q_weight is None else (q_weight, k_weight)
    angles = None if cos is None or sin is None else (cos, sin)
    squares = None if gammas is None else squares_reference(projected, options)
    if squares is not None and group_size > 1:
        squares = summed(squares, group)
    out = finished_reference(projected, options, gammas, angles, squares, group_size)
    return out.contiguous()


@_row_mx_qkv_proj.register_fake
def _(
    packed: Tensor,
    codes: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    head_dim: int,
    num_kv_heads: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos: Tensor | None,
    sin: Tensor | None,
    heads_first: bool,
    ranks: list[int],
    group_size: int,
    group: str,
) -> Tensor:
    shape = result_shape(packed, codes.shape[1], head_dim, heads_first)
    return packed.new_empty(shape, dtype=torch.bfloat16)
