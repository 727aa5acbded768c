"""All groups of a rank, made once and handed down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from wantrn.parallel.degrees import Axis, Degrees
from wantrn.parallel.group import Group
from wantrn.parallel.layout import Layout, place_in
from wantrn.parallel.ranks import Partition
from wantrn.parallel.world import COLLECTIVE_TIMEOUT

_NAMES = (*(axis.value for axis in Axis), "cp", "video")


@dataclass(frozen=True)
class Groups:
    """The groups of one rank.

    Attributes:
        degrees: of the run.
        rank: this rank, in the world.
        tp, ulysses, ring, cfg, dp: along each axis.
        cp: the ranks that share this rank's sequence, in the order of its tokens.
        video: the ranks that make this rank's video.
        world: all ranks.
        built: the process groups that ``close`` destroys.
    """

    degrees: Degrees
    rank: int
    tp: Group
    ulysses: Group
    ring: Group
    cfg: Group
    dp: Group
    cp: Group
    video: Group
    world: Group
    built: tuple[dist.ProcessGroup, ...] = ()

    @classmethod
    def single(cls) -> Groups:
        """A world of one rank, without ``torch.distributed``."""
        one = Group.single()
        return cls(Degrees(), 0, one, one, one, one, one, one, one, one)

    @classmethod
    def build(
        cls,
        degrees: Degrees,
        layout: Layout | None = None,
        *,
        timeout: timedelta = COLLECTIVE_TIMEOUT,
    ) -> Groups:
        """Make the process groups; all ranks of torch.distributed's default group call it together.

        Axes with the same ranks in their groups share process groups, a group of all ranks is the
        default one, and an axis of one rank has none.

        Args:
            degrees: of the run; together the ranks of the default group.
            layout: where ranks stand; by default ``Layout.arithmetic(degrees)``.
            timeout: how long a collective of the new groups waits for the other ranks.

        Raises:
            RuntimeError: there is no default group.
            ValueError: degrees, layout and the default group are of different worlds.
        """
        layout = _checked(degrees, layout)
        rank = dist.get_rank()
        made: dict[frozenset[int], dist.ProcessGroup] = {}
        for name in _NAMES:
            for ranks in getattr(layout, name):
                members = frozenset(ranks)
                if 1 < len(members) < degrees.world and members not in made:
                    made[members] = dist.new_group(
                        sorted(members), timeout=timeout, group_desc=f"wantrn {name}"
                    )
        known = made | _default(degrees)
        placed = _placed(layout, rank, known, {})
        built = tuple(group for members, group in made.items() if rank in members)
        return cls(degrees, rank, **placed, built=built)

    @classmethod
    def adopt(
        cls,
        degrees: Degrees,
        layout: Layout | None = None,
        *,
        tp: dist.ProcessGroup | None = None,
        ulysses: dist.ProcessGroup | None = None,
        ring: dist.ProcessGroup | None = None,
        cp: dist.ProcessGroup | None = None,
        cfg: dist.ProcessGroup | None = None,
        dp: dist.ProcessGroup | None = None,
        video: dist.ProcessGroup | None = None,
    ) -> Groups:
        """Use the process groups of a program that has made its own, such as a serving engine.

        Nothing is sent: every rank checks its own groups against the layout, which must be the one
        that the program used. ``close`` leaves the process groups alone.

        Args:
            degrees: of the run; together the ranks of the default group.
            layout: where ranks stand; by default ``Layout.arithmetic(degrees)``, which is
                vLLM-Omni's.
            tp, ulysses, ring, cp, cfg, dp, video: this rank's process groups. What may be left out:
                one of one rank or of all ranks, and one with the ranks of another that is given, as
                ``cp`` where Ulysses or the ring alone makes it up, or ``video`` where ``dp`` is 1.

        Raises:
            RuntimeError: there is no default group.
            ValueError: a process group that is missing or has other ranks, or degrees, layout and
                the default group of different worlds.
        """
        layout = _checked(degrees, layout)
        given = {
            **{"tp": tp, "ulysses": ulysses, "ring": ring, "cp": cp, "cfg": cfg, "dp": dp},
            "video": video,
        }
        rank = dist.get_rank()
        ranks = {name: place_in(getattr(layout, name), rank)[0] for name in _NAMES}
        known = _default(degrees)
        for name, group in given.items():
            if group is not None:
                _check_ranks(name, group, ranks[name])
                known[frozenset(ranks[name])] = group
        for name in _NAMES:
            if len(ranks[name]) > 1 and frozenset(ranks[name]) not in known:
                raise ValueError(f"{name} must be the process group of {ranks[name]}, got none")
        own = {name: group for name, group in given.items() if group is not None}
        return cls(degrees, rank, **_placed(layout, rank, known, own), built=())

    def close(self) -> None:
        """Destroy the process groups that ``build`` made, once, on all ranks.

        Where the default group is destroyed already, they are too, and there is nothing to do.
        """
        if dist.is_initialized():
            for group in self.built:
                dist.destroy_process_group(group)


def _checked(degrees: Degrees, layout: Layout | None) -> Layout:
    """The layout, which fits the degrees, which fit the default group."""
    if not dist.is_initialized():
        raise RuntimeError("torch.distributed has no default group; see launch.join_world")
    size = dist.get_world_size()
    if size != degrees.world:
        raise ValueError(
            f"degrees are of {degrees.world} ranks, torch.distributed's default group has {size}"
        )
    if layout is None:
        return Layout.arithmetic(degrees)
    for axis in Axis:
        along = len(getattr(layout, axis.value)[0])
        if along != degrees.of(axis):
            raise ValueError(
                f"layout has {along} ranks along {axis.value}, the degrees {degrees.of(axis)}"
            )
    return layout


def _default(degrees: Degrees) -> dict[frozenset[int], dist.ProcessGroup]:
    """The process group of all ranks, by its members."""
    whole = dist.group.WORLD
    assert whole is not None
    return {frozenset(range(degrees.world)): whole}


def _check_ranks(name: str, group: dist.ProcessGroup, wanted: tuple[int, ...]) -> None:
    # torch gives a rank that is not in a group something else in its place
    if not isinstance(group, dist.ProcessGroup):
        raise ValueError(f"{name} must be a process group that this rank is in, got {group!r}")
    ranks = dist.get_process_group_ranks(group)
    if sorted(ranks) != sorted(wanted):
        raise ValueError(f"{name} must be the process group of {wanted}, got that of {ranks}")


def _placed(
    layout: Layout,
    rank: int,
    known: Mapping[frozenset[int], dist.ProcessGroup],
    own: Mapping[str, dist.ProcessGroup],
) -> dict[str, Group]:
    """The groups of ``rank`` by name, the world's too.

    Their process groups are those in ``own`` by name, else those in ``known`` by members.
    """
    partitions: dict[str, Partition] = {name: getattr(layout, name) for name in _NAMES}
    partitions["world"] = (tuple(range(layout.world)),)
    placed = {}
    for name, groups in partitions.items():
        ranks, position = place_in(groups, rank)
        process_group = own.get(name, known.get(frozenset(ranks))) if len(ranks) > 1 else None
        placed[name] = Group(ranks, position, groups, process_group)
    return placed
