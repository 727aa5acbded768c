"""Captures beside each other as a picture: modules over steps, and the run's own tensors below.

Needs matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from capture_rows import AS_REFERENCE, by_module, module_rows
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from wantrn.model.capture import Comparison, Limits, Measurement, Verdict
from wantrn.model.media.atomic import draft_of

Array = NDArray[np.float64]

_INK, _FAINT, _GRID = "#191c21", "#686f7a", "#e4e7eb"
_TARGET, _REFERENCE = "#b4531f", "#2563b0"
_EXPERTS = ("high-noise expert", "low-noise expert")
_OF_THE_RUN = ("velocity", "latents")

# inches
_WIDTH, _TOP, _LINES, _GAP, _BOTTOM = 12.0, 1.25, 1.9, 0.75, 0.55
_ROW, _LEAST, _TALLEST = 0.24, 0.09, 22.0  # of a row of the map, and of the map
_LEFT, _SIDE = 2.1, 3.6

_LEAST_SPAN = 3.0  # of the colours of ratios, so that what is near 1 is pale
_MOST_SPAN = 100.0


def draw(path: Path, found: Comparison, verdict: Verdict, limits: Limits) -> None:
    """Draw a comparison as a PNG file."""
    figure = figure_of(found, verdict, limits)
    with draft_of(path) as draft:
        figure.savefig(draft, dpi=130, format="png")


def figure_of(found: Comparison, verdict: Verdict, limits: Limits) -> Figure:
    """The map of modules and steps, trends beside it, and a plot for velocity and latents."""
    rows = len(found.exact.modules)
    tall = min(max(_LEAST, min(_ROW, _TALLEST / rows)) * rows, 60.0)
    plots = [name for name in _OF_THE_RUN if name in found.exact.modules]
    below = _LINES + _GAP if plots else 0.0
    height = _TOP + tall + _BOTTOM + below
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    _title(figure, found, verdict, height)
    wide = _WIDTH - _LEFT - _SIDE
    box = (_LEFT / _WIDTH, 1 - (_TOP + tall) / height, wide / _WIDTH, tall / height)
    axes = figure.add_axes(box)
    _draw_map(figure, axes, found, verdict)
    _draw_trends(axes, found, limits)
    for index, name in enumerate(plots):
        each = (_WIDTH - 1.0 - 0.4 - 0.8 * (len(plots) - 1)) / len(plots)
        left = 1.0 + index * (each + 0.8)
        below_box = (left / _WIDTH, _BOTTOM / height, each / _WIDTH, _LINES / height)
        _draw_lines(figure.add_axes(below_box), found, name, legend=index == 0)
    return figure


def _title(figure: Figure, found: Comparison, verdict: Verdict, height: float) -> None:
    captures = {"target": found.target, "against": found.exact, "reference": found.reference}
    text = "   ".join(f"{name}: {one.what()}" for name, one in captures.items() if one is not None)
    figure.text(0.02, 1 - 0.33 / height, text, fontsize=13, color=_INK, va="center")
    words = "passes" if verdict.passed else f"fails: {len(verdict.failures)} points"
    if verdict.first is not None:
        one = verdict.first.measurement
        words += f" (crosses), first {one.point} in step {one.step.index} (frame)"
    inputs = "the same inputs in every step" if found.same_inputs else "inputs of each run's own"
    figure.text(
        0.02, 1 - 0.66 / height, f"{words}   ·   {inputs}", fontsize=10.5, color=_FAINT, va="center"
    )


# The map


def _value(found: Comparison, one: Measurement) -> float:
    ratio = one.rms_ratio
    return one.target.relative if ratio is None else ratio


def _grid(found: Comparison) -> Array:
    """``[modules, steps]``: the worse of both branches."""
    places = {step.index: column for column, step in enumerate(found.exact.steps)}
    values = np.full((len(found.exact.modules), len(places)), np.nan)
    for row, measurements in enumerate(by_module(found).values()):
        for one in measurements:
            column = places[one.step.index]
            values[row, column] = np.fmax(values[row, column], _value(found, one))
    return values


def _draw_map(figure: Figure, axes: Any, found: Comparison, verdict: Verdict) -> None:
    values = _grid(found)
    ratios = found.reference is not None
    low, high = _span(values, ratios)
    shown = np.clip(values, low, high)  # infinity as what is largest, zero as what is least
    colours = "RdBu_r" if ratios else "YlOrBr"
    image = axes.imshow(
        shown, norm=LogNorm(low, high), cmap=colours, aspect="auto", interpolation="nearest"
    )
    _label(axes, found)
    _mark_failures(axes, found, verdict)
    _bar(figure, axes, image, ratios)


def _span(values: Array, ratios: bool) -> tuple[float, float]:
    """Of the colours; that of ratios has 1 in its middle."""
    finite = values[np.isfinite(values) & (values > 0)]
    if ratios:
        most = max([_LEAST_SPAN, *finite, *(1 / finite)])
        most = min(most, _MOST_SPAN)
        return 1 / most, most
    if not len(finite):
        return 0.1, 1.0
    return float(finite.min()) / 1.1, float(finite.max()) * 1.1


def _label(axes: Any, found: Comparison) -> None:
    modules, steps = found.exact.modules, found.exact.steps
    size = 8.5 if len(modules) <= 90 else 5.5
    axes.set_yticks(range(len(modules)), modules, fontsize=size, color=_INK)
    every = max(1, math.ceil(len(steps) / 25))
    places = range(0, len(steps), every)
    axes.set_xticks(places, [str(steps[place].index) for place in places], color=_FAINT, fontsize=9)
    axes.set_xlabel("step", color=_FAINT, fontsize=9)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xticks(np.arange(0.5, len(steps) - 1), minor=True)
    axes.set_yticks(np.arange(0.5, len(modules) - 1), minor=True)
    axes.grid(which="minor", color="white", linewidth=0.7)
    axes.tick_params(which="minor", length=0)
    _experts(axes, [step.expert for step in steps])


def _experts(axes: Any, experts: Sequence[int]) -> None:
    """Which of two makes which steps, above them."""
    if len(set(experts)) == 1:
        return
    first = experts.index(1)
    axes.axvline(first - 0.5, color=_INK, linewidth=1.4)
    for name, start, end in ((_EXPERTS[0], 0, first), (_EXPERTS[1], first, len(experts))):
        short = name if (end - start) / len(experts) > 0.25 else name.partition("-")[0]
        axes.annotate(
            short,
            ((start + end - 1) / 2, 1),
            (0, 4),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=_FAINT,
        )


def _mark_failures(axes: Any, found: Comparison, verdict: Verdict) -> None:
    """A cross on what fails, and a frame around the first."""
    rows = {module: row for row, module in enumerate(found.exact.modules)}
    columns = {step.index: column for column, step in enumerate(found.exact.steps)}
    places = [
        (columns[one.measurement.step.index], rows[one.measurement.point.module])
        for one in verdict.failures
    ]
    if not places:
        return
    size = 6 if len(rows) <= 90 else 3
    outline = [withStroke(linewidth=3, foreground="white")]
    look = {"ls": "", "marker": "x", "ms": size, "mew": 1.3, "path_effects": outline}
    axes.plot(*zip(*dict.fromkeys(places), strict=True), color=_INK, **look)
    x, y = places[0]
    frame = Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, ec=_INK, lw=2, clip_on=False, zorder=4)
    axes.add_patch(frame)


def _bar(figure: Figure, axes: Any, image: Any, ratios: bool) -> None:
    box = axes.get_position()
    width, height = figure.get_size_inches()
    tall = min(box.height, 2.6 / height)
    place = (box.x1 + (_SIDE - 0.95) / width, box.y1 - tall, 0.16 / width, tall)
    bar = figure.colorbar(image, cax=figure.add_axes(place))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    low, high = image.norm.vmin, image.norm.vmax
    if ratios:
        ticks = [1 / 30, 0.1, 1 / 3, 1, 3, 10, 30]
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2g}"))
        bar.set_ticks([tick for tick in ticks if low * 0.999 <= tick <= high * 1.001])
    bar.ax.tick_params(labelsize=8, colors=_FAINT, length=2)
    bar.outline.set_visible(False)
    name = "RMS error\nover the\nreference's" if ratios else "RMS error\nover the\ntensor"
    bar.ax.set_title(name, fontsize=8, color=_FAINT, loc="left")


def _draw_trends(axes: Any, found: Comparison, limits: Limits) -> None:
    """The worst figures of each module, and its trend, to the right of its row."""
    rows = module_rows(found, limits.rules)
    size = 8.5 if len(rows) <= 90 else 5.5
    columns = len(found.exact.steps)

    def put(place: float, row: float, text: str, colour: str) -> None:
        axes.annotate(
            text,
            (1, row),
            (place, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=size,
            color=colour,
        )

    put(8, -0.95, "worst", _FAINT)
    put(52, -0.95, "error over the steps", _FAINT)
    for place, row in enumerate(rows):
        worst = f"{row.relative:.1e}" if row.rms_ratio is None else f"{row.rms_ratio:.2f}"
        put(8, place, worst, _INK)
        own = [text for text in row.trend.split("), ") if AS_REFERENCE not in text]
        words = (own or row.trend.split("), "))[0].partition(" (")[0]
        known = words == "stable" or AS_REFERENCE in words
        put(52, place, words, _FAINT if known else _TARGET)
    axes.set_xlim(-0.5, columns - 0.5)


# The lines


def _draw_lines(axes: Any, found: Comparison, name: str, legend: bool) -> None:
    """The relative error of one tensor of the run over the steps."""
    measurements = by_module(found)[name]
    steps = [one.step.index for one in measurements]
    look: dict[str, Any] = {"marker": "o" if len(steps) <= 60 else "", "ms": 4, "lw": 1.6}
    if found.reference is not None:
        values = [one.reference.relative for one in measurements if one.reference is not None]
        axes.plot(steps, _positive(values), color=_REFERENCE, label="reference", **look)
    values = [one.target.relative for one in measurements]
    axes.plot(steps, _positive(values), color=_TARGET, label="target", **look)
    axes.margins(x=0.03, y=0.2)
    _scale(axes)
    axes.set_title(f"{name}: RMS error over the tensor", loc="left", fontsize=10, color=_INK)
    axes.set_xlabel("step", color=_FAINT, fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True, which="both", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=_FAINT, length=0, labelsize=8)
    for side in axes.spines.values():
        side.set_visible(False)
    if legend:
        axes.legend(fontsize=9, frameon=False, labelcolor=_FAINT)


def _scale(axes: Any) -> None:
    """Logarithmic where errors are far apart."""
    low, high = axes.dataLim.intervaly
    if low > 0 and high > 3 * low:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))


def _positive(values: Sequence[float]) -> list[float]:
    """What has a place on a logarithmic scale."""
    return [value if math.isfinite(value) and value > 0 else math.nan for value in values]
