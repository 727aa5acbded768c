"""What the ranks of a ring exchange: shards of K and V, and small sums and maxima."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import ncc, nl
from wantrn.kernels.ring.division import Pass
from wantrn.kernels.ring.rank import Rank
from wantrn.kernels.sbuf import PARTITIONS


class Shards(nl.NKIObject):
    """The K/V shards of one pass: the own one, and room for those under way.

    Attributes:
        keys: HBM `[n, D, 128 tiles]`; transposed once, by the rank that owns them.
        values: HBM `[n, 128, tiles, D + 1]`; key `128 t + p` at `[:, p, t]`, and after its row a
            one, or a zero where the row is padding. So every load is long runs, and what is
            padding travels with the shard.
    """

    def __init__(self, rank: Rank, work: Pass) -> None:
        shape = rank.plan.shape
        count, tiles = len(work.heads), shape.key_tiles()
        keys, values = [], []
        for i in range(rank.options.buffers()):
            keys.append(
                nl.ndarray(
                    (count, shape.head_dim, tiles * PARTITIONS),
                    rank.dtype,
                    buffer=nl.shared_hbm,
                    name=f"ring_keys_{work.number}_{i}",
                )
            )
            values.append(
                nl.ndarray(
                    (count, PARTITIONS, tiles, shape.columns()),
                    rank.dtype,
                    buffer=nl.shared_hbm,
                    name=f"ring_values_{work.number}_{i}",
                )
            )
        self.keys = keys
        self.values = values
        self.sent = 0

    def send(self, rank: Rank, step: int) -> None:
        """Start the permutes that may be under way in a step, and are not yet."""
        last = min(step + rank.options.depth(), rank.options.ranks - 1)
        count = len(self.keys)
        group = ncc.ReplicaGroup(rank.options.groups)
        while self.sent < last:
            src, dst = self.sent % count, (self.sent + 1) % count
            for shards in (self.keys, self.values):
                ncc.collective_permute_implicit(
                    srcs_by_channel=[[shards[src]]],
                    dsts_by_channel=[[shards[dst]]],
                    replica_group=group,
                )
            self.sent += 1


def reduced(rank: Rank, mine: Any, op: Any, name: str) -> Any:
    """`mine` of all ranks of the ring, summed or its maximum; both cores have written their part.

    Args:
        mine: shared HBM.
        op: `nl.add` or `nl.maximum`.
        name: of the result.
    """
    rank.barrier(mine)
    if rank.options.ranks == 1:
        return mine
    result = nl.ndarray(mine.shape, mine.dtype, buffer=nl.shared_hbm, name=name)
    group = ncc.ReplicaGroup(rank.options.groups)
    ncc.all_reduce(srcs=[mine], dsts=[result], replica_group=group, op=op)
    return result
