"""Chips linked in a torus, and which ranks can work together along the links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Torus:
    """Chips in rows and columns, each linked to its four neighbours; the edges wrap around.

    Chips are counted along the rows. Rank ``r`` is on chip ``r // cores``.

    Attributes:
        rows, columns: of chips.
        cores: ranks on a chip.
    """

    rows: int
    columns: int
    cores: int

    @property
    def world(self) -> int:
        """The number of ranks that have a core."""
        return self.rows * self.columns * self.cores

    def chip_of(self, rank: int) -> int:
        """The chip that ``rank`` is on.

        Raises:
            ValueError: no chip has such a rank.
        """
        if not 0 <= rank < self.world:
            raise ValueError(f"rank must be 0 to {self.world - 1}, got {rank}")
        return rank // self.cores

    def ring_flaw(self, ranks: Sequence[int]) -> str | None:
        """Why a collective of ``ranks`` cannot go round a ring of links, or None if it can.

        It can if their chips are one, two neighbours, a full row or column, or a rectangle that a
        closed walk visits chip by chip, and if each chip gives the same cores. Elsewhere a Trn2
        refuses the collective, or data lands in a wrong place.

        Raises:
            ValueError: a rank that no chip has, or that is given twice.
        """
        if len(set(ranks)) != len(ranks) or not ranks:
            raise ValueError(f"ranks must be different ones, at least one, got {list(ranks)}")
        cores: dict[int, list[int]] = {}
        for rank in sorted(ranks):
            cores.setdefault(self.chip_of(rank), []).append(rank % self.cores)
        chips = list(cores)
        if not self._is_ring(chips):
            return f"the chips {_listed(chips)} are no ring of links"
        first = cores[chips[0]]
        for chip in chips:
            if cores[chip] != first:
                return (
                    f"chip {chips[0]} gives the cores {_listed(first)}, "
                    f"chip {chip} the cores {_listed(cores[chip])}"
                )
        return None

    def _is_ring(self, chips: list[int]) -> bool:
        rows = {chip // self.columns for chip in chips}
        columns = {chip % self.columns for chip in chips}
        if len(chips) != len(rows) * len(columns):
            return False  # not a rectangle
        if not (_neighbours(rows, self.rows) and _neighbours(columns, self.columns)):
            return False
        if len(rows) == 1:
            return len(columns) in (1, 2, self.columns)
        if len(columns) == 1:
            return len(rows) in (2, self.rows)
        # neighbours have different colours, as on a chessboard: a closed walk needs as many of each
        return len(chips) % 2 == 0


def _neighbours(lines: set[int], count: int) -> bool:
    """Whether ``lines`` out of ``count`` that go round are next to each other."""
    gaps = sum((line + 1) % count not in lines for line in lines)
    return gaps <= 1


def _listed(numbers: list[int]) -> str:
    return ", ".join(str(number) for number in numbers)
