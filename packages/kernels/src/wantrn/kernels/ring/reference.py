"""What the ring kernels compute, in torch and in the dtype of its arguments: float64 is exact."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_reference(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Softmax attention and the logarithm of its sums.

    Args:
        q: `[B, S_q, N, D]`.
        k, v: `[B, S_k, N, D]`.
        scale: multiplies the scores.

    Returns:
        `[B, S_q, N, D]` and `[B, N, S_q]`.
    """
    scores = scale * torch.einsum("bqnd,bknd->bnqk", q, k)
    out = torch.einsum("bnqk,bknd->bqnd", torch.softmax(scores, -1), v)
    return out, torch.logsumexp(scores, -1)


def gap_reference(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """How far the Cauchy-Schwarz bound is above the logarithm of the sum, at most, in nats.

    Args:
        q, k: as in `attention_reference`.
        scale: of the scores.

    Returns:
        `[B, N]`: the most over the queries of `c_i - log(sum_j exp(s_ij))`.
    """
    scores = scale * torch.einsum("bqnd,bknd->bnqk", q, k)
    bounds = scale * q.norm(dim=-1) * k.norm(dim=-1).amax(1, keepdim=True)
    gaps: Tensor = (bounds.transpose(1, 2) - torch.logsumexp(scores, -1)).amax(-1)
    return gaps
