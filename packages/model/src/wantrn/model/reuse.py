"""Which steps of an expert reuse what earlier ones have computed: the decision, without tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from wantrn.model.step_cache import StepCache


@dataclass(frozen=True)
class Reuse:
    """The steps of one expert in one run, as far as they matter for the next. It never changes.

    For each step: ``heard`` what is known by now, which is of the step before; then
    ``next_reuses``; then ``made``.

    Attributes:
        full, reused: how many steps were made in either way.
        in_a_row: steps that have reused since the last in full.
        changed: the sum of measured changes since then.
        rate: the last measured change, for each unit of noise level; None if there is none.
        drift: the largest of the expert.
        stopped: the drift was above its limit.
    """

    cache: StepCache
    full: int = 0
    reused: int = 0
    in_a_row: int = 0
    changed: float = 0.0
    rate: float | None = None
    drift: float = 0.0
    stopped: bool = False

    def heard(self, change: float | None, distance: float, drift: float | None) -> Reuse:
        """With what is known of the step before.

        Args:
            change: ``e`` of that step; None if it was the expert's first.
            distance: by how much its noise level differed from that of the one before it.
            drift: of the last step in full that followed one that reused, told once; else None.
        """
        found = self
        if change is not None:
            measured = self.changed + change if self.in_a_row else 0.0
            rate = change / distance if distance > 0 else float("inf")
            found = replace(found, changed=measured, rate=rate)
        if drift is not None:
            over = self.cache.guard and not drift <= self.cache.drift_limit
            found = replace(found, drift=max(drift, found.drift), stopped=found.stopped or over)
        return found

    def next_reuses(self, distance: float, last: bool) -> bool:
        """Whether the next step, at a noise level ``distance`` from here, reuses. Its change is not
        known yet: it is taken to be in proportion to the distance, as the one before was.

        ``last`` is the last step of the run.
        """
        if self.rate is None or self.stopped:
            return False
        if self.cache.guard and (last or self.in_a_row >= self.cache.most_reused):
            return False
        # false if anything is no number
        return self.changed + self.rate * distance <= self.cache.threshold

    def made(self, reused: bool) -> Reuse:
        """After a step in either way."""
        if reused:
            return replace(self, reused=self.reused + 1, in_a_row=self.in_a_row + 1)
        return replace(self, full=self.full + 1, in_a_row=0, changed=0.0)
