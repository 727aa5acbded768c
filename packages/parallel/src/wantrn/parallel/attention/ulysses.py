"""Ulysses: ranks swap tokens for heads around an attention of whole heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wantrn.parallel.group import Group

Inner = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Attention ``(q, k, v, total)`` of ``[B, S, N, D]``, to a result like ``q``."""

_PACKED_BYTES = 1 << 18
"""Up to this size of Q it travels with K and V: over gloo, one message of three then takes half the
time of three, and twice theirs from four times this size on."""


def ulysses_attention(
    q: Tensor, k: Tensor, v: Tensor, total: int, group: Group, inner: Inner
) -> Tensor:
    """``inner`` over the tokens of all ranks of ``group``, for this rank's share of the heads.

    Args:
        q: ``[B, S, N, D]``; the ranks of ``group`` have neighbouring tokens, by position.
        k, v: as ``q``.
        total: tokens of the sequence that are not padding; handed to ``inner``.
        inner: takes ``[B, U S, N / U, D]`` for a group of ``U``. It may write to its arguments if
            ``U`` is above 1.

    Returns:
        ``[B, S, N, D]`` of ``q.dtype``.

    Raises:
        ValueError: ``group`` does not divide the heads.
    """
    heads, ranks = q.shape[2], group.size
    if heads % ranks:
        raise ValueError(f"ulysses must divide the {heads} heads, got {ranks}")
    if ranks == 1:
        return inner(q, k, v, total)
    q, k, v = _to_heads(q, k, v, group)
    return group.all_to_all(inner(q, k, v, total), cut=1, join=2)


def _to_heads(q: Tensor, k: Tensor, v: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
    if q.nbytes <= _PACKED_BYTES:
        q, k, v = group.all_to_all(torch.stack((q, k, v)), cut=3, join=2).unbind()
        return q, k, v
    return (
        group.all_to_all(q, cut=2, join=1),
        group.all_to_all(k, cut=2, join=1),
        group.all_to_all(v, cut=2, join=1),
    )
