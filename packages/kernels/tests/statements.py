"""What each operator means, written again in float64 with plain loops."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Unit roundoff: half the distance between 1 and the next number.
ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}


def assert_rounds_to(actual: Tensor, expected: Tensor, roundings: float, scale: float) -> None:
    """``actual`` is ``expected`` (float64) up to ``roundings`` unit roundoffs of its dtype,
    relative to ``scale``, the size of the largest numbers that were added up."""
    assert actual.shape == expected.shape
    error = float((actual.double() - expected).abs().max())
    assert error <= roundings * ROUNDOFF[actual.dtype] * scale, (error, scale)


def rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The float64 value after one rounding to ``dtype``."""
    return value.to(dtype).double()


def normalise_heads(segment: Tensor, weight: Tensor, eps: float) -> Tensor:
    mean_square = (segment**2).sum(-1, keepdim=True) / segment.shape[-1]
    return segment / torch.sqrt(mean_square + eps) * weight.double()


def rotate_heads(segment: Tensor, cos: Tensor, sin: Tensor, head_dim: int) -> Tensor:
    """Each pair (j, j + D/2) of each head as a complex number times exp(i * angle)."""
    out = segment.clone()
    half = head_dim // 2
    for start in range(0, segment.shape[-1], head_dim):
        lo = segment[..., start : start + half]
        hi = segment[..., start + half : start + head_dim]
        turned = torch.complex(lo, hi) * torch.complex(cos.double(), sin.double())
        out[..., start : start + half] = turned.real
        out[..., start + half : start + head_dim] = turned.imag
    return out


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    out = torch.empty(q.shape, dtype=torch.float64)
    group = q.shape[2] // k.shape[2]
    for b in range(q.shape[0]):
        for n in range(q.shape[2]):
            scores = scale * q[b, :, n].double() @ k[b, :, n // group].double().T
            weights = torch.exp(scores - scores.max(dim=1, keepdim=True).values)
            weights /= weights.sum(dim=1, keepdim=True)
            out[b, :, n] = weights @ v[b, :, n // group].double()
    return out


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def normalise(x: Tensor, norm: str, eps: float) -> Tensor:
    if norm == "layer":
        x = x - x.mean(-1, keepdim=True)
    if norm in ("layer", "rms"):
        x = x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps)
    return x


def by_token(rows: Tensor, tokens: int) -> Tensor:
    """Rows ``[1 | B, G, H]`` or ``[H]`` written out for every token."""
    if rows.ndim == 1:
        return rows.double().expand(1, tokens, -1)
    run = tokens // rows.shape[1]
    return torch.stack([rows[:, s // run] for s in range(tokens)], dim=1).double()
