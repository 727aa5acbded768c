"""When a step takes over what most blocks of the transformer have added in an earlier one."""

from __future__ import annotations

import math
from dataclasses import dataclass

DEFAULT_THRESHOLD = 0.15

MAX_THRESHOLD = 1.0
"""At which what is reused may be another thing altogether."""


@dataclass(frozen=True)
class StepCache:
    """How willing a run is to reuse.

    From step to step the first block's residual (what it adds to its input) is compared with that
    of the step before: ``e = sum |r - r'| / sum |r'|``, over all tokens, fp32; of the branches of
    guidance, the larger one counts. While the sum of ``e`` since the last step in full is at most
    ``threshold``, the blocks after the first are not run.

    Attributes:
        threshold: above 0, up to ``MAX_THRESHOLD``.
        most_reused: steps in a row that reuse, at most.
        drift_limit: of ``sum |R - R'| / sum |R|``, where ``R`` is what the other blocks add in a
            step in full that follows one that reused, and ``R'`` what reusing once more would have
            added. An expert whose drift was above it reuses no more in that run.
        guard: whether there are these two limits, and a last step in full. Without them it can be
            seen what they are for.

    Raises:
        ValueError: a number out of its range.
    """

    threshold: float = DEFAULT_THRESHOLD
    most_reused: int = 2
    drift_limit: float = 0.5
    guard: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= MAX_THRESHOLD:
            raise ValueError(
                f"threshold must be above 0 and at most {MAX_THRESHOLD:g}, got {self.threshold}"
            )
        if self.most_reused < 1:
            raise ValueError(f"most_reused must be at least 1, got {self.most_reused}")
        if not (math.isfinite(self.drift_limit) and self.drift_limit > 0):
            raise ValueError(f"drift_limit must be above 0, got {self.drift_limit}")
