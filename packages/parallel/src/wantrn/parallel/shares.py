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
    """Of a sequence of ``total`` tokens, those whose queries, keys and values the rank makes: with
    ``sequence_sharding``, the tokens of all ranks of its group of ``tp``.

    Raises:
        ValueError: ``total`` is below 1.
    """
    return _runs(_place(at, degrees), 1, degrees, total)


def attention_tokens_of(at: Coordinates, degrees: Degrees, total: int) -> Tokens:
    """The tokens that the rank computes attention for: those of its Ulysses group.

    Raises:
        ValueError: ``total`` is below 1.
    """
    return _runs(at.ring * degrees.ulysses, degrees.ulysses, degrees, total)


def norm_tokens_of(at: Coordinates, degrees: Degrees, total: int) -> Tokens:
    """The tokens whose norms and residuals the rank computes: its own, or with
    ``sequence_sharding`` those that fall to its position in its group of ``tp``.

    Raises:
        ValueError: ``total`` is below 1.
    """
    sharers = degrees.token_sharers
    position = _place(at, degrees) * sharers + (at.tp if sharers > 1 else 0)
    return _parts(range(position, position + 1), degrees, total)


def _place(at: Coordinates, degrees: Degrees) -> int:
    """The position in ``cp``."""
    return at.ring * degrees.ulysses + at.ulysses


def _runs(first: int, count: int, degrees: Degrees, total: int) -> Tokens:
    """The tokens of positions in ``cp``, each of which is as many parts as ranks share it."""
    sharers = degrees.token_sharers
    return _parts(range(first * sharers, (first + count) * sharers), degrees, total)


def _parts(positions: range, degrees: Degrees, total: int) -> Tokens:
    """Neighbouring ones of the equal parts that a sequence is cut into."""
    count = degrees.cp * degrees.token_sharers
    parts = [TokenShards(total, count, position) for position in positions]
    start, real = parts[0].start, sum(part.real for part in parts)
    return Tokens(range(start, start + real), sum(part.length for part in parts) - real)
