"""Attention as the formula says it, in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Output ``[B, S, N, D]`` and logarithm of the denominator ``[B, N, S]``, both float64."""
    q, k, v = q.double(), k.double(), v.double()
    scores = torch.einsum("bind,bjnd->bnij", q, k) / q.shape[3] ** 0.5
    out = torch.einsum("bnij,bjnd->bind", scores.softmax(-1), v)
    return out, scores.logsumexp(-1)


def fp32_error(q: Tensor, k: Tensor, v: Tensor) -> float:
    """How far fp32 arithmetic may be off: a score's rounding is a relative error of its weight,
    and weights multiply values."""
    q, k, v = q.double(), k.double(), v.double()
    scores = torch.einsum("bind,bjnd->bnij", q, k) / q.shape[3] ** 0.5
    epsilon = torch.finfo(torch.float32).eps
    return float(4 * epsilon * (1 + scores.abs().max()) * v.abs().max())


def excess(out: Tensor, q: Tensor, k: Tensor, v: Tensor) -> float:
    """By how much an element of ``out`` is further from the formula than fp32 arithmetic, and one
    rounding to the dtype of ``out`` at its end, may bring it; at most 0 if all is well."""
    exact, _ = attention(q, k, v)
    allowed = fp32_error(q, k, v)
    # half a unit in the last place, at most
    rounding = 0.0 if out.dtype is torch.float32 else torch.finfo(out.dtype).eps / 2
    return (
        float(((out.double() - exact).abs() - rounding * (exact.abs() + allowed)).max()) - allowed
    )
