"""Which ranks work together along which axis: the groups of a whole run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from wantrn.parallel.degrees import Axis, Degrees
from wantrn.parallel.ranks import CP, Coordinates, Partition, partition


@dataclass(frozen=True)
class Layout:
    """All groups of all ranks.

    Each axis has the ranks 0 to ``world - 1`` in groups of one size, in an order that matters: a
    rank's place in its group is its position along the axis.

    Attributes:
        tp, ulysses, ring, cfg, dp: the groups along each axis.
        cp: the groups that share a sequence, in the order of its tokens: the place of a rank in it
            is ``ring * ULYSSES + ulysses``.

    Raises:
        ValueError: the partitions do not belong together, naming the first that does not fit.
    """

    tp: Partition
    ulysses: Partition
    ring: Partition
    cfg: Partition
    dp: Partition
    cp: Partition

    def __post_init__(self) -> None:
        names = [axis.value for axis in Axis]
        places = {name: _places(name, getattr(self, name), self.world) for name in [*names, "cp"]}
        size = math.prod(len(getattr(self, name)[0]) for name in names)
        if size != self.world:
            raise ValueError(f"the axes make {size} ranks together, the world has {self.world}")
        for name in names:
            others = [places[other] for other in names if other != name]
            _check_lines(name, getattr(self, name), others)
        _check_lines("cp", self.cp, [places[name] for name in ("tp", "cfg", "dp")])
        width = len(self.ulysses[0])
        for rank, place in places["cp"].items():
            wanted = places["ring"][rank] * width + places["ulysses"][rank]
            if place != wanted:
                raise ValueError(f"cp must have rank {rank} at place {wanted}, got {place}")

    @classmethod
    def arithmetic(cls, degrees: Degrees) -> Layout:
        """Ranks counted with TP fastest, then Ulysses, ring, CFG and DP; see ``ranks``."""
        along = {axis.value: partition(degrees, (axis,)) for axis in Axis}
        return cls(**along, cp=partition(degrees, CP))

    def moved(self, order: Sequence[int]) -> Layout:
        """The same groups with rank ``order[r]`` in the place of rank ``r``.

        Raises:
            ValueError: ``order`` does not have each rank once.
        """
        if sorted(order) != list(range(self.world)):
            raise ValueError(f"order must have the ranks 0 to {self.world - 1} once, got {order}")
        names = [field.name for field in fields(self)]
        return Layout(**{name: _moved(getattr(self, name), order) for name in names})

    @property
    def world(self) -> int:
        """The number of ranks."""
        return sum(len(group) for group in self.tp)

    @property
    def video(self) -> Partition:
        """The groups that make a video together: all ranks at one position of ``dp``."""
        return tuple(sorted(tuple(sorted(ranks)) for ranks in zip(*self.dp, strict=True)))

    def coordinates_of(self, rank: int) -> Coordinates:
        """Where ``rank`` stands.

        Raises:
            ValueError: the world has no such rank.
        """
        at = {axis.value: place_in(getattr(self, axis.value), rank)[1] for axis in Axis}
        return Coordinates(**at)


def place_in(groups: Partition, rank: int) -> tuple[tuple[int, ...], int]:
    """The group that ``rank`` is in, and its position in it.

    Raises:
        ValueError: no group has such a rank.
    """
    for group in groups:
        if rank in group:
            return group, group.index(rank)
    world = sum(len(group) for group in groups)
    raise ValueError(f"rank must be 0 to {world - 1}, got {rank}")


def _moved(groups: Partition, order: Sequence[int]) -> Partition:
    moved = (tuple(order[rank] for rank in group) for group in groups)
    return tuple(sorted(moved, key=min))


def _places(name: str, groups: Partition, world: int) -> dict[int, int]:
    """The position of each rank."""
    places = {rank: place for group in groups for place, rank in enumerate(group)}
    if sorted(rank for group in groups for rank in group) != list(range(world)):
        raise ValueError(f"{name} must have each of the ranks 0 to {world - 1} once, got {groups}")
    if len({len(group) for group in groups}) != 1:
        raise ValueError(f"{name} must have groups of one size, got {groups}")
    return places


def _check_lines(name: str, groups: Partition, others: list[dict[int, int]]) -> None:
    """The ranks of a group differ along their own axis only."""
    for group in groups:
        if any(len({places[rank] for rank in group}) > 1 for places in others):
            raise ValueError(f"{name} has ranks in {group} that differ along another axis")
