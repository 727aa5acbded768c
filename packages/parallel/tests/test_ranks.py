"""The order of ranks, in every world of up to 128 ranks.

The tests state where a rank stands with NumPy's own order of array elements, slowest axis first.
"""

from __future__ import annotations

import math
from itertools import chain, combinations, permutations

import numpy as np
import pytest
from grids import all_degrees

from wantrn.parallel import Axis, Degrees
from wantrn.parallel.ranks import CP, Coordinates, Partition, coordinates_of, partition, rank_at

SLOWEST_FIRST = (Axis.DP, Axis.CFG, Axis.RING, Axis.ULYSSES, Axis.TP)


def world_of(degrees: Degrees) -> np.ndarray:
    """All ranks, as an array with an axis for each of ``SLOWEST_FIRST``."""
    shape = [degrees.of(axis) for axis in SLOWEST_FIRST]
    return np.arange(degrees.world).reshape(shape)


def groups_along(world: np.ndarray, axes: tuple[Axis, ...]) -> Partition:
    """The groups of ``axes``, the first fastest, cut out of the array."""
    numbers = [SLOWEST_FIRST.index(axis) for axis in reversed(axes)]
    others = [number for number in range(5) if number not in numbers]
    size = math.prod(world.shape[number] for number in numbers)
    return tuple(map(tuple, world.transpose(*others, *numbers).reshape(-1, size).tolist()))


def test_groups_are_slices_of_the_world() -> None:
    for degrees in all_degrees(128):
        world = world_of(degrees)
        for axes in [(Axis.TP,), (Axis.ULYSSES,), (Axis.RING,), (Axis.CFG,), (Axis.DP,), CP]:
            assert partition(degrees, axes) == groups_along(world, axes), (degrees, axes)


def test_the_groups_of_a_rank_meet_in_it_alone() -> None:
    """No two ranks are together along two axes, so the groups of a rank share none but itself."""
    for degrees in all_degrees(128):
        groups = [partition(degrees, axes) for axes in ((Axis.TP,), CP, (Axis.CFG,), (Axis.DP,))]
        assert math.prod(len(along[0]) for along in groups) == degrees.world
        for one, other in combinations(map(labels, groups), 2):
            assert len(set(zip(one, other, strict=True))) == degrees.world, degrees


def labels(groups: Partition) -> list[int]:
    """The number of each rank's group."""
    found = {rank: number for number, group in enumerate(groups) for rank in group}
    return [found[rank] for rank in sorted(found)]


def test_two_axes_have_each_rank_once() -> None:
    """Said without a word about order, for the axes that a run has."""
    for degrees in all_degrees(128):
        everyone = list(range(degrees.world))
        for axes in combinations([axis for axis in Axis if degrees.of(axis) > 1], 2):
            groups = partition(degrees, axes)
            assert sorted(chain.from_iterable(groups)) == everyone, (degrees, axes)
            size = degrees.of(axes[0]) * degrees.of(axes[1])
            assert {len(group) for group in groups} == {size}, (degrees, axes)


def test_groups_over_several_axes_are_slices_of_the_world() -> None:
    """Every choice of axes, in every order; which axis comes first decides the order in a group."""
    for degrees in all_degrees(8):
        world = world_of(degrees)
        for count in range(6):
            for axes in permutations(Axis, count):
                assert partition(degrees, axes) == groups_along(world, axes), (degrees, axes)


def test_coordinates_are_those_of_the_world() -> None:
    for degrees in all_degrees(32):
        world = world_of(degrees)
        for at, rank in np.ndenumerate(world):
            dp, cfg, ring, ulysses, tp = at
            place = Coordinates(tp=tp, ulysses=ulysses, ring=ring, cfg=cfg, dp=dp)
            assert coordinates_of(int(rank), degrees) == place
            assert rank_at(place, degrees) == rank


def test_the_order_of_a_sequence_has_ulysses_contiguous() -> None:
    for degrees in all_degrees(32):
        for group in partition(degrees, CP):
            for position, rank in enumerate(group):
                at = coordinates_of(rank, degrees)
                assert position == at.ring * degrees.ulysses + at.ulysses, (degrees, rank)


def test_tp_groups_are_neighbours() -> None:
    assert partition(Degrees(tp=4, ring=8), (Axis.TP,)) == tuple(
        (start, start + 1, start + 2, start + 3) for start in range(0, 32, 4)
    )


def test_groups_of_the_known_case() -> None:
    """tp 4, cp 4, cfg 2."""
    degrees = Degrees(tp=4, ring=4, cfg=2)
    assert partition(degrees, CP) == (
        (0, 4, 8, 12),
        (1, 5, 9, 13),
        (2, 6, 10, 14),
        (3, 7, 11, 15),
        (16, 20, 24, 28),
        (17, 21, 25, 29),
        (18, 22, 26, 30),
        (19, 23, 27, 31),
    )
    assert partition(degrees, (Axis.CFG,)) == tuple((rank, rank + 16) for rank in range(16))


def test_groups_as_vllm_omni_makes_them() -> None:
    """tp 2, ring 2, cfg 2; and with Ulysses, whose ranks are contiguous within a sequence."""
    degrees = Degrees(tp=2, ring=2, cfg=2)
    assert partition(degrees, (Axis.TP,)) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert partition(degrees, CP) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert partition(degrees, (Axis.CFG,)) == ((0, 4), (1, 5), (2, 6), (3, 7))
    degrees = Degrees(ring=2, ulysses=2)
    assert partition(degrees, (Axis.ULYSSES,)) == ((0, 1), (2, 3))
    assert partition(degrees, (Axis.RING,)) == ((0, 2), (1, 3))


def test_impossible_ranks_and_axes_are_refused() -> None:
    degrees = Degrees(tp=2, ring=3)
    for rank in (-1, 6):
        with pytest.raises(ValueError, match=f"^rank must be 0 to 5, got {rank}$"):
            coordinates_of(rank, degrees)
    for axis, most in (("tp", 1), ("ring", 2), ("ulysses", 0), ("cfg", 0), ("dp", 0)):
        at = {"tp": 0, "ring": 0, "ulysses": 0, "cfg": 0, "dp": 0}
        for position in (-1, most + 1):
            with pytest.raises(ValueError, match=f"^{axis} must be 0 to {most}, got {position}$"):
                rank_at(Coordinates(**{**at, axis: position}), degrees)
    with pytest.raises(ValueError, match=r"^axes must be different ones, got \['tp', 'tp'\]$"):
        partition(degrees, (Axis.TP, Axis.TP))
