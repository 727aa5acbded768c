"""What is known of a job only while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A running job.

    Attributes:
        step: the number of denoising steps done.
        steps: the number of all.
        step_seconds: of the last step; None before the first.
        decoding: the steps are done.
        reused: of the steps done, those that were made by a step cache.
        preview: a PNG picture of what the video is like by now; None before the first.
    """

    steps: int
    step: int = 0
    step_seconds: float | None = None
    decoding: bool = False
    reused: int = 0
    preview: bytes | None = None

    @property
    def percent(self) -> int:
        """0 to 99: the share of the steps that are done. 100 is a video that can be fetched."""
        return min(99, 100 * self.step // self.steps)
