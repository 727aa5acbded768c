"""`capture_steps.py compare`: a table, a verdict, and a picture."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path

from capture_rows import ModuleRow, module_rows

from wantrn.model.capture import Capture, Comparison, Limits, Verdict, compare, judge
from wantrn.model.errors import RequestError
from wantrn.serving.table import aligned


@dataclass(frozen=True)
class CompareOptions:
    """The command's arguments; None means that it was not given."""

    fp32: Path
    target: Path
    reference: Path | None = None
    picture: Path | None = None
    json: bool = False
    largest_ratio: float | None = None
    overlap: float | None = None
    same_trends: bool = False
    relative: float | None = None

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> CompareOptions:
        return cls(**{one.name: getattr(arguments, one.name) for one in fields(cls)})

    def limits(self) -> Limits:
        """Raises ``RequestError`` naming the option that has nothing to act on, or is missing."""
        if self.reference is None:
            for name in ("largest_ratio", "overlap", "same_trends"):
                if getattr(self, name):
                    raise RequestError(name, "needs --reference, beside which it is meant")
            if self.relative is None:
                raise RequestError("relative", "must be given without --reference")
        given = {
            name: value
            for name in ("largest_ratio", "overlap", "relative")
            if (value := getattr(self, name)) is not None
        }
        try:
            return Limits(**given, same_trends=self.same_trends)
        except ValueError as error:
            name, _, rest = str(error).partition(" ")
            raise RequestError(name, rest) from error


def compare_captures(options: CompareOptions) -> int:
    """Print the table and the verdict; 1 if the target fails, else 0.

    Raises ``RequestError`` or ``CaptureError``, by name.
    """
    limits = options.limits()
    _check_picture(options.picture)
    captures = [Capture.open(options.fp32), Capture.open(options.target)]
    if options.reference is not None:
        captures.append(Capture.open(options.reference))
    found = compare(*captures)
    verdict = judge(found, limits)
    rows = module_rows(found, limits.rules)
    print(aligned(_facts(options, found)), end="\n\n")
    print("\n".join(table(rows)), end="\n\n")
    if options.picture is not None:
        # matplotlib may be absent, and takes a second
        from capture_picture import draw

        draw(options.picture, found, verdict, limits)
    print("\n".join(_verdict(verdict)))
    if options.json:
        print(json.dumps(figures(rows, verdict)))
    return 0 if verdict.passed else 1


def _check_picture(picture: Path | None) -> None:
    if picture is None:
        return
    if picture.suffix != ".png" or not picture.parent.is_dir():
        raise RequestError("picture", f"{picture} must end in .png and be in a folder that exists")
    if find_spec("matplotlib") is None:
        raise RequestError("picture", "needs matplotlib, which is not installed")


def _facts(options: CompareOptions, found: Comparison) -> dict[str, object]:
    facts: dict[str, object] = {
        "fp32": f"{options.fp32}: {found.exact.model}, {found.exact.what()}",
        "target": f"{options.target}: {found.target.model}, {found.target.what()}",
    }
    if found.reference is not None:
        facts["reference"] = (
            f"{options.reference}: {found.reference.model}, {found.reference.what()}"
        )
    if found.same_inputs:
        facts["inputs"] = "the same in every step: those of fp32"
    else:
        facts["inputs"] = "each run's own: what a step does wrong, the next one starts with"
    return facts


def table(rows: Sequence[ModuleRow]) -> list[str]:
    """One line a module: the worst of all steps and branches, and how the error goes on."""
    width = max(len("module"), *(len(row.module) for row in rows))
    beside = rows[0].rms_ratio is not None
    head = f"{'module':<{width}}  {'error, RMS':>10}  {'step':>4}"
    if beside:
        head += f"  {'/ reference':>11}  {'largest':>8}  {'overlap':>7}"
    lines = [f"{head}  trend"]
    for row in rows:
        line = f"{row.module:<{width}}  {row.relative:>10.2e}  {row.step:>4}"
        if beside:
            line += f"  {row.rms_ratio:>11.2f}  {row.largest_ratio:>8.2f}  {row.overlap:>7.3f}"
        lines.append(f"{line}  {row.trend}")
    return lines


def _verdict(verdict: Verdict) -> list[str]:
    if verdict.passed:
        return ["PASS"]
    lines = [f"FAIL: {len(verdict.failures)} points, {len(verdict.trends)} trends"]
    if verdict.first is not None:
        lines.append(f"first: {verdict.first}")
    return [*lines, *(f"trend: {text}" for text in verdict.trends)]


def figures(rows: Sequence[ModuleRow], verdict: Verdict) -> dict[str, float | None]:
    """Numbers by name; None is one that is infinite."""
    found: dict[str, float | None] = {
        "passed": int(verdict.passed),
        "failures": len(verdict.failures),
        "trends": len(verdict.trends),
    }
    if verdict.first is not None:
        found["first_step"] = verdict.first.measurement.step.index
    for row in rows:
        for name in ("relative", "rms_ratio", "largest_ratio", "overlap"):
            value = getattr(row, name)
            if value is not None:
                found[f"{row.module}.{name}"] = value if math.isfinite(value) else None
    return found
