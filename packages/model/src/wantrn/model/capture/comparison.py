"""Captures beside the exact one, point by point."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from wantrn.model.capture.description import Description, StepFacts, first_difference
from wantrn.model.capture.errors import CaptureError
from wantrn.model.capture.folder import Capture, StepFile, in_order
from wantrn.model.capture.metrics import Error, overlap, ratio
from wantrn.model.capture.points import Point
from wantrn.model.capture.trend import Trend, TrendRules, classify


@dataclass(frozen=True)
class Measurement:
    """One tensor of the target against the exact one, beside the reference's.

    Attributes:
        step: of the run.
        point: module and branch.
        target: its error.
        reference: the reference's error; None where there is no reference, as ``overlap``.
        overlap: of the histograms of both errors, see ``metrics.overlap``; 0 where the target is
            not finite.
    """

    step: StepFacts
    point: Point
    target: Error
    reference: Error | None = None
    overlap: float | None = None

    @property
    def largest_ratio(self) -> float | None:
        """The target's largest error over the reference's."""
        if self.reference is None:
            return None
        return ratio(self.target.largest, self.reference.largest)

    @property
    def rms_ratio(self) -> float | None:
        """The target's RMS error over the reference's."""
        return None if self.reference is None else ratio(self.target.rms, self.reference.rms)


@dataclass(frozen=True)
class Series:
    """One point over the steps of one expert."""

    expert: int
    point: Point
    measurements: tuple[Measurement, ...]

    def trend(self, rules: TrendRules | None = None) -> Trend:
        """Of the target's relative RMS error."""
        return classify([one.target.relative for one in self.measurements], rules)

    def reference_trend(self, rules: TrendRules | None = None) -> Trend | None:
        """Of the reference's; None without one."""
        errors = [one.reference.relative for one in self.measurements if one.reference is not None]
        return classify(errors, rules) if errors else None


@dataclass(frozen=True)
class Comparison:
    """All points of two or three captures.

    Attributes:
        exact, target, reference: what the captures are of.
        measurements: step by step, each in the order of computation: what is wrong first stands
            before what it makes wrong.
    """

    exact: Description
    target: Description
    reference: Description | None
    measurements: tuple[Measurement, ...]

    @property
    def same_inputs(self) -> bool:
        """Whether every step had the exact run's latents; else each run had its own, and what one
        step does wrong the next one starts with."""
        return self.target.inputs_of is not None

    def series(self) -> tuple[Series, ...]:
        """The points, for each expert apart: its modules are others."""
        found: dict[tuple[int, Point], list[Measurement]] = {}
        for one in self.measurements:
            found.setdefault((one.step.expert, one.point), []).append(one)
        return tuple(Series(*key, tuple(values)) for key, values in found.items())


def compare(exact: Capture, target: Capture, reference: Capture | None = None) -> Comparison:
    """Measure ``target`` against ``exact``, and ``reference`` too.

    Files are read step by step, three tensors at a time.

    Args:
        exact: a capture in fp32, say, with inputs of its own.
        target: what is to be judged.
        reference: of a run whose errors are known to be right, such as torch's in bf16.

    Raises:
        CaptureError: captures of different settings, steps or modules; inputs of their own in the
            one and the exact run's in the other; a tensor of another shape, or one of ``exact`` or
            ``reference`` that is not finite.
    """
    others = (target,) if reference is None else (target, reference)
    for other in others:
        _check_same(exact, other)
    if len({other.description.inputs_of for other in others}) > 1:
        raise CaptureError(
            f"{target.folder} and {others[-1].folder}: one has taken the inputs of "
            f"{exact.folder}, the other its own"
        )
    measurements = tuple(_measurements(exact, others))
    return Comparison(
        exact.description,
        target.description,
        None if reference is None else reference.description,
        measurements,
    )


def _check_same(exact: Capture, other: Capture) -> None:
    """Raise ``CaptureError`` unless both are of the same points of the same run."""
    one, two = exact.description, other.description
    where = f"{exact.folder} and {other.folder}"
    if one.inputs_of is not None:
        raise CaptureError(f"{exact.folder}: has itself taken the inputs of another capture")
    if two.inputs_of not in (None, one.id):
        raise CaptureError(f"{other.folder}: has taken the inputs of another than {exact.folder}")
    difference = first_difference(one.settings, two.settings)
    if difference is not None:
        raise CaptureError(f"{where}: other settings: {difference}")
    for name in ("steps", "modules", "every_token"):
        if getattr(one, name) != getattr(two, name):
            raise CaptureError(f"{where}: not the same {name}")


def _measurements(exact: Capture, others: Sequence[Capture]) -> Iterator[Measurement]:
    for step in exact.description.steps:
        with ExitStack() as stack:
            files = [stack.enter_context(one.step(step)) for one in (exact, *others)]
            for point in in_order(files[0].points(), exact.description):
                yield _measured(step, point, files)


def _measured(step: StepFacts, point: Point, files: Sequence[StepFile]) -> Measurement:
    exact, *others = (file.read(point).float() for file in files)
    differences = []
    for file, other in zip(files[1:], others, strict=True):
        if other.shape != exact.shape:
            raise CaptureError(
                f"{file.path}: {point} is {list(other.shape)}, and {list(exact.shape)} in "
                f"{files[0].path}"
            )
        differences.append(other - exact)
    # the target alone may be wrong in every way
    for file, tensor in zip((files[0], *files[2:]), (exact, *differences[1:]), strict=True):
        if not _finite(tensor):
            raise CaptureError(f"{file.path}: {point} is not finite")
    target, *references = (Error.of(difference, exact) for difference in differences)
    if not references:
        return Measurement(step, point, target)
    alike = overlap(*differences) if _finite(differences[0]) else 0.0
    return Measurement(step, point, target, references[0], alike)


def _finite(x: Tensor) -> bool:
    return bool(torch.isfinite(x).all())
