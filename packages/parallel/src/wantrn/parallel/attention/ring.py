"""Ring attention: queries stay, keys and values go round."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.parallel.attention.exchange import Exchange, Shard
from wantrn.parallel.attention.local import Attend
from wantrn.parallel.attention.merge import Partial, merge_
from wantrn.parallel.group import Group
from wantrn.parallel.tokens import real_tokens


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, total: int, group: Group, attend: Attend
) -> Tensor:
    """Attention of this rank's queries to the keys of all ranks of ``group``.

    Each round computes with one shard of K and V while it moves on to the next rank and another
    comes in, so a rank has two shards at most. With more than two ranks, **the memory of contiguous
    ``k`` and ``v`` is one of them: their contents are lost**. Others are copied first.

    Args:
        q: ``[B, S, N, D]``, tokens ``position * S`` and on of the sequence.
        k, v: as ``q``.
        total: tokens of the sequence that are not padding, which is at its end.
        attend: for a shard's keys without padding.

    Returns:
        ``[B, S, N, D]`` of ``q.dtype``, rounded once. What it has for padding is finite and means
        nothing.
    """
    length, size = k.shape[1], group.size
    held, spare = _to_move(q, k, v, size)
    merged: Partial | None = None
    for step in range(size):
        exchange = None if step == size - 1 else Exchange.post(held, spare, group)
        real = real_tokens(total, length, (group.position - step) % size)
        if real:
            part = attend(q, held[0][:, :real], held[1][:, :real])
            if merged is None:
                merged = part
            else:
                merge_(merged, part)
            del part
        if exchange is not None:
            held, spare = exchange.wait(), held
    assert merged is not None, "the sequence has a token"
    return merged.out.to(q.dtype)


def _to_move(q: Tensor, k: Tensor, v: Tensor, size: int) -> tuple[Shard, Shard]:
    """This rank's shard, and memory for the next; both are written to if ``size`` is above 2."""
    if size == 1:
        return (k, v), (k, v)
    k, v = k.contiguous(), v.contiguous()
    if size > 2:
        if _share_memory(k, q):
            k = k.clone()
        if _share_memory(v, q) or _share_memory(v, k):
            v = v.clone()
    return (k, v), (torch.empty_like(k), torch.empty_like(v))


def _share_memory(x: Tensor, y: Tensor) -> bool:
    """Whether the spans of ``x`` and ``y`` in memory overlap."""
    (x_start, x_end), (y_start, y_end) = _span(x), _span(y)
    return x_start < y_end and y_start < x_end


def _span(x: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()
