"""Attention of the video's tokens to each other, whichever ranks have them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wantrn.kernels import ops
from wantrn.kernels.machine import machine_for
from wantrn.model.parallelism import Parallelism
from wantrn.parallel.attention import SequenceAttention, Strategy


@dataclass(frozen=True)
class VideoAttention:
    """Softmax attention of this rank's tokens to those of all ranks of ``parallel.groups.cp``.

    Where torch computes, the exchange between ranks is that of ``wantrn.parallel``. Kernels do the
    ring themselves, exchange and all.
    """

    parallel: Parallelism

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, total: int) -> Tensor:
        """``[B, S, N, D]`` each, tokens from ``total`` on being padding, to a result like ``q``.

        Raises:
            ValueError: tensors that do not fit each other, ``total`` or the ranks.
        """
        groups = self.parallel.groups
        if groups.cp.size == 1:
            return ops.attention(q, k[:, :total], v[:, :total])
        if machine_for(q) is None:
            attention = SequenceAttention.of(groups, strategy=self.parallel.strategy)
        else:
            attention = SequenceAttention.of(groups, ring_kernel=self._by_kernels)
        return attention(q, k, v, total)

    def _by_kernels(self, q: Tensor, k: Tensor, v: Tensor, total: int) -> Tensor:
        """Among the ranks of a ring, be it one."""
        ring = self.parallel.groups.ring
        if ring.size > 1 and self.parallel.strategy is Strategy.RING:
            found = ops.ring_attention(
                q, k, v, ring.partition, group=ring.process_group, total=total
            )
            return found.out
        k, v = (ring.all_gather(x, 1)[:, :total] for x in (k, v))
        return ops.attention(q, k, v)
