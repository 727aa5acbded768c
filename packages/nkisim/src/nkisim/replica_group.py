"""Which ranks exchange data with each other in a collective."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from nkisim.enums import member
from nkisim.errors import NkiValidationError


class RgPartitionOp(enum.Enum):
    """How `ReplicaGroup.from_partition_op` makes a group's number of a rank."""

    bitwise_and = "bitwise_and"
    div = "div"
    mod = "mod"


@dataclass(frozen=True, init=False)
class ReplicaGroup:
    """Disjoint groups of ranks; a collective runs within each of them by itself.

    The order of the ranks in a group is the order of their data: rank `groups[g][i]` holds chunk
    `i`, and its successor in a permute is `groups[g][i + 1]`.

    Attributes:
        groups: the ranks of each group. Empty means one group of all ranks of the run in ascending
            order. [inferred: NKI accepts empty groups and does not say what they mean]

    Raises:
        NkiValidationError: a rank is no integer, negative or in two places, or a group is empty.
    """

    groups: tuple[tuple[int, ...], ...]

    def __init__(self, groups: ReplicaGroup | Iterable[Iterable[int]] = ()) -> None:
        """`groups`: lists or tuples of ranks, another ReplicaGroup, or nothing."""
        if isinstance(groups, ReplicaGroup):
            checked = groups.groups
        else:
            checked = tuple(_ranks(index, group) for index, group in enumerate(_items(groups)))
        seen: set[int] = set()
        for group in checked:
            for rank in group:
                if rank in seen:
                    raise NkiValidationError(
                        f"groups of ReplicaGroup are {checked}: rank {rank} stands in them more "
                        "than once; groups must be disjoint"
                    )
                seen.add(rank)
        object.__setattr__(self, "groups", checked)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self.groups)

    @classmethod
    def from_partition_op(
        cls, world_size: int, op: RgPartitionOp | str, operand: int
    ) -> ReplicaGroup:
        """The ranks of the world, grouped by the value of `rank op operand`.

        `div` makes groups of `operand` neighbours, `mod` makes `operand` groups of ranks that are
        `operand` apart, `bitwise_and` groups by the bits of the rank that `operand` keeps. Groups
        stand in the order of their first rank, ranks in ascending order.

        Raises:
            TypeError: `op` is none of RgPartitionOp.
            NkiValidationError: `world_size` or `operand` is no integer or below 1 (for
                `bitwise_and`, an `operand` of 0 is fine: one group).
        """
        kind = member(RgPartitionOp, op, "op of ReplicaGroup.from_partition_op")
        world_size = _integer(world_size, "world_size of ReplicaGroup.from_partition_op", 1)
        least = 0 if kind is RgPartitionOp.bitwise_and else 1
        operand = _integer(operand, f"operand of ReplicaGroup.from_partition_op({op})", least)
        function = {
            RgPartitionOp.bitwise_and: operator.and_,
            RgPartitionOp.div: operator.floordiv,
            RgPartitionOp.mod: operator.mod,
        }[kind]
        groups: dict[int, list[int]] = {}
        for rank in range(world_size):
            groups.setdefault(function(rank, operand), []).append(rank)
        return cls(groups.values())

    def check(self, world_size: int) -> None:
        """Raise NkiValidationError if a rank does not exist among `world_size` ranks."""
        for group in self.groups:
            for rank in group:
                if rank >= world_size:
                    raise NkiValidationError(
                        f"replica_group names rank {rank} in {group}; this run has ranks 0 to "
                        f"{world_size - 1}"
                    )

    def group_of(self, rank: int, world_size: int) -> tuple[int, ...]:
        """The group that holds `rank`, in the order of its data.

        Raises:
            NkiValidationError: no group holds `rank`, or a rank does not exist.
        """
        self.check(world_size)
        if not 0 <= rank < world_size:
            raise NkiValidationError(f"rank is {rank}; this run has ranks 0 to {world_size - 1}")
        if not self.groups:
            return tuple(range(world_size))
        for group in self.groups:
            if rank in group:
                return group
        raise NkiValidationError(
            f"rank {rank} calls a collective whose replica_group is {self.groups}; it must be in "
            "one of the groups"
        )


def _items(groups: Any) -> Iterable[Any]:
    if isinstance(groups, str | bytes) or not isinstance(groups, Iterable):
        raise NkiValidationError(
            f"groups of ReplicaGroup is {groups!r}; it must be a list or tuple of rank lists"
        )
    return groups


def _ranks(index: int, group: Any) -> tuple[int, ...]:
    if isinstance(group, str | bytes) or not isinstance(group, Iterable):
        raise NkiValidationError(
            f"groups[{index}] of ReplicaGroup is {group!r}; it must be a list or tuple of ranks, "
            "as in ReplicaGroup([[0, 1], [2, 3]])"
        )
    ranks = tuple(_integer(rank, f"a rank in groups[{index}] of ReplicaGroup", 0) for rank in group)
    if not ranks:
        raise NkiValidationError(f"groups[{index}] of ReplicaGroup is empty; it must hold a rank")
    return ranks


def _integer(value: Any, argument: str, least: int) -> int:
    """`value` as an int; booleans are none."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise NkiValidationError(f"{argument} is {value!r}; it must be an integer")
    if number < least:
        raise NkiValidationError(f"{argument} is {number}; it must be at least {least}")
    return number
