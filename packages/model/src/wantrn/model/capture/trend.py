"""How an error goes on over the steps."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


class Trend(enum.Enum):
    STABLE = "stable"
    SPIKE = "spike"
    """A step stands out."""
    ACCUMULATING = "accumulating"
    """It grows from step to step."""


@dataclass(frozen=True)
class TrendRules:
    """From when on a trend is called so.

    Attributes:
        spike: the largest error over the median.
        growth: the last error over the first.
        growing: the share of the steps, after the first, whose error is above the one before.

    Raises:
        ValueError: ``spike`` or ``growth`` below 1, ``growing`` not in 0..1.
    """

    spike: float = 3.0
    growth: float = 2.0
    growing: float = 0.7

    def __post_init__(self) -> None:
        for name in ("spike", "growth"):
            if not getattr(self, name) >= 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.growing <= 1:
            raise ValueError(f"growing must be 0 to 1, got {self.growing}")


def classify(errors: Sequence[float], rules: TrendRules | None = None) -> Trend:
    """The trend of ``errors``, one for each step, in order.

    ``ACCUMULATING`` if the last is more than ``growth`` times the first and at least ``growing`` of
    them are above the one before; else ``SPIKE`` if one is more than ``spike`` times the median;
    else ``STABLE``. An error that doubles with every step is so no spike, although its last is far
    above the median.

    Raises:
        ValueError: no errors, or one that is negative or no number.
    """
    if not errors or any(math.isnan(error) or error < 0 for error in errors):
        raise ValueError(f"errors must be numbers from 0 up, at least one, got {list(errors)}")
    rules = TrendRules() if rules is None else rules
    steps = list(pairwise(errors))
    growing = sum(after > before for before, after in steps)
    if errors[-1] > rules.growth * errors[0] and growing >= rules.growing * len(steps):
        return Trend.ACCUMULATING
    if max(errors) > rules.spike * statistics.median(errors):
        return Trend.SPIKE
    return Trend.STABLE
