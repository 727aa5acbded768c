"""A line for each rank: where it stands, with whom it works, and what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wantrn.parallel import shares
from wantrn.parallel.degrees import Axis, Degrees
from wantrn.parallel.layout import Layout, place_in
from wantrn.parallel.ranks import Coordinates, Partition
from wantrn.parallel.text import aligned, brief, span
from wantrn.parallel.torus import Torus

Column = tuple[str, Callable[[int, Coordinates], str]]
"""Its name, and what it says of a rank at its coordinates."""


def list_ranks(
    degrees: Degrees, layout: Layout, heads: int | None, tokens: int | None, torus: Torus | None
) -> str:
    """The ranks of ``layout``, with all that is given; axes of one rank are left out."""
    columns: list[Column] = [("rank", lambda rank, at: str(rank))]
    if torus is not None:
        columns.append(("chip", lambda rank, at: str(torus.chip_of(rank))))
    columns += _axes(degrees, layout)
    if heads is not None:
        columns += _heads(degrees, heads)
    if tokens is not None:
        columns += _tokens(degrees, tokens)
    rows = [[name for name, _ in columns]]
    for rank in range(layout.world):
        at = layout.coordinates_of(rank)
        rows.append([entry(rank, at) for _, entry in columns])
    table = aligned(rows)
    return f"0-8/4 is 0, 4, 8\n\n{table}" if "/" in table else table


def _axes(degrees: Degrees, layout: Layout) -> Iterator[Column]:
    split = [axis.value for axis in Axis if degrees.of(axis) > 1]
    yield from map(_position, split)
    if degrees.ring > 1 and degrees.ulysses > 1:
        split.append("cp")
    for name in split:
        yield _group(name, getattr(layout, name))


def _position(axis: str) -> Column:
    return axis, lambda rank, at: str(getattr(at, axis))


def _group(axis: str, groups: Partition) -> Column:
    return f"{axis} group", lambda rank, at: brief(place_in(groups, rank)[0])


def _heads(degrees: Degrees, heads: int) -> Iterator[Column]:
    yield "heads", lambda rank, at: span(shares.heads_of(at, degrees, heads))
    if degrees.ulysses > 1:
        yield (
            "attention heads",
            lambda rank, at: span(shares.attention_heads_of(at, degrees, heads)),
        )


def _tokens(degrees: Degrees, tokens: int) -> Iterator[Column]:
    yield "tokens", lambda rank, at: str(shares.tokens_of(at, degrees, tokens))
    if degrees.ulysses > 1:
        yield (
            "attention tokens",
            lambda rank, at: str(shares.attention_tokens_of(at, degrees, tokens)),
        )
    if degrees.sequence_sharding:
        yield "norm tokens", lambda rank, at: str(shares.norm_tokens_of(at, degrees, tokens))
