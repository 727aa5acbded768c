"""What `qkv_cte` gives beside rows, in torch: sums of squares, and caches."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.kernels.qkv.options import Options


def squared_sums_reference(projected: Tensor, options: Options) -> Tensor:
    """The sums of `options.squared_sums`, fp32 `[B, S, segments]`.

    Args:
        projected: `[B, S, I]` fp32, see `projected_reference`.
    """
    segments = _segments(projected, options)
    return torch.stack([part.square().sum(-1) for part in segments if part.numel()], -1)


def cached_reference(
    rows: Tensor,
    options: Options,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The result with caches: Q, and both caches with K and V written to them.

    Args:
        rows: the result without caches, see `qkv_reference`.
        k_cache, v_cache, slot_mapping: as of `qkv_cte`; not changed.
    """
    flat = rows.permute(1, 2, 0, 3).flatten(-2) if options.heads_first else rows
    q, k, v = _segments(flat, options)
    if options.heads_first:
        q = rows[: options.heads]
    caches = [
        _written(cache, part, options.cache_starts, slot_mapping)
        for cache, part in ((k_cache, k), (v_cache, v))
    ]
    return q, caches[0], caches[1]


def _written(cache: Tensor, rows: Tensor, starts: tuple[int, ...], slots: Tensor | None) -> Tensor:
    """A copy of `cache` with `rows` `[B, S, N_kv * D]` in it."""
    found = cache.clone()
    if slots is not None:
        found.flatten(0, 1)[slots.flatten().long()] = rows.flatten(0, 1)
        return found
    for sequence, tokens in enumerate(rows):
        start = starts[sequence] if starts else 0
        found[sequence, start : start + len(tokens)] = tokens
    return found


def _segments(rows: Tensor, options: Options) -> list[Tensor]:
    """Q, K and V of `[B, S, I]`; K and V are empty where there are none."""
    q, kv = options.heads * options.head_dim, options.kv_heads * options.head_dim
    return [rows[..., :q], rows[..., q : q + kv], rows[..., q + kv :]]
