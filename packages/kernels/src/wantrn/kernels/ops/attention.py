"""``attention``: softmax attention without a mask."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from wantrn.kernels.backend import log_fallback
from wantrn.kernels.machine import machine_for
from wantrn.kernels.ops.linear import widens
from wantrn.kernels.ops.registration import operator


def attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """``softmax(scale * Q K^T) V`` for every head, with the softmax in fp32.

    Args:
        q: ``[B, S_q, N, D]``, fp32 or bf16; any strides.
        k: ``[B, S_k, N_kv, D]`` of ``q.dtype``; ``N_kv`` divides ``N``, and head ``n`` of Q reads
            head ``n // (N / N_kv)`` of K and V.
        v: as ``k``.
        scale: multiplies the scores; ``D ** -0.5`` when None.

    Returns:
        ``[B, S_q, N, D]`` contiguous, of ``q.dtype``.

    Raises:
        ValueError: an argument whose shape or dtype does not fit the others, by name.
    """
    if q.ndim != 4:
        raise ValueError(f"q must be [B, S, N, D], got {list(q.shape)}")
    batch, _, heads, head_dim = q.shape
    if k.ndim != 4 or k.shape[0] != batch or k.shape[3] != head_dim or k.shape[1] == 0:
        raise ValueError(f"k must be [{batch}, S_k > 0, N_kv, {head_dim}], got {list(k.shape)}")
    if k.shape[2] == 0 or heads % k.shape[2]:
        raise ValueError(f"k's heads must divide q's {heads}, got {k.shape[2]}")
    if v.shape != k.shape:
        raise ValueError(f"v must have k's shape {list(k.shape)}, got {list(v.shape)}")
    if k.dtype != q.dtype or v.dtype != q.dtype:
        raise ValueError(f"k and v must have q's dtype {q.dtype}, got {k.dtype} and {v.dtype}")
    out: Tensor = _attention(q, k, v, head_dim**-0.5 if scale is None else scale)
    return out


@operator("attention")
def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    machine = machine_for(q)
    if machine is not None:
        from wantrn.kernels.attention import torch_call

        reason = torch_call.refusal_of(q, k, scale, machine)
        if reason is None:
            return torch_call.computed(q, k, v, scale, machine)
        log_fallback("attention", reason)
    return _computed(q, k, v, scale)


def _computed(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """By torch."""
    dtype = q.dtype
    if widens(dtype, q.device):
        q, k, v = q.float(), k.float(), v.float()
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2).to(dtype).contiguous()


@_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return q.new_empty(q.shape)
