"""Which chips of a torus are a ring, against a search for a closed walk over their links."""

from __future__ import annotations

from itertools import combinations

import pytest

from wantrn.parallel.mesh import TRN2
from wantrn.parallel.torus import Torus

CHIPS = range(16)


def linked(one: int, other: int) -> bool:
    """Whether two chips of a 4 x 4 torus are neighbours."""
    down, right = abs(one // 4 - other // 4), abs(one % 4 - other % 4)
    return sorted((min(down, 4 - down), min(right, 4 - right))) == [0, 1]


def closed_walk(chips: tuple[int, ...]) -> bool:
    """Whether links lead through all chips, once each, and back."""

    def onwards(walk: list[int]) -> bool:
        if len(walk) == len(chips):
            return linked(walk[-1], walk[0])
        return any(
            onwards([*walk, chip]) for chip in chips if chip not in walk and linked(walk[-1], chip)
        )

    return len(chips) == 1 or onwards([chips[0]])


def rectangles() -> set[tuple[int, ...]]:
    """Rows and columns next to each other, around the edge too."""
    return {
        tuple(
            sorted((row + i) % 4 * 4 + (column + j) % 4 for i in range(high) for j in range(wide))
        )
        for row in range(4)
        for column in range(4)
        for high in range(1, 5)
        for wide in range(1, 5)
    }


def test_a_ring_is_a_rectangle_with_a_closed_walk() -> None:
    """All choices of chips; links are walked both ways, so two neighbours are a ring."""
    rings = {chips for chips in rectangles() if closed_walk(chips)}
    found = set()
    for count in range(1, 17):
        for chips in combinations(CHIPS, count):
            if TRN2.ring_flaw([4 * chip for chip in chips]) is None:
                found.add(chips)
    assert found == rings


def test_there_are_rings_of_every_kind() -> None:
    for chips in ((5,), (0, 1), (0, 3), (1, 13), (4, 5, 6, 7), (2, 6, 10, 14), (0, 1, 4, 5)):
        assert TRN2.ring_flaw([4 * chip + 2 for chip in chips]) is None, chips
    assert TRN2.ring_flaw([0, 4, 16, 20, 32, 36, 48, 52]) is None
    assert TRN2.ring_flaw(range(64)) is None


@pytest.mark.parametrize(
    ("ranks", "flaw"),
    [
        ([0, 32], "the chips 0, 8 are no ring of links"),
        ([0, 20], "the chips 0, 5 are no ring of links"),
        ([0, 4, 8], "the chips 0, 1, 2 are no ring of links"),
        ([0, 4, 8, 16], "the chips 0, 1, 2, 4 are no ring of links"),
        ([4 * (4 * row + column) for row in range(3) for column in range(3)], "are no ring of"),
        ([0, 5], "chip 0 gives the cores 0, chip 1 the cores 1"),
        ([0, 1, 2, 3, 4, 5], "chip 0 gives the cores 0, 1, 2, 3, chip 1 the cores 0, 1"),
    ],
)
def test_what_is_no_ring_has_a_reason(ranks: list[int], flaw: str) -> None:
    found = TRN2.ring_flaw(ranks)
    assert found is not None and flaw in found


def test_the_cores_of_one_chip_need_no_link() -> None:
    for count in range(1, 5):
        for cores in combinations(range(4), count):
            assert TRN2.ring_flaw([20 + core for core in cores]) is None


def test_the_order_of_ranks_does_not_matter() -> None:
    assert TRN2.ring_flaw([52, 0, 20, 4, 36, 16, 48, 32]) is None
    assert TRN2.ring_flaw([32, 0]) == TRN2.ring_flaw([0, 32])


def test_a_torus_of_another_size() -> None:
    torus = Torus(rows=2, columns=3, cores=1)
    assert torus.world == 6
    assert torus.ring_flaw([0, 1, 2]) is None  # a full row
    assert torus.ring_flaw([0, 3]) is None
    assert torus.ring_flaw([0, 4]) is not None


def test_ranks_that_cannot_be_are_refused() -> None:
    for ranks in ([], [3, 3]):
        with pytest.raises(ValueError, match="^ranks must be different ones, at least one, got"):
            TRN2.ring_flaw(ranks)
    for rank in (-1, 64):
        with pytest.raises(ValueError, match=f"^rank must be 0 to 63, got {rank}$"):
            TRN2.ring_flaw([rank])
    assert [TRN2.chip_of(rank) for rank in (0, 3, 4, 63)] == [0, 0, 1, 15]
