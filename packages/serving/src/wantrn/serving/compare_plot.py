"""The picture of ``wantrn compare --plot``: PSNR and SSIM of each frame. Needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from wantrn.model.quality import Comparison
from wantrn.serving.frame_rows import shortened

_INK, _FAINT, _GRID = "#191c21", "#686f7a", "#e4e7eb"
_PSNR, _SSIM = "#2563b0", "#b4531f"
_EQUAL = "all frames are equal"
_MARKED = 64  # frames, up to which each has a dot


def draw_plot(path: Path, names: tuple[str, str], found: Comparison) -> None:
    """Draw ``found`` of the videos ``names`` as a PNG file."""
    figure_of(names, found).savefig(path, dpi=150, format="png")


def figure_of(names: tuple[str, str], found: Comparison) -> Figure:
    """PSNR above SSIM, over the frames."""
    layout = ConstrainedLayoutEngine(h_pad=0.1, hspace=0.04)
    figure = Figure(figsize=(9, 5.6), facecolor="white", layout=layout)
    a, b = (shortened(name, 40) for name in names)
    figure.suptitle(f"{a} and {b}", x=0.012, ha="left", fontsize=13, color=_INK)
    above, below = figure.subplots(2, 1, sharex=True)
    _draw(above, found.psnr_of_frames, found.psnr, _Look(_PSNR, 1.0))
    _mark_equal(above, found.psnr_of_frames)
    whole = f"{found.psnr:.2f} dB in all, {_worst(found.worst_psnr(), '.2f')}"
    _title(above, "PSNR, dB", _EQUAL if math.isinf(found.psnr) else whole)
    _draw(below, found.ssim_of_frames, found.ssim, _Look(_SSIM, 0.002))
    mean = f"{found.ssim:.5f} in the mean, {_worst(found.worst_ssim(), '.5f')}"
    _title(below, "SSIM", _EQUAL if math.isinf(found.psnr) else mean)
    below.set_xlabel("frame", color=_FAINT)
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@dataclass(frozen=True)
class _Look:
    colour: str
    span: float  # of the axis, at least: nobody is to see a valley in what is nothing


def _draw(axes: Any, values: Sequence[float], whole: float, look: _Look) -> None:
    shown = [value if math.isfinite(value) else math.nan for value in values]
    marker = "o" if len(values) <= _MARKED else ""
    axes.plot(range(len(values)), shown, c=look.colour, marker=marker, markersize=4, linewidth=1.6)
    if math.isfinite(whole):
        axes.axhline(whole, color=look.colour, linewidth=1, linestyle=(0, (5, 4)), alpha=0.6)
    axes.grid(True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_FAINT, length=0)
    axes.margins(x=0.02, y=0.12)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        axes.set_yticks([])
    elif max(finite) - min(finite) < look.span:
        middle = (max(finite) + min(finite)) / 2
        axes.set_ylim(middle - look.span, middle + look.span)


def _title(axes: Any, name: str, words: str) -> None:
    axes.set_title(name, loc="left", fontsize=11, color=_INK)
    axes.set_title(words, loc="right", fontsize=10, color=_FAINT)


def _worst(worst: tuple[int, float], form: str) -> str:
    frame, value = worst
    return f"worst {value:{form}} in frame {frame}"


def _mark_equal(axes: Any, values: Sequence[float]) -> None:
    """Frames whose PSNR is infinite, along the upper edge."""
    equal = [frame for frame, value in enumerate(values) if math.isinf(value)]
    if not equal:
        return
    axes.plot(
        equal,
        [0.96] * len(equal),
        linestyle="",
        marker="^",
        markersize=6,
        color=_PSNR,
        transform=axes.get_xaxis_transform(),
        label="equal: no number",
    )
    axes.legend(loc="lower right", fontsize=9, frameon=False, labelcolor=_FAINT)
