"""The groups of every rank of a world, built and adopted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from processes import Ranks

from wantrn.parallel import Degrees, Group, Groups
from wantrn.parallel.layout import Layout

WORLD = 4
AXES = ("dp", "cfg", "ring", "ulysses", "tp")
NAMES = (*AXES, "cp", "video", "world")
DEGREES = [
    Degrees(tp, ring, ulysses, cfg, dp)
    for tp, ring, ulysses, cfg, dp in product((1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2), (1, 2, 4))
    if tp * ring * ulysses * cfg * dp == WORLD
]
ORDER = (2, 0, 3, 1)


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with Ranks(WORLD) as ranks:
        yield ranks


def lines(degrees: Degrees, axes: tuple[str, ...]) -> list[list[int]]:
    """The ranks along ``axes``, the last the fastest, from an array with one axis for each."""
    shape = [getattr(degrees, axis) for axis in AXES]
    ranks = np.arange(WORLD).reshape(shape)
    last = [AXES.index(axis) for axis in axes]
    ranks = np.moveaxis(ranks, last, list(range(len(AXES) - len(last), len(AXES))))
    size = int(np.prod([shape[axis] for axis in last]))
    found: list[list[int]] = ranks.reshape(-1, size).tolist()
    return found


def wanted(degrees: Degrees, name: str) -> list[list[int]]:
    several = {"cp": ("ring", "ulysses"), "video": AXES[1:], "world": AXES}
    return lines(degrees, several.get(name, (name,)))


def described(groups: Groups) -> dict[str, tuple[list[int], int, list[list[int]]]]:
    """Each group's ranks, as they are met in a gather, this rank's position, and the partition."""
    told = {}
    for name in NAMES:
        group: Group = getattr(groups, name)
        met = [int(rank) for rank in group.gather(torch.tensor(groups.rank))]
        assert (group.process_group is None) == (group.size == 1)
        told[name] = (met, group.position, [list(ranks) for ranks in group.partition])
    return told


def built(cases: list[Degrees], layout: Layout | None = None) -> list[Any]:
    told = []
    for degrees in cases:
        groups = Groups.build(degrees, layout)
        assert groups.rank == dist.get_rank() and groups.degrees == degrees
        told.append(described(groups))
        groups.close()
        dist.barrier()
    return told


def test_the_groups_of_all_degrees(four: Ranks) -> None:
    assert len(DEGREES) == 14
    for rank, answers in enumerate(four.run(built, DEGREES)):
        for degrees, told in zip(DEGREES, answers, strict=True):
            for name in NAMES:
                partition = wanted(degrees, name)
                mine = next(ranks for ranks in partition if rank in ranks)
                assert told[name] == (mine, mine.index(rank), partition), (degrees, name)


def test_ranks_that_stand_elsewhere(four: Ranks) -> None:
    degrees = Degrees(tp=2, ring=2)
    answers = four.run(built, [degrees], Layout.arithmetic(degrees).moved(ORDER))
    for place, rank in enumerate(ORDER):
        told = answers[rank][0]
        assert told["tp"][:2] == ([ORDER[place // 2 * 2], ORDER[place // 2 * 2 + 1]], place % 2)
        assert told["cp"][:2] == ([ORDER[place % 2], ORDER[place % 2 + 2]], place // 2)
        assert told["world"][:2] == ([0, 1, 2, 3], rank)


def shared() -> tuple[int, bool, bool, bool]:
    """What a world makes no more than once, and how long it is there."""
    groups = Groups.build(Degrees(tp=2, ulysses=2))
    one = groups.cp.process_group is groups.ulysses.process_group
    whole = Groups.build(Degrees(ulysses=4))
    default = whole.cp.process_group is whole.world.process_group is dist.group.WORLD
    assert whole.built == () and groups.built != ()
    groups.close()
    try:
        dist.get_process_group_ranks(groups.built[0])
    except Exception:
        gone = True
    else:
        gone = False
    whole.close()
    dist.all_reduce(torch.ones(1))
    return len(groups.built), one, default, gone


def test_process_groups_are_shared_and_closed(four: Ranks) -> None:
    assert four.run(shared) == [(2, True, True, True)] * WORLD


def host(degrees: Degrees, *names: str) -> dict[str, Any]:
    """Process groups as another program makes them, one for each axis."""
    mine = {}
    for name in names:
        for ranks in wanted(degrees, name):
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                mine[name] = group
    return mine


def adopted(degrees: Degrees, given: tuple[str, ...], extra: tuple[str, ...]) -> Any:
    theirs = host(degrees, *given)
    groups = Groups.adopt(degrees, **theirs)
    for name in (*given, *extra):
        group: Group = getattr(groups, name)
        assert group.size == 1 or group.process_group in theirs.values()
    told = described(groups)
    groups.close()
    for process_group in theirs.values():
        dist.all_reduce(torch.ones(1), group=process_group)
        dist.destroy_process_group(process_group)
    return told


@pytest.mark.parametrize(
    ("degrees", "given", "extra"),
    [
        (Degrees(tp=2, ring=2), ("tp", "ring"), ("cp",)),
        (Degrees(tp=2, ulysses=2), ("tp", "cp"), ("ulysses",)),
        (Degrees(ring=2, cfg=2), ("tp", "cp", "ring", "ulysses", "cfg"), ()),
        (Degrees(ring=2, ulysses=2), ("ring", "ulysses"), ()),
        (Degrees(cfg=2, dp=2), ("cfg", "dp"), ("video",)),
        (Degrees(ring=2, dp=2), ("ring", "dp", "video"), ()),
        (Degrees(tp=4), ("tp",), ()),
        (Degrees(tp=4), (), ()),
    ],
)
def test_adopted_groups_are_those_of_the_host(
    four: Ranks, degrees: Degrees, given: tuple[str, ...], extra: tuple[str, ...]
) -> None:
    for rank, told in enumerate(four.run(adopted, degrees, given, extra)):
        for name in NAMES:
            partition = wanted(degrees, name)
            mine = next(ranks for ranks in partition if rank in ranks)
            assert told[name] == (mine, mine.index(rank), partition)


def adopted_elsewhere() -> list[int]:
    """Ranks in another order are taken where the layout says so."""
    degrees = Degrees(tp=2, cfg=2)
    layout = Layout.arithmetic(degrees).moved(ORDER)
    theirs: dict[str, Any] = {}
    for name in ("tp", "cfg"):
        for ranks in getattr(layout, name):
            group = dist.new_group(list(ranks))
            if dist.get_rank() in ranks:
                theirs[name] = group
    with pytest.raises(ValueError, match="tp must be the process group of"):
        Groups.adopt(degrees, **theirs)
    groups = Groups.adopt(degrees, layout, **theirs)
    return [int(rank) for rank in groups.tp.gather(torch.tensor(dist.get_rank()))]


def test_adopted_groups_of_another_order(four: Ranks) -> None:
    assert four.run(adopted_elsewhere) == [[2, 0], [3, 1], [2, 0], [3, 1]]


def refused() -> list[str]:
    degrees = Degrees(tp=2, ring=2)
    theirs = host(degrees, "tp", "ring")
    swapped = {"tp": theirs["ring"], "ring": theirs["tp"]}
    others = dist.new_group([0])
    told = []
    attempts: list[Callable[[], Groups]] = [
        lambda: Groups.build(Degrees(tp=2)),
        lambda: Groups.build(degrees, Layout.arithmetic(Degrees(tp=4))),
        lambda: Groups.adopt(Degrees(tp=8), **theirs),
        lambda: Groups.adopt(degrees, tp=theirs["tp"]),
        lambda: Groups.adopt(degrees, **swapped),
        lambda: Groups.adopt(degrees, **theirs, cfg=theirs["tp"]),
        lambda: Groups.adopt(degrees, tp=others, ring=theirs["ring"]),
    ]
    for attempt in attempts:
        try:
            attempt()
        except ValueError as error:
            told.append(str(error))
        else:
            told.append("taken")
    return told


def test_what_does_not_fit_is_refused(four: Ranks) -> None:
    told = four.run(refused)[1]
    assert told[:6] == [
        "degrees are of 2 ranks, torch.distributed's default group has 4",
        "layout has 4 ranks along tp, the degrees 2",
        "degrees are of 8 ranks, torch.distributed's default group has 4",
        "ring must be the process group of (1, 3), got none",
        "tp must be the process group of (0, 1), got that of [1, 3]",
        "cfg must be the process group of (1,), got that of [0, 1]",
    ]
    assert told[6].startswith("tp must be a process group that this rank is in, got ")


def test_a_world_that_nobody_made() -> None:
    for make in (Groups.build, Groups.adopt):
        with pytest.raises(RuntimeError, match="no default group"):
            make(Degrees(tp=2))


def test_a_world_of_one_needs_no_torch_distributed() -> None:
    groups = Groups.single()
    assert groups.degrees == Degrees() and groups.rank == 0
    assert all(getattr(groups, name).ranks == (0,) for name in NAMES)
    groups.close()
