"""Groups for attention over a sequence, of ranks in any order; called in every rank of a world."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch.distributed as dist

from wantrn.parallel import Groups
from wantrn.parallel.group import Group


def sequence_groups(order: tuple[int, ...], ring: int, ulysses: int) -> Groups | None:
    """This rank's groups where ``order`` shares a sequence; None for ranks that are not in it.

    All ranks of the world call it alike, as making a group takes all of them.
    """
    rings = tuple(order[position::ulysses] for position in range(ulysses))
    swaps = tuple(order[start : start + ulysses] for start in range(0, len(order), ulysses))
    assert len(order) == ring * ulysses
    along = [_group(rings), _group(swaps), _group((order,))]
    if dist.get_rank() not in order:
        return None
    found = [group for group in along if group is not None]
    return replace(Groups.single(), ring=found[0], ulysses=found[1], cp=found[2])


def _group(partition: tuple[tuple[int, ...], ...]) -> Group | None:
    made = {ranks: _process_group(ranks) for ranks in partition}
    rank = dist.get_rank()
    for ranks, process_group in made.items():
        if rank in ranks:
            return Group(ranks, ranks.index(rank), partition, process_group)
    return None


@cache
def _process_group(ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
    return dist.new_group(list(ranks)) if len(ranks) > 1 else None
