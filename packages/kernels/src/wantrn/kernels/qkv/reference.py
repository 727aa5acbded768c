"""What `qkv_cte` computes, in torch; it rounds where the kernel rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.kernels.qkv.options import LAYER_PER_HEAD, RMS_ALL_HEADS, Options
from wantrn.kernels.row_mx import ChannelWeight, row_mx_linear


def projected_reference(
    x: Tensor, weight: Tensor, weight_scales: Tensor | None, bias: Tensor | None
) -> Tensor:
    """`x W + bias` in fp32, `[B, S, I]`; arguments as of `qkv_cte`."""
    if weight_scales is not None:
        return row_mx_linear(x, ChannelWeight(weight, weight_scales), bias)
    y = x.float() @ weight.float()
    return y if bias is None else y + bias.float()


def qkv_reference(
    projected: list[Tensor],
    options: Options,
    gammas: list[tuple[Tensor, Tensor | None] | None],
    angles: tuple[Tensor, Tensor] | None,
    betas: list[tuple[Tensor, Tensor | None] | None] | None = None,
) -> list[Tensor]:
    """The results of all ranks among which a token's heads are spread.

    Args:
        projected: for each rank `[B, S, I]` fp32, see `projected_reference`.
        options: of every rank.
        gammas: for each rank `(q_gamma, k_gamma)`, or None without a norm. `k_gamma` is None
            where there is no K.
        angles: `(cos, sin)`, `[S, D / 2]`, or None without rotation.
        betas: for each rank `(q_beta, k_beta)`, as `gammas`; or None.

    Returns:
        For each rank the rows that `qkv_cte` returns where there are no caches.
    """
    sums = None
    if gammas[0] is not None:
        sums = torch.stack([squares_reference(part, options) for part in projected]).sum(0)
    return [
        finished_reference(part, options, gamma, angles, sums, len(projected), beta)
        for part, gamma, beta in zip(projected, gammas, betas or [None] * len(gammas), strict=True)
    ]


def squares_reference(projected: Tensor, options: Options) -> Tensor:
    """Of each token of a rank the sums of squares of Q's columns, and of K's if there is one: fp32
    `[1 or 2, B, S, 1]`."""
    parts = [projected[..., columns] for columns in _later_columns(options)]
    return torch.stack([part.square().sum(-1, keepdim=True) for part in parts])


def finished_reference(
    projected: Tensor,
    options: Options,
    gammas: tuple[Tensor, Tensor | None] | None,
    angles: tuple[Tensor, Tensor] | None,
    sums: Tensor | None,
    ranks: int,
    betas: tuple[Tensor, Tensor | None] | None = None,
) -> Tensor:
    """The result of one rank.

    Args:
        projected, options, gammas, angles, betas: as of `qkv_reference`, of this rank.
        sums: `squares_reference` of all ranks added up; None without a norm.
        ranks: among which a token's heads are spread.
    """
    rows = projected.bfloat16()
    for index, columns in enumerate(_later_columns(options)):
        part, inv = projected[..., columns], None
        weight = None if gammas is None else gammas[index]
        if options.norm != RMS_ALL_HEADS and weight is not None:
            beta = None if betas is None else betas[index]
            rows[..., columns] = _finished_heads(part.bfloat16(), weight, beta, options, angles)
            continue
        if weight is not None and sums is not None:
            inv = (sums[index] / (part.shape[-1] * ranks) + options.eps).rsqrt()
            part = part * weight
        rows[..., columns] = _finished(part.bfloat16(), inv, angles, options.head_dim)
    if options.heads_first:
        return _heads(rows, options.head_dim).permute(2, 0, 1, 3)
    return rows


def _later_columns(options: Options) -> list[slice]:
    """The columns of Q, and those of K if there is one."""
    q, k = options.heads * options.head_dim, options.kv_heads * options.head_dim
    return [slice(0, q), slice(q, q + k)][: 2 if k else 1]


def _finished(
    row: Tensor, inv: Tensor | None, angles: tuple[Tensor, Tensor] | None, head_dim: int
) -> Tensor:
    wide = row.float()
    if angles is None:
        return row if inv is None else (wide * inv).bfloat16()
    # [S, 1, D / 2], or [B, S, 1, D / 2]: the same for all heads
    cos, sin = (table.unsqueeze(-2) for table in angles)
    if inv is not None:
        cos, sin = cos * inv.unsqueeze(-1), sin * inv.unsqueeze(-1)
    lo, hi = _heads(wide, head_dim).chunk(2, dim=-1)
    turned = torch.cat((lo * cos - hi * sin, hi * cos + lo * sin), dim=-1)
    return turned.flatten(-2).bfloat16()


def _finished_heads(
    row: Tensor,
    gamma: Tensor,
    beta: Tensor | None,
    options: Options,
    angles: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """`row` `[B, S, n * D]`, each head normalised by itself; gamma, beta: `[1, D]`."""
    wide = _heads(row.float(), options.head_dim)
    if options.norm == LAYER_PER_HEAD:
        wide = wide - wide.mean(-1, keepdim=True)
    wide = wide * (wide.square().mean(-1, keepdim=True) + options.eps).rsqrt()
    if beta is not None:
        wide, gamma = wide * gamma + beta, torch.ones_like(gamma)
    if angles is None:
        return (wide * gamma).flatten(-2).bfloat16()
    low, high = gamma.chunk(2, dim=-1)
    cos, sin = (table.unsqueeze(-2) for table in angles)
    lo, hi = wide.chunk(2, dim=-1)
    turned = (lo * (cos * low) - hi * (sin * high), hi * (cos * high) + lo * (sin * low))
    return torch.cat(turned, dim=-1).flatten(-2).bfloat16()


def _heads(row: Tensor, head_dim: int) -> Tensor:
    return row.view(*row.shape[:-1], -1, head_dim)
