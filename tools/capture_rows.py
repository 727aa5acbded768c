"""A comparison of captures by module: the branches of guidance together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wantrn.model.capture import Comparison, Measurement, Trend, TrendRules

AS_REFERENCE = "as the reference"


@dataclass(frozen=True)
class ModuleRow:
    """The worst of a module, of all steps and branches.

    Attributes:
        module: its name.
        relative: the target's RMS error over the exact tensor.
        step: that it is of.
        rms_ratio, largest_ratio: the target's error over the reference's; None without one.
        overlap: the least; None without a reference.
        trend: "stable", or what it is in which expert and branch, and whether the reference's is
            too.
    """

    module: str
    relative: float
    step: int
    rms_ratio: float | None
    largest_ratio: float | None
    overlap: float | None
    trend: str


def module_rows(comparison: Comparison, rules: TrendRules) -> list[ModuleRow]:
    """In the order of computation."""
    trends = _trends(comparison, rules)
    rows = []
    for module, measurements in by_module(comparison).items():
        worst = max(measurements, key=lambda one: one.target.relative)
        rows.append(
            ModuleRow(
                module,
                worst.target.relative,
                worst.step.index,
                _most(measurements, lambda one: one.rms_ratio, max),
                _most(measurements, lambda one: one.largest_ratio, max),
                _most(measurements, lambda one: one.overlap, min),
                ", ".join(trends[module]) or Trend.STABLE.value,
            )
        )
    return rows


def by_module(comparison: Comparison) -> dict[str, list[Measurement]]:
    """All measurements, by module, in the order of computation."""
    found: dict[str, list[Measurement]] = {}
    for one in comparison.measurements:
        found.setdefault(one.point.module, []).append(one)
    return {module: found[module] for module in comparison.exact.modules}


def _most(
    measurements: Sequence[Measurement],
    value: Callable[[Measurement], float | None],
    choose: Callable[[list[float]], float],
) -> float | None:
    values = [found for one in measurements if (found := value(one)) is not None]
    return choose(values) if values else None


def _trends(comparison: Comparison, rules: TrendRules) -> dict[str, list[str]]:
    """What is not stable of each module, in words; experts are told apart where there are two."""
    experts = {step.expert for step in comparison.exact.steps}
    found: dict[str, list[str]] = {module: [] for module in comparison.exact.modules}
    for series in comparison.series():
        trend = series.trend(rules)
        if trend is Trend.STABLE:
            continue
        where = series.point.branch.value
        if len(experts) > 1:
            where += f", expert {series.expert}"
        same = f"{AS_REFERENCE} " if trend is series.reference_trend(rules) else ""
        found[series.point.module].append(f"{trend.value} {same}({where})")
    return found
