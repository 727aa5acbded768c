"""Whether a comparison passes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from wantrn.model.capture.comparison import Comparison, Measurement, Series
from wantrn.model.capture.trend import Trend, TrendRules


@dataclass(frozen=True)
class Limits:
    """What a comparison must keep to. A limit of None is not looked at.

    Those beside a reference:

    Attributes:
        largest_ratio: the target's largest error is below this many of the reference's.
        overlap: the histograms of both errors overlap by more than this, where the target's error
            (RMS) is above the reference's: a smaller error may have another shape.
        same_trends: the target's error has the reference's trend, or is stable, in each module.

    And without one:

        relative: the target's error (RMS), over the exact tensor, is below this.
        rules: what is called a trend.

    Raises:
        ValueError: a limit that is no positive number, an ``overlap`` not in 0..1, or none at all.
    """

    largest_ratio: float | None = 3.0
    overlap: float | None = 0.9
    same_trends: bool = False
    relative: float | None = None
    rules: TrendRules = field(default_factory=TrendRules)

    def __post_init__(self) -> None:
        for name in ("largest_ratio", "relative"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a number above 0, got {value}")
        if self.overlap is not None and not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap must be 0 to 1, got {self.overlap}")
        if self.largest_ratio is self.overlap is self.relative is None and not self.same_trends:
            raise ValueError("one of largest_ratio, overlap, relative, same_trends must be given")


@dataclass(frozen=True)
class Failure:
    """A point that does not keep to the limits in one step, and why not."""

    measurement: Measurement
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        one = self.measurement
        return f"step {one.step.index}, {one.point}: {'; '.join(self.reasons)}"


@dataclass(frozen=True)
class Verdict:
    """What does not keep to the limits: in the order of computation, and over the steps."""

    failures: tuple[Failure, ...]
    trends: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not (self.failures or self.trends)

    @property
    def first(self) -> Failure | None:
        """The first module of the first step that fails: what comes after has its error too."""
        return self.failures[0] if self.failures else None


def judge(comparison: Comparison, limits: Limits | None = None) -> Verdict:
    """Hold a comparison against limits.

    Raises:
        ValueError: there is no reference, and so ``limits.relative`` must be given, or
            ``same_trends`` has nothing to go by.
    """
    limits = Limits() if limits is None else limits
    if comparison.reference is None:
        if limits.relative is None:
            raise ValueError("limits.relative must be given where there is no reference")
        if limits.same_trends:
            raise ValueError("limits.same_trends must be False where there is no reference")
    failures = tuple(
        Failure(one, reasons)
        for one in comparison.measurements
        if (reasons := _reasons(one, limits))
    )
    trends: tuple[str, ...] = ()
    if limits.same_trends:
        trends = tuple(
            text for one in comparison.series() if (text := _other_trend(one, limits.rules))
        )
    return Verdict(failures, trends)


def _reasons(one: Measurement, limits: Limits) -> tuple[str, ...]:
    """Comparisons are such that infinity fails."""
    found = []
    if limits.relative is not None and not one.target.relative < limits.relative:
        found.append(f"relative error {one.target.relative:.3g}, not below {limits.relative:g}")
    largest, rms = one.largest_ratio, one.rms_ratio
    if largest is not None and rms is not None and one.overlap is not None:
        if limits.largest_ratio is not None and not largest < limits.largest_ratio:
            found.append(
                f"largest error {largest:.3g} times the reference's, not below "
                f"{limits.largest_ratio:g}"
            )
        if limits.overlap is not None and rms > 1 and not one.overlap > limits.overlap:
            found.append(
                f"errors overlap by {one.overlap:.3f}, not above {limits.overlap:g} "
                f"(RMS {rms:.3g} times the reference's)"
            )
    return tuple(found)


def _other_trend(series: Series, rules: TrendRules) -> str | None:
    own, reference = series.trend(rules), series.reference_trend(rules)
    if own in (Trend.STABLE, reference) or reference is None:
        return None
    return f"{series.point} of expert {series.expert}: {own.value}, the reference {reference.value}"
