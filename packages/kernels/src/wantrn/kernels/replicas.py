"""The ranks that an operator works with, and how they go through ``torch.library``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

ReplicaGroups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Replicas:
    """This rank's group, in types that ``torch.library`` takes.

    Attributes:
        ranks: the ranks of all groups, one group after the other.
        size: of each group.
        position: this rank's, in its group.
        order: the place in the process group of each member.
        name: of the process group, "" without one.
    """

    ranks: list[int]
    size: int
    position: int
    order: list[int]
    name: str

    @classmethod
    def of(
        cls, groups: ReplicaGroups, process_group: dist.ProcessGroup | None, prefix: str = ""
    ) -> Self:
        """The group of this rank.

        Args:
            groups: of one length, together each rank once.
            process_group: of this rank's; None for groups of one.
            prefix: before the arguments' names in errors.

        Raises:
            ValueError: the groups are none such, or the process group is of other ranks.
        """
        rank = dist.get_rank() if dist.is_initialized() else 0
        ranks = [member for group in groups for member in group]
        if sorted(ranks) != list(range(len(ranks))) or len({len(group) for group in groups}) != 1:
            raise ValueError(
                f"{prefix}replica_groups must be groups of one length that hold each rank once, "
                f"got {groups}"
            )
        if rank not in ranks:
            raise ValueError(f"{prefix}replica_groups must hold this rank, {rank}, got {groups}")
        (own,) = [group for group in groups if rank in group]
        found = [rank] if process_group is None else dist.get_process_group_ranks(process_group)
        if sorted(found) != sorted(own):
            raise ValueError(
                f"{prefix}group must be of the ranks {list(own)}, got one of {sorted(found)}"
            )
        name = "" if process_group is None else process_group.group_name
        order = [found.index(member) for member in own]
        return cls(ranks, len(own), own.index(rank), order, name)


def groups_of(ranks: list[int], size: int) -> ReplicaGroups:
    """The groups that ``Replicas`` has as one list."""
    return tuple(tuple(ranks[at : at + size]) for at in range(0, len(ranks), size))


def summed(x: Tensor, name: str) -> Tensor:
    """The sum of ``x`` over the process group ``name``."""
    return _reduced(x, "sum", name)


def least(x: Tensor, name: str) -> Tensor:
    """The minimum of ``x`` over the process group ``name``, by element."""
    return _reduced(x, "min", name)


def _reduced(x: Tensor, op: str, name: str) -> Tensor:
    ops = torch.ops._c10d_functional
    total: Tensor = ops.wait_tensor(ops.all_reduce(x, op, name))
    return total


def gathered(x: Tensor, order: list[int], name: str) -> list[Tensor]:
    """``x`` of all ranks of the process group ``name``, in ``order``."""
    if len(order) == 1:
        return [x]
    ops = torch.ops._c10d_functional
    whole = ops.wait_tensor(ops.all_gather_into_tensor(x.contiguous(), len(order), name))
    parts = whole.chunk(len(order))
    return [parts[place] for place in order]
