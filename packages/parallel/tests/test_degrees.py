"""Degrees: what makes a world, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from wantrn.parallel import Axis, Degrees


def test_the_world_is_the_product_of_all_degrees() -> None:
    degrees = Degrees(tp=2, ring=3, ulysses=5, cfg=2, dp=7)
    assert degrees.cp == 15
    assert degrees.world == 2 * 3 * 5 * 2 * 7
    assert [degrees.of(axis) for axis in Axis] == [2, 5, 3, 2, 7]
    assert Degrees().world == Degrees().cp == 1


@pytest.mark.parametrize("axis", ["tp", "ring", "ulysses", "cfg", "dp"])
@pytest.mark.parametrize("degree", [0, -1])
def test_a_degree_below_one_is_refused_by_name(axis: str, degree: int) -> None:
    with pytest.raises(ValueError, match=f"^{axis} must be at least 1, got {degree}$"):
        replace(Degrees(), **{axis: degree})  # type: ignore[arg-type]


def test_guidance_has_two_branches() -> None:
    with pytest.raises(ValueError, match="^cfg must be 1 or 2, .* got 3$"):
        Degrees(cfg=3)


def test_sequence_sharding_needs_ranks_to_shard_over() -> None:
    assert Degrees(tp=2, sequence_sharding=True).world == 2
    with pytest.raises(ValueError, match="^sequence_sharding needs tp of at least 2, got 1$"):
        Degrees(ring=4, sequence_sharding=True)


def test_heads_are_split_by_tp_then_by_ulysses() -> None:
    """Against trying it: a head for a head, none left and none missing."""
    for heads in range(1, 41):
        for tp in range(1, 9):
            for ulysses in range(1, 9):
                possible = heads % (tp * ulysses) == 0
                try:
                    Degrees(tp=tp, ulysses=ulysses).check_heads(heads)
                except ValueError as error:
                    assert not possible, error
                    assert re.match(
                        r"(tp|ulysses) must divide the \d+ heads.* got \d+$", str(error)
                    )
                else:
                    assert possible, (heads, tp, ulysses)


def test_what_does_not_divide_the_heads_is_named() -> None:
    with pytest.raises(ValueError, match="^tp must divide the 40 heads, got 3$"):
        Degrees(tp=3, ulysses=2).check_heads(40)
    with pytest.raises(
        ValueError, match="^ulysses must divide the 10 heads that a rank has with tp=4, got 4$"
    ):
        Degrees(tp=4, ulysses=4).check_heads(40)
    Degrees(tp=4, ring=7).check_heads(40)  # a ring takes any number of heads
