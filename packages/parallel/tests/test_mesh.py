"""Layouts of a Trn2 instance: known ones, and that every group is a ring of links."""

from __future__ import annotations

from itertools import product

import pytest
from grids import all_degrees

from wantrn.parallel import Degrees
from wantrn.parallel.layout import Layout
from wantrn.parallel.mesh import TRN2, trn2_layout

COMMUNICATING = ("tp", "ulysses", "ring", "cp", "cfg")

# 8 rows of two linked chips each; a column is one core of each of 8 chips
COLUMN = (0, 4, 16, 20, 32, 36, 48, 52)
OTHER_HALF = (12, 8, 28, 24, 44, 40, 60, 56)
ROWS = [
    tuple(start + core for start in starts for core in range(4))
    for starts in zip(COLUMN, OTHER_HALF, strict=True)
]
COLUMNS = sorted(
    tuple(rank + core for rank in half) for half in (COLUMN, OTHER_HALF) for core in range(4)
)


def flaws(layout: Layout) -> list[str | None]:
    return [TRN2.ring_flaw(group) for axis in COMMUNICATING for group in getattr(layout, axis)]


def test_the_columns_share_a_sequence_and_rows_are_cut_for_tp_and_cfg() -> None:
    layout = trn2_layout(Degrees(tp=4, ring=8, cfg=2))
    assert sorted(layout.cp) == COLUMNS
    assert layout.cp == layout.ring
    assert layout.tp == tuple((r, r + 1, r + 2, r + 3) for r in range(0, 64, 4))
    pairs = zip(COLUMN, OTHER_HALF, strict=True)
    assert sorted(layout.cfg) == sorted((r + core, s + core) for r, s in pairs for core in range(4))


@pytest.mark.parametrize("ulysses", [1, 2])
def test_rows_are_whole_groups_of_tp(ulysses: int) -> None:
    layout = trn2_layout(Degrees(tp=8, ring=8 // ulysses, ulysses=ulysses))
    assert sorted(layout.cp) == COLUMNS
    assert sorted(layout.tp) == sorted(ROWS)


def test_columns_are_cut_for_guidance_and_the_sequence() -> None:
    layout = trn2_layout(Degrees(tp=8, ring=4, cfg=2))
    assert sorted(layout.tp) == sorted(ROWS)
    columns = [(column[::2], column[1::2]) for column in COLUMNS]
    assert sorted(layout.cp) == sorted(half for halves in columns for half in halves)
    assert sorted(layout.cfg) == sorted(
        pair for even, odd in columns for pair in zip(even, odd, strict=True)
    )


@pytest.mark.parametrize(
    ("degrees", "rows"),
    [
        (Degrees(tp=8, ring=4), 4),
        (Degrees(tp=8, ring=2), 2),
        (Degrees(tp=8, ring=6), 6),
        (Degrees(tp=8, ring=2, cfg=2), 4),
        (Degrees(tp=8, cfg=2), 2),
        (Degrees(tp=8, ring=2, dp=2), 4),
    ],
)
def test_fewer_ranks_have_the_first_rows(degrees: Degrees, rows: int) -> None:
    layout = trn2_layout(degrees)
    assert sorted(layout.tp) == sorted(ROWS[:rows])
    assert layout.world == 8 * rows
    assert set(flaws(layout)) == {None}


def test_degrees_that_are_powers_of_two_have_a_layout_of_rings() -> None:
    powers = [2**power for power in range(7)]
    seen = 0
    for tp, ring, ulysses, cfg, dp in product(powers, powers, powers, (1, 2), powers):
        if tp * ring * ulysses * cfg * dp <= 64:
            degrees = Degrees(tp=tp, ring=ring, ulysses=ulysses, cfg=cfg, dp=dp)
            layout = trn2_layout(degrees)
            assert set(flaws(layout)) == {None}, degrees
            sizes = [len(getattr(layout, axis)[0]) for axis in (*COMMUNICATING, "dp")]
            assert sizes == [tp, ulysses, ring, ring * ulysses, cfg, dp]
            assert layout.world == degrees.world
            seen += 1
    assert seen == 336


def test_counted_ranks_are_kept_where_they_are_rings() -> None:
    """The mesh is for a run of more ranks; and nothing is refused that would work as it is."""
    for degrees in all_degrees(16):
        counted = Layout.arithmetic(degrees)
        rings = set(flaws(counted)) == {None}
        try:
            layout = trn2_layout(degrees)
        except ValueError:
            assert not rings, degrees
            continue
        assert set(flaws(layout)) == {None}, degrees
        if rings and degrees.tp != 8:
            assert layout == counted, degrees


def test_what_no_layout_supports_is_refused_with_the_group() -> None:
    with pytest.raises(
        ValueError,
        match=r"^a Trn2 instance has no layout for these degrees: ring would have the ranks "
        r"\[0, 4, 8\], but the chips 0, 1, 2 are no ring of links$",
    ):
        trn2_layout(Degrees(tp=4, ring=3))
    with pytest.raises(ValueError, match=r"tp would have the ranks \[3, 4, 5\], but chip 0 gives"):
        trn2_layout(Degrees(tp=3, ring=2))
    # counted, the two branches of guidance would be two chips apart
    with pytest.raises(ValueError, match="cfg would have the ranks"):
        trn2_layout(Degrees(tp=4, ring=2, cfg=2, dp=3))


def test_more_ranks_than_an_instance_has_are_refused() -> None:
    with pytest.raises(ValueError, match="has 64 ranks, the degrees make 128$"):
        trn2_layout(Degrees(tp=8, ring=8, cfg=2))
