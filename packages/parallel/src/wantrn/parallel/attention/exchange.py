"""Tensors that move one place on in a ring of ranks, while the ranks compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from wantrn.parallel.group import Group

Shard = tuple[Tensor, Tensor]
"""K and V of one rank's tokens, ``[B, S, N, D]`` each and contiguous."""


@dataclass(frozen=True)
class Exchange:
    """A shard on its way to the next rank, and another coming from the one before.

    Neither ``sent`` may be written nor ``received`` be used before :meth:`wait` is over.
    """

    sent: Shard
    received: Shard
    works: tuple[dist.Work, ...]

    @classmethod
    def post(cls, sent: Shard, received: Shard, group: Group) -> Exchange:
        """Start both ways and return at once.

        As no rank waits here, the order in which ranks come does not matter, nor that with two
        ranks the next one and the one before are the same.
        """
        after = group.ranks[(group.position + 1) % group.size]
        before = group.ranks[group.position - 1]
        transfers = []
        for tag, (mine, theirs) in enumerate(zip(sent, received, strict=True)):
            transfers.append(dist.P2POp(dist.isend, mine, after, group.process_group, tag))
            transfers.append(dist.P2POp(dist.irecv, theirs, before, group.process_group, tag))
        return cls(sent, received, tuple(dist.batch_isend_irecv(transfers)))

    def wait(self) -> Shard:
        """What came, once both ways are through."""
        for work in self.works:
            work.wait()
        return self.received
