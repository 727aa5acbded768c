"""How far a tensor is from the exact one, and how alike two errors are."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_OCTAVE = 4  # bins
_LEAST, _MOST = -8, 4  # octaves, about the common RMS
_CHUNK = 2**22  # elements in double precision at a time


@dataclass(frozen=True)
class Error:
    """Of a tensor against the exact one; all three infinite where it is not finite.

    Attributes:
        largest: L-inf, the largest absolute difference.
        rms: the root mean square of the differences.
        relative: ``rms`` over the root mean square of the exact tensor.
    """

    largest: float
    rms: float
    relative: float

    @classmethod
    def of(cls, difference: Tensor, exact: Tensor) -> Error:
        """From ``difference`` and ``exact``, of one shape; ``exact`` is finite."""
        largest = float(difference.abs().max())
        if not math.isfinite(largest):
            return cls(math.inf, math.inf, math.inf)
        size = rms(difference)
        return cls(largest, size, ratio(size, rms(exact)) if size else 0.0)


def rms(x: Tensor) -> float:
    """The root mean square, summed in double precision."""
    total = float(torch.linalg.vector_norm(x, dtype=torch.float64))
    return total / math.sqrt(x.numel())


def ratio(one: float, other: float) -> float:
    """``one / other``; 1 where both are 0, infinite where ``other`` alone is."""
    if one == other:
        return 1.0
    return one / other if other else math.inf


def overlap(one: Tensor, other: Tensor) -> float:
    """The Bhattacharyya coefficient of the histograms of two errors: 1 the same, 0 nothing alike.

    ``sum over bins of sqrt(p * q)``, ``p`` and ``q`` being the shares of each error's elements in a
    bin. The bins are of signed size in octaves about the common ``r``, the root of the mean of both
    mean squares: on each side of zero four to the octave from ``r / 256`` to ``16 r``, and one
    beyond; and one in the middle. So the coefficient does not depend on the unit, and neither on an
    outlier that would push all else into one bin of a linear scale; two normal distributions whose
    sizes differ by ``s`` have ``sqrt(2 s / (1 + s^2))``: 0.96 at 1.5, 0.89 at 2, 0.77 at 3.

    Raises:
        ValueError: another number of elements, none, or one that is not finite.
    """
    if one.numel() != other.numel() or not one.numel():
        raise ValueError(f"errors must be equally many, got {one.numel()} and {other.numel()}")
    common = math.hypot(rms(one), rms(other)) / math.sqrt(2)
    if not math.isfinite(common):
        raise ValueError("errors must be finite")
    if not common:
        return 1.0
    edges = common * bin_edges()
    p, q = _histogram(one, edges), _histogram(other, edges)
    return min(1.0, float((p * q).sqrt().sum()) / one.numel())


def bin_edges() -> Tensor:
    """Between the bins of ``overlap``, in units of the common size, rising; fp64."""
    octaves = torch.arange(_LEAST * _OCTAVE, _MOST * _OCTAVE + 1, dtype=torch.float64) / _OCTAVE
    sizes = torch.exp2(octaves)
    return torch.cat([-sizes.flip(0), sizes])


def _histogram(x: Tensor, edges: Tensor) -> Tensor:
    """Elements in each bin, fp64."""
    counts = torch.zeros(len(edges) + 1, dtype=torch.float64)
    flat = x.flatten()
    for start in range(0, len(flat), _CHUNK):
        bins = torch.bucketize(flat[start : start + _CHUNK].double(), edges)
        counts += torch.bincount(bins, minlength=len(counts))
    return counts
