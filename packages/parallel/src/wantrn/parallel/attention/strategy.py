"""How the ranks of a ring come by each other's keys and values, and why so."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch.distributed as dist

from wantrn.parallel.group import Group

_SEND_AND_RECEIVE = frozenset({"gloo", "nccl"})
"""Backends of torch.distributed that are known to send between two ranks without waiting."""


class Strategy(enum.Enum):
    """What goes between the ranks of a ring."""

    RING = "ring"
    """One shard of K and V after the other, while the ranks compute with the one before."""
    ALL_GATHER = "all_gather"
    """All of K and V at once, before the ranks compute."""


@dataclass(frozen=True)
class Choice:
    """A strategy, and why it was chosen, as a half-sentence."""

    strategy: Strategy
    reason: str


def choose(ring: Group, kernel: bool, wanted: Strategy | None = None) -> Choice:
    """The strategy for the ranks of ``ring``.

    Args:
        kernel: whether a kernel does the ring, exchange and all.
        wanted: the strategy to take; None for the best that can be done, which is the ring.

    Raises:
        ValueError: ``wanted`` cannot be done here.
    """
    if kernel:
        if wanted is Strategy.ALL_GATHER:
            raise ValueError("strategy must be ring or None with ring_kernel, got all_gather")
        return Choice(Strategy.RING, "a kernel does the ring")
    if ring.process_group is None or ring.size == 1:
        return Choice(wanted or Strategy.RING, "a ring of one exchanges nothing")
    backends = _backends(ring.process_group)
    others = " and ".join(sorted(backends - _SEND_AND_RECEIVE))
    if wanted is Strategy.RING and others:
        raise ValueError(
            f"strategy must be all_gather or None without ring_kernel where the backend is "
            f"{others}, as only {' and '.join(sorted(_SEND_AND_RECEIVE))} are known to send and "
            "receive, got ring"
        )
    if wanted is not None:
        return Choice(wanted, "it was asked for")
    if others:
        return Choice(Strategy.ALL_GATHER, f"{others} is not known to send and receive")
    return Choice(Strategy.RING, f"{' and '.join(sorted(backends))} can send and receive")


def _backends(group: dist.ProcessGroup) -> frozenset[str]:
    """The group's, for tensors of any device: ``cpu:gloo,cuda:nccl`` has two."""
    return frozenset(part.partition(":")[2] for part in dist.get_backend_config(group).split(","))
