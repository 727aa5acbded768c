"""What follows the projection to heads, where an operator does not do it in one go."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.kernels.ops import HeadNorm, Rotary
from wantrn.kernels.replicas import summed


def normalise_and_rotate(
    projected: Tensor,
    head_dim: int,
    num_kv_heads: int,
    norm: HeadNorm | None,
    rotary: Rotary | None,
) -> Tensor:
    """RMSNorm over heads and rotation, as ``ops.qkv_proj`` defines them, of a projection's result.

    In fp32, and rounded once.

    Args:
        projected: ``[B, S, I]``, columns Q | K | V, or Q alone where ``num_kv_heads`` is 0.
        head_dim: ``D``.
        norm: also over the heads of other ranks, which call this together.
        rotary: of these tokens.

    Returns:
        ``projected`` itself, its columns of Q and K changed in place.
    """
    kv = num_kv_heads * head_dim
    q = projected.shape[-1] - 2 * kv
    segments = [projected[..., :q], *([projected[..., q : q + kv]] if kv else [])]
    factors = [None] * len(segments) if norm is None else _inverse_rms(segments, norm)
    weights = (None, None) if norm is None else (norm.q_weight, norm.k_weight)
    for segment, factor, weight in zip(segments, factors, weights, strict=False):
        wide = segment.float()
        if factor is not None and weight is not None:
            wide = wide * factor * weight
        if rotary is not None:
            wide = _rotated(wide.view(*wide.shape[:2], -1, head_dim), rotary).flatten(2)
        segment.copy_(wide)
    return projected


def _inverse_rms(segments: list[Tensor], norm: HeadNorm) -> list[Tensor]:
    """``1/rms`` of each token of each segment, fp32 ``[B, S, 1]``."""
    sums = torch.stack([part.float().square().sum(-1, keepdim=True) for part in segments])
    replicas = norm.replicas()
    ranks = 1 if replicas is None else replicas.size
    if replicas is not None:
        sums = summed(sums, replicas.name)
    return [
        torch.rsqrt(total / (part.shape[-1] * ranks) + norm.eps)
        for total, part in zip(sums, segments, strict=True)
    ]


def _rotated(heads: Tensor, rotary: Rotary) -> Tensor:
    """``[B, S, N, D]``, pairs of channels ``j`` and ``j + D/2``."""
    lo, hi = heads.chunk(2, dim=-1)
    cos, sin = rotary.cos.unsqueeze(1), rotary.sin.unsqueeze(1)  # the same for every head
    return torch.cat([lo * cos - hi * sin, hi * cos + lo * sin], dim=-1)
