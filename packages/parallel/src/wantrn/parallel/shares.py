"""Which heads and tokens a rank has."""

from __future__ import annotations

from dataclasses import dataclass

from wantrn.parallel.degrees import Degrees
from wantrn.parallel.ranks import Coordinates
from wantrn.parallel.text import span
from wantrn.parallel.tokens import TokenShards


@dataclass(frozen=True)
class Tokens:
    """Neighbouring tokens.

    Attributes:
        real: their numbers in the sequence.
        padding: how many follow that belong to no sequence.
    """

    real: range
    padding: int

    def __str__(self) -> str:
        return span(self.real) + (f" +{self.padding} padding" if self.padding else "")


def check_heads(degrees: Degrees, heads: int) -> None:
    """Raise ``ValueError`` unless a model with so many heads can be split this way."""
    if heads < 1:
        raise ValueError(f"heads must be at least 1, got {heads}")
    degrees.check_heads(heads)


def heads_of(at: Coordinates, degrees: Degrees, heads: int) -> range:
    """Of the ``heads`` of the model, those whose weights the rank at ``at`` has.

    Raises:
        ValueError: the degrees do not divide ``heads``.
    """
    check_heads(degrees, heads)
    count = heads // degrees.tp
    return range(at.tp * count, (at.tp + 1) * count)


def attention_heads_of(at: Coordinates, degrees: Degrees, heads: int) -> range:
    """The heads that the rank computes attention for: with Ulysses, a part of its own.

    Raises:
        ValueError: the degrees do not divide ``heads``.
    """
    own = heads_of(at, degrees, heads)
    count = len(own) // degrees.ulysses
    return own[at.ulysses * count : (at.ulysses + 1) * count]


def tokens_of(at: Coordinates, degrees: Degrees, total: int) -> Tokens:
    """Of a sequence of ``total`` tokens, those whose queries, keys and values the rank makes.

    Raises:
        ValueError: ``total`` is below 1.
    """
    part = TokenShards(total, degrees.cp, at.ring * degrees.ulysses + at.ulysses)
    return Tokens(range(part.start, part.start + part.real), part.length - part.real)


def attention_tokens_of(at: Coordinates, degrees: Degrees, total: int) -> Tokens:
    """The tokens that the rank computes attention for: those of its Ulysses group.

    Raises:
        ValueError: ``total`` is below 1.
    """
    first = at.ring * degrees.ulysses
    parts = [TokenShards(total, degrees.cp, first + ulysses) for ulysses in range(degrees.ulysses)]
    start, real = parts[0].start, sum(part.real for part in parts)
    return Tokens(range(start, start + real), sum(part.length for part in parts) - real)


def norm_tokens_of(at: Coordinates, degrees: Degrees, total: int) -> Tokens:
    """The tokens whose norms and residuals the rank computes: its own, or with
    ``sequence_sharding`` the part of them that falls to its position in its group of tp.

    Raises:
        ValueError: ``total`` is below 1.
    """
    own = tokens_of(at, degrees, total)
    parts, position = (degrees.tp, at.tp) if degrees.sequence_sharding else (1, 0)
    length = -(-(len(own.real) + own.padding) // parts)
    real = own.real[position * length : (position + 1) * length]
    return Tokens(real, length - len(real))
