"""Where a rank stands among all ranks, and with which ranks it forms groups.

Ranks are counted with TP fastest, then Ulysses, ring, CFG and DP::

    rank = tp + TP * (ulysses + ULYSSES * (ring + RING * (cfg + CFG * dp)))

so the ranks of a TP group are neighbours, and the position among the ranks that share a sequence,
``cp = ring * ULYSSES + ulysses``, has Ulysses contiguous, as vLLM-Omni has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from wantrn.parallel.degrees import Axis, Degrees

Partition = tuple[tuple[int, ...], ...]
"""All ranks, in groups; each rank in one. What kernels take as replica groups."""

CP = (Axis.ULYSSES, Axis.RING)
"""The axes over which tokens are shared, the faster first."""


@dataclass(frozen=True)
class Coordinates:
    """A rank's position along each axis, from 0."""

    tp: int
    ulysses: int
    ring: int
    cfg: int
    dp: int


def coordinates_of(rank: int, degrees: Degrees) -> Coordinates:
    """Where ``rank`` stands.

    Raises:
        ValueError: the world has no such rank.
    """
    if not 0 <= rank < degrees.world:
        raise ValueError(f"rank must be 0 to {degrees.world - 1}, got {rank}")
    found = {}
    for axis in Axis:
        rank, found[axis.value] = divmod(rank, degrees.of(axis))
    return Coordinates(**found)


def rank_at(at: Coordinates, degrees: Degrees) -> int:
    """The rank at these coordinates; the inverse of ``coordinates_of``.

    Raises:
        ValueError: a coordinate beyond its axis, by name.
    """
    rank = 0
    for axis in reversed(Axis):
        degree, position = degrees.of(axis), getattr(at, axis.value)
        if not 0 <= position < degree:
            raise ValueError(f"{axis.value} must be 0 to {degree - 1}, got {position}")
        rank = rank * degree + position
    return rank


def partition(degrees: Degrees, axes: tuple[Axis, ...]) -> Partition:
    """The groups of ranks that differ along ``axes`` only, the first of ``axes`` fastest in each.

    ``partition(degrees, CP)`` has the groups that share a sequence, in the order of its tokens.
    Groups are in the order of their first ranks.

    Raises:
        ValueError: an axis that is given twice.
    """
    if len(set(axes)) < len(axes):
        raise ValueError(f"axes must be different ones, got {[axis.value for axis in axes]}")
    others = tuple(axis for axis in Axis if axis not in axes)
    inner = _offsets(degrees, axes)
    return tuple(
        tuple(start + offset for offset in inner) for start in sorted(_offsets(degrees, others))
    )


def _offsets(degrees: Degrees, axes: tuple[Axis, ...]) -> list[int]:
    """What the positions along ``axes`` add to a rank, for all of them, the first axis fastest."""
    strides, stride = {}, 1
    for axis in Axis:
        strides[axis] = stride
        stride *= degrees.of(axis)
    offsets = [0]
    for axis in axes:
        steps = range(0, degrees.of(axis) * strides[axis], strides[axis])
        offsets = [step + offset for step in steps for offset in offsets]
    return offsets
