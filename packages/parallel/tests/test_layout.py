"""A layout: the groups of the arithmetic order, moved to other ranks, and what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grids import all_degrees
from hypothesis import given
from hypothesis import strategies as st

from wantrn.parallel import Axis, Degrees
from wantrn.parallel.layout import Layout, place_in
from wantrn.parallel.ranks import CP, Partition, coordinates_of, partition

KNOWN = Layout.arithmetic(Degrees(tp=2, ring=2, ulysses=2, cfg=2))
SMALL = list(all_degrees(16))


def test_the_arithmetic_order_has_its_partitions() -> None:
    for degrees in all_degrees(16):
        layout = Layout.arithmetic(degrees)
        assert layout.world == degrees.world
        assert layout.cp == partition(degrees, CP)
        for axis in Axis:
            assert getattr(layout, axis.value) == partition(degrees, (axis,))
        for rank in range(degrees.world):
            assert layout.coordinates_of(rank) == coordinates_of(rank, degrees)


@given(st.data())
def test_a_moved_layout_has_other_ranks_in_the_same_places(data: st.DataObject) -> None:
    degrees = data.draw(st.sampled_from(SMALL))
    order = data.draw(st.permutations(range(degrees.world)))
    layout = Layout.arithmetic(degrees)
    moved = layout.moved(order)
    for rank in range(degrees.world):
        assert moved.coordinates_of(order[rank]) == layout.coordinates_of(rank)
    for axis in ("tp", "ulysses", "ring", "cfg", "dp", "cp"):
        groups = getattr(moved, axis)
        firsts = [min(group) for group in groups]
        assert firsts == sorted(firsts)
        for group in getattr(layout, axis):
            assert tuple(order[rank] for rank in group) in groups


def test_an_order_without_each_rank_once_is_refused() -> None:
    layout = Layout.arithmetic(Degrees(tp=3))
    for order in ([0, 1], [0, 1, 1], [1, 2, 3]):
        with pytest.raises(ValueError, match="^order must have the ranks 0 to 2 once, got"):
            layout.moved(order)


def test_a_rank_is_found_in_its_group() -> None:
    assert place_in(KNOWN.tp, 5) == ((4, 5), 1)
    with pytest.raises(ValueError, match="^rank must be 0 to 15, got 16$"):
        place_in(KNOWN.tp, 16)
    with pytest.raises(ValueError, match="^rank must be 0 to 15, got 16$"):
        KNOWN.coordinates_of(16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ring": KNOWN.ring[1:]}, "ring must have each of the ranks 0 to 15 once"),
        ({"cfg": (*KNOWN.cfg[1:], KNOWN.cfg[1])}, "cfg must have each of the ranks 0 to 15 once"),
        ({"dp": ((0, 1), *KNOWN.dp[2:])}, "dp must have groups of one size"),
        ({"cfg": KNOWN.dp}, "the axes make 8 ranks together, the world has 16"),
        ({"tp": KNOWN.cfg}, r"tp has ranks in \(0, 8\) that differ along another axis"),
        ({"cp": KNOWN.tp}, r"cp has ranks in \(0, 1\) that differ along another axis"),
        (
            {"cp": tuple((one, three, two, four) for one, two, three, four in KNOWN.cp)},
            "cp must have rank 4 at place 2, got 1",
        ),
        (
            {"ring": tuple(group[::-1] if group[0] else group for group in KNOWN.ring)},
            "differ along another axis",
        ),
    ],
)
def test_groups_that_do_not_belong_together_are_refused(
    changes: dict[str, Partition], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(KNOWN, **changes)


def test_ranks_that_make_a_video_together_have_one_place_along_dp() -> None:
    assert Layout.arithmetic(Degrees(tp=2, ulysses=2)).video == ((0, 1, 2, 3),)
    eight = Layout.arithmetic(Degrees(tp=2, ring=2, dp=2))
    assert eight.video == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert eight.moved((3, 7, 1, 0, 2, 4, 5, 6)).video == ((0, 1, 3, 7), (2, 4, 5, 6))
