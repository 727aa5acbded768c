"""What `attention_cte` computes, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.kernels.attention.options import Options


def visible(
    options: Options,
    s_q: int,
    s_k: int,
    cp_offset: int = 0,
    s_prior: int = 0,
    used: int = 0,
) -> Tensor:
    """Which keys each query reads: bool `[S_q, s_prior + S_k]`, the keys of the prefix first."""
    stride = options.cp_degree if options.cp == "strided" else 1
    query = used + cp_offset + stride * torch.arange(s_q)[:, None]
    # keys of the prefix that do not count have no position
    prior, active = torch.arange(s_prior), used + torch.arange(s_k)
    key = torch.cat((torch.where(prior < used, prior, -(1 << 40)), active))[None]
    seen = (key >= 0).expand(s_q, -1)
    if options.causal:
        seen = seen & (key <= query)
    if options.window:
        seen = seen & (key > query - options.window)
    return seen


def attention_reference(
    q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor, sink: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`softmax(scale * Q K^T) V` over the keys that are `seen`, in float64.

    Args:
        q: `[B, S_q, D]`; k, v: `[B_kv, S_k, D]`, `B_kv` a divisor of `B`.
        seen: bool `[S_q, S_k]` or `[B, S_q, S_k]`.
        sink: `[B, 1]`, a logit without a value.

    Returns:
        The output `[B, S_q, D]`, zeros where a query sees no key; the negated maximum and the
        reciprocal of the sum of `exp(score - maximum)`, `[B, S_q]`.
    """
    q, k, v = q.double(), k.double(), v.double()
    k = k.repeat_interleave(q.shape[0] // k.shape[0], dim=0)
    v = v.repeat_interleave(q.shape[0] // v.shape[0], dim=0)
    scores = (scale * q @ k.transpose(1, 2)).masked_fill(~seen, -torch.inf)
    if sink is not None:
        column = sink.double()[:, None, :].expand(-1, q.shape[1], -1)
        scores = torch.cat((scores, column), dim=-1)
    largest = scores.amax(dim=-1, keepdim=True).clamp(min=-1e300)
    p = torch.exp(scores - largest)
    total = p.sum(dim=-1, keepdim=True)
    out = p[..., : v.shape[1]] @ v / total.clamp(min=1e-300)
    return out, -largest[..., 0], 1 / total[..., 0]
