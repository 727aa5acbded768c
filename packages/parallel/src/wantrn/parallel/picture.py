"""A layout as text: which ranks work on which heads and tokens, where, and with whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from wantrn.parallel import shares
from wantrn.parallel.degrees import Axis, Degrees
from wantrn.parallel.layout import Layout
from wantrn.parallel.picture_chips import draw_chips
from wantrn.parallel.picture_ranks import list_ranks
from wantrn.parallel.ranks import CP, Coordinates
from wantrn.parallel.text import aligned, span
from wantrn.parallel.torus import Torus

_WIDEST = 16
"""Ranks side by side in a grid."""


@dataclass(frozen=True)
class Picture:
    """What to show of a run; ``str`` gives the text.

    Attributes:
        degrees, layout: of the run; they belong together.
        heads: of the model, to show which of them a rank has.
        tokens: of a sequence, likewise.
        torus: the chips, to show which one a rank is on.

    Raises:
        ValueError: the degrees do not divide ``heads``, ``tokens`` is below 1, ``layout`` has not
            the ranks of ``degrees``, or ``torus`` has not enough.
    """

    degrees: Degrees
    layout: Layout
    heads: int | None = None
    tokens: int | None = None
    torus: Torus | None = None

    def __post_init__(self) -> None:
        world = self.degrees.world
        if self.layout.world != world:
            raise ValueError(f"layout must have {world} ranks, got {self.layout.world}")
        if self.torus is not None and self.torus.world < world:
            raise ValueError(f"torus must have {world} ranks or more, got {self.torus.world}")
        if self.heads is not None:
            shares.check_heads(self.degrees, self.heads)
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"tokens must be at least 1, got {self.tokens}")

    def __str__(self) -> str:
        parts = ["\n".join(self._title()), *self._grids()]
        if self.torus is not None:
            parts.append(draw_chips(self.degrees, self.layout, self.torus))
        parts.append(list_ranks(self.degrees, self.layout, self.heads, self.tokens, self.torus))
        return "\n\n".join(parts) + "\n"

    def _title(self) -> Iterator[str]:
        degrees, world = self.degrees, self.degrees.world
        axes = [f"{axis} {getattr(degrees, axis)}" for axis in self._split(*Axis)]
        ranks = "1 rank" if world == 1 else f"{world} ranks"
        yield f"{' x '.join(axes)} = {ranks}, in brackets" if axes else f"{ranks}, in brackets"
        if degrees.sequence_sharding:
            yield "sequence sharding: ranks of tp share norms and residuals by tokens"
        if self.heads is not None:
            yield f"{self.heads} heads in {degrees.tp} x {self.heads // degrees.tp}"
        if self.tokens is not None:
            first = shares.tokens_of(Coordinates(0, 0, 0, 0, 0), degrees, self.tokens)
            length = len(first.real) + first.padding
            padding = length * degrees.cp - self.tokens
            end = f", {padding} of padding at the end" if padding else ""
            yield f"{self.tokens} tokens in {degrees.cp} x {length}{end}"

    def _grids(self) -> Iterator[str]:
        """Of the ranks that work on one guidance of one video: heads across, tokens down."""
        degrees = self.degrees
        ranks = {self.layout.coordinates_of(rank): rank for rank in range(degrees.world)}
        for dp, cfg in product(range(degrees.dp), range(degrees.cfg)):
            columns = [Coordinates(tp, 0, 0, cfg, dp) for tp in range(degrees.tp)]
            for start in range(0, degrees.tp, _WIDEST):
                yield self._grid(ranks, columns[start : start + _WIDEST])

    def _grid(self, ranks: dict[Coordinates, int], columns: list[Coordinates]) -> str:
        degrees, first = self.degrees, columns[0]
        name = self._position(first, Axis.DP, Axis.CFG)
        rows = [[name, "", *(self._position(at, Axis.TP) for at in columns)]]
        if self.heads is not None:
            heads = [span(shares.heads_of(at, degrees, self.heads)) for at in columns]
            rows.append(["", "heads", *heads])
        for ring, ulysses in product(range(degrees.ring), range(degrees.ulysses)):
            cells = [Coordinates(at.tp, ulysses, ring, at.cfg, at.dp) for at in columns]
            tokens = ""
            if self.tokens is not None:
                tokens = f"tokens {shares.tokens_of(cells[0], degrees, self.tokens)}"
            line = [self._position(cells[0], *reversed(CP)), tokens]
            rows.append([*line, *(f"[{ranks[at]}]" for at in cells)])
        return aligned([row for row in rows if any(row)])

    def _position(self, at: Coordinates, *axes: Axis) -> str:
        return " ".join(f"{axis} {getattr(at, axis)}" for axis in self._split(*axes))

    def _split(self, *axes: Axis) -> list[str]:
        """Those axes that have more than one rank."""
        return [axis.value for axis in axes if self.degrees.of(axis) > 1]
