"""A schedule as a picture: how busy the engines are over time, and some of it close up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nkisim.enums import Engine
from nkisim.report import lanes
from nkisim.report.table import time_text
from nkisim.timing.schedule import ENGINES, Schedule

if TYPE_CHECKING:
    from nkisim.report.report import Report

Array = npt.NDArray[np.float64]

# points in time at which the busy share is drawn
_BINS = 240
# bars in the close-up, and lanes of transfers in it
_CLOSE_UP = 140
_DMA_LANES = 8
# cores that are drawn one by one; more are averaged
_CORES = 2

# inches
_WIDTH, _TOP, _GAP, _BOTTOM = 13.0, 1.45, 0.9, 0.5
_LEGEND_COLUMNS = 6

_INK, _FAINT, _GRID = "#1f2933", "#6b7785", "#e4e8ec"
# of each engine, and lighter ones for its instructions
_COLOURS = {
    Engine.tensor: ("#2f62a8", "#7ba3d6", "#b5cdea", "#4f83c4"),
    Engine.vector: ("#d96f2b", "#f0a873", "#b4541a", "#f7cba8", "#e88c50", "#8f4214"),
    Engine.scalar: ("#3a9466", "#8ccaa8", "#276b49", "#bde2cd"),
    Engine.gpsimd: ("#9058a8", "#c39bd3", "#6b3f7f", "#e0cbe8"),
    Engine.sync: ("#7d848e", "#b4bac2", "#5a616b", "#d3d7dc"),
    Engine.dma: ("#1f91a5", "#7cc6d3", "#146a79", "#b9e1e8"),
}
_OTHER_COLOUR = "#c9ced4"
_NAMES = {Engine.dma: "DMA", Engine.gpsimd: "GpSimd"}


@dataclass(frozen=True)
class _Bar:
    """One instruction of the close-up; times in ns, `row` counts from the top."""

    row: int
    start: float
    end: float
    op: str
    critical: bool


@dataclass(frozen=True)
class _CloseUp:
    """The instructions of one core in a window of time, and the labels of their rows."""

    title: str
    window: tuple[float, float]
    bars: list[_Bar]
    labels: list[str]


def draw(report: Report, path: Path) -> None:
    """Draw `report` to a .png or .svg file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError(
            "a plot needs matplotlib, which is not installed; install nkisim[plot]"
        ) from missing
    rows = _busy_rows(report.schedule)
    shown = _close_up(report.schedule)
    colours = _op_colours(report, shown.bars)
    heights = [0.42 * max(len(rows), 1), 0.34 * max(len(shown.labels), 1), 0.42]
    legend = 0.24 * -(-len(colours) // _LEGEND_COLUMNS)
    height = _TOP + sum(heights) + 2 * _GAP + legend + _BOTTOM
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    top = height - _TOP
    axes = []
    for part in heights:
        axes.append(figure.add_axes((0.105, (top - part) / height, 0.84, part / height)))
        top -= part + _GAP
    _title(figure, report, height)
    _draw_busy(axes[0], rows, report.schedule.total_ns, shown.window)
    _draw_close_up(axes[1], shown, colours)
    _draw_critical(axes[2], report, colours)
    _legend(figure, colours, height)
    figure.savefig(path, dpi=150)


def _title(figure: Any, report: Report, height: float) -> None:
    machine = report.schedule.machine
    cores = f"{len(report.cores)} cores of " if len(report.cores) > 1 else ""
    figure.text(
        0.03, 1 - 0.42 / height, f"{time_text(report.schedule.total_ns)} on {cores}{machine.chip}",
        fontsize=17, fontweight="bold", color=_INK, va="center",
    )  # fmt: skip
    read = sum(core.hbm_read for core in report.cores)
    written = sum(core.hbm_written for core in report.cores)
    rate = (read + written) / report.schedule.total_ns if report.schedule.total_ns else 0.0
    usage = max((core.usage for core in report.cores), key=lambda u: u.sbuf)
    facts = (
        f"{time_text(1000 * report.total_us)} with its launch",
        f"MFU {100 * report.mfu:.1f} %",
        f"HBM {(read + written) / 1e6:.1f} MB at {rate:.0f} GB/s",
        f"SBUF {100 * usage.sbuf / usage.sbuf_limit:.0f} %",
        f"PSUM {100 * usage.psum / usage.psum_limit:.0f} % at most",
        f"{sum(sum(core.counts.values()) for core in report.cores)} instructions",
    )
    figure.text(
        0.03, 1 - 0.76 / height, "   ·   ".join(facts), fontsize=10.5, color=_FAINT, va="center"
    )  # fmt: skip


# How busy the engines are


def _busy_rows(schedule: Schedule) -> list[tuple[str, str, Array]]:
    """(label, colour, busy share by bin) of every engine that does anything."""
    shares = [_core_shares(schedule, core) for core in range(len(schedule.cores))]
    if len(shares) > _CORES:
        mean = {e: np.mean([share[e] for share in shares], axis=0) for e in ENGINES}
        shares, names = [mean], ["mean"]
    elif len(shares) > 1:
        names = _core_names(schedule)
    else:
        names = [""] * len(shares)
    return [
        (f"{name} {_name(engine)}".strip(), _COLOURS[engine][0], share[engine])
        for name, share in zip(names, shares, strict=True)
        for engine in ENGINES
        if share[engine].any()
    ]


def _core_names(schedule: Schedule) -> list[str]:
    trace = schedule.trace
    if trace.ranks == 1:
        return [f"core {core.core}" for core in trace.cores]
    if trace.lnc == 1:
        return [f"rank {core.rank}" for core in trace.cores]
    return [f"r{core.rank} c{core.core}" for core in trace.cores]


def _name(engine: Engine) -> str:
    return _NAMES.get(engine, engine.name.capitalize())


def _core_shares(schedule: Schedule, core: int) -> dict[Engine, Array]:
    timed, instructions = schedule.cores[core], schedule.trace.cores[core].instructions
    edges = np.linspace(0.0, schedule.total_ns, _BINS + 1)
    spans: dict[Engine, list[tuple[float, float, float]]] = {engine: [] for engine in ENGINES}
    for k, (instruction, charge) in enumerate(zip(instructions, timed.costs, strict=True)):
        moved = charge.transfer
        if moved is None:
            start = float(timed.start[k])
            spans[instruction.engine].append((start, start + charge.busy_ns, 1.0))
        else:
            end = float(timed.done[k])
            weight = moved.engines / schedule.machine.dma_engines
            spans[Engine.dma].append((end - moved.engine_ns, end, weight))
    return {engine: _shares(mine, edges) for engine, mine in spans.items()}


def _shares(spans: list[tuple[float, float, float]], edges: Array) -> Array:
    """How much of each bin is covered by weighted spans, none more than once in all."""
    if not spans:
        return np.zeros(len(edges) - 1)
    start, end, weight = np.array(spans).T
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    times = times[order]
    slope = np.cumsum(np.concatenate([weight, -weight])[order])
    covered = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(times))])
    at_edges = np.interp(edges, times, covered)
    shares: Array = np.clip(np.diff(at_edges) / np.diff(edges), 0.0, 1.0)
    return shares


def _draw_busy(
    axes: Any, rows: list[tuple[str, str, Array]], total: float, window: tuple[float, float]
) -> None:
    scale, unit = _unit(total)
    middle = (np.arange(_BINS) + 0.5) * total / _BINS / scale
    core = rows[0][0].rpartition(" ")[0] if rows else ""
    for row, (label, colour, shares) in enumerate(rows):
        base = len(rows) - 1 - row
        if label.rpartition(" ")[0] != core:
            core = label.rpartition(" ")[0]
            axes.axhline(base + 0.93, color=_FAINT, lw=1.0, xmin=-0.1, clip_on=False)
        axes.axhspan(base, base + 0.86, color="#f5f7f9", lw=0)
        axes.fill_between(
            middle, base, base + 0.86 * shares, color=colour, lw=0, alpha=0.9, step="mid"
        )
        axes.text(
            1.008, base + 0.43, f"{100 * shares.mean():.0f} %", color=colour, fontsize=10,
            fontweight="bold", va="center", transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    if window[1] - window[0] < 0.98 * total:
        low, high = window[0] / scale, window[1] / scale
        axes.axvspan(low, high, color=_INK, alpha=0.14, lw=0)
        axes.axvline((low + high) / 2, color=_INK, lw=0.8, alpha=0.5)
    axes.set_xlim(0, max(total, 1.0) / scale)
    _frame(axes, [row[0] for row in rows], "How busy the engines are", f"time ({unit})")


# Close up


def _close_up(schedule: Schedule) -> _CloseUp:
    """A window around the middle of the time, of the core that ends last."""
    title = "Close up: instructions, the critical path outlined"
    if not schedule.critical:
        return _CloseUp(title, (0.0, 1.0), [], [])
    core = schedule.critical[-1].core
    timed, instructions = schedule.cores[core], schedule.trace.cores[core].instructions
    critical = {step.index for step in schedule.critical if step.core == core}
    order = np.argsort(timed.start, kind="stable")
    if len(order) > _CLOSE_UP:
        middle = int(np.searchsorted(timed.start[order], schedule.total_ns / 2))
        first = min(max(middle - _CLOSE_UP // 2, 0), len(order) - _CLOSE_UP)
        order = order[first : first + _CLOSE_UP]
        window = (float(timed.start[order[0]]), float(timed.start[order[-1]]))
    else:
        window = (0.0, schedule.total_ns)
    if window[1] <= window[0]:
        window = (window[0], float(timed.end[order].max()))
    shown = np.flatnonzero((timed.start < window[1]) & (timed.end > window[0])).tolist()
    rows, labels = _rows(schedule, core, shown)
    bars = [
        _Bar(
            rows[k], float(timed.start[k]), float(timed.end[k]), instructions[k].op, k in critical
        )
        for k in shown
        if k in rows
    ]  # fmt: skip
    if len(schedule.cores) > 1:
        title = title.replace(":", f" of {_core_names(schedule)[core]}:")
    return _CloseUp(title, window, bars, labels)


def _rows(schedule: Schedule, core: int, shown: list[int]) -> tuple[dict[int, int], list[str]]:
    """The row of each instruction, transfers and exchanges in lanes of their own."""
    timed, instructions = schedule.cores[core], schedule.trace.cores[core].instructions
    apart = [
        k
        for k in shown
        if instructions[k].engine is Engine.dma or instructions[k].meeting is not None
    ]
    rows: dict[int, int] = {}
    labels: list[str] = []
    others = set(shown) - set(apart)
    for engine in ENGINES:
        mine = [k for k in others if instructions[k].engine is engine]
        if mine:
            rows.update(dict.fromkeys(mine, len(labels)))
            labels.append(_name(engine))
    spans = [(float(timed.start[k]), float(timed.end[k])) for k in apart]
    first = len(labels)
    for k, lane in zip(apart, lanes.assign(spans), strict=True):
        if lane < _DMA_LANES:
            rows[k] = first + lane
            labels += [""] * (first + lane + 1 - len(labels))
    if len(labels) > first:
        labels[first] = "DMA"
    return rows, labels


def _draw_close_up(axes: Any, shown: _CloseUp, colours: dict[str, str]) -> None:
    window, labels = shown.window, shown.labels
    scale, unit = _unit(window[1] - window[0])
    origin = window[0]
    width = (window[1] - window[0]) / scale
    for bar in shown.bars:
        start = max(bar.start - origin, 0.0) / scale
        length = min(bar.end - origin, window[1] - origin) / scale - start
        base = len(labels) - 1 - bar.row
        axes.broken_barh(
            [(start, length)], (base + 0.06, 0.8), facecolor=colours.get(bar.op, _OTHER_COLOUR),
            edgecolor=_INK if bar.critical else "white", linewidth=1.3 if bar.critical else 0.5,
            zorder=3 if bar.critical else 2,
        )  # fmt: skip
        # about 150 characters fit into the width
        if length / width * 150 > len(bar.op) + 2:
            axes.text(
                start + length / 2, base + 0.45, bar.op, fontsize=7.5, ha="center", va="center",
                color=_text_colour(colours.get(bar.op, _OTHER_COLOUR)), zorder=4, clip_on=True,
            )  # fmt: skip
    axes.set_xlim(0, width)
    below = f"{unit} from {time_text(origin)} on" if origin else f"time ({unit})"
    _frame(axes, labels, shown.title, below)


# The critical path


def _draw_critical(axes: Any, report: Report, colours: dict[str, str]) -> None:
    total = sum(report.critical_us.values()) or 1.0
    left = 0.0
    rest = 0.0
    for op, us in report.critical_us.items():
        share = us / total
        if op not in colours:
            rest += share
            continue
        axes.barh(0.5, share, left=left, height=0.8, color=colours[op], edgecolor="white")
        if share * 165 > len(op) + 6:
            axes.text(
                left + share / 2, 0.5, f"{op}  {100 * share:.0f} %", fontsize=8.5, ha="center",
                va="center", color=_text_colour(colours[op]),
            )  # fmt: skip
        left += share
    if rest:
        axes.barh(0.5, rest, left=left, height=0.8, color=_OTHER_COLOUR, edgecolor="white")
    axes.set_xlim(0, 1)
    _frame(axes, [""], "What the critical path is made of", "")
    axes.set_xticks([])
    axes.grid(False)


def _op_colours(report: Report, bars: list[_Bar]) -> dict[str, str]:
    """A shade of its engine's colour for each instruction that is on the critical path or shown.

    Those that take most of the critical path get theirs first; an engine may run out of shades.
    """
    engines: dict[str, Engine] = {}
    for core in report.schedule.trace.cores:
        for instruction in core.instructions:
            engines.setdefault(instruction.op, instruction.engine)
    names = list(report.critical_us)
    names += sorted({bar.op for bar in bars} - set(names))
    used = dict.fromkeys(ENGINES, 0)
    colours = {}
    for op in names:
        engine = engines[op]
        shades = _COLOURS[engine]
        if used[engine] < len(shades):
            colours[op] = shades[used[engine]]
            used[engine] += 1
    order = list(ENGINES)
    return dict(sorted(colours.items(), key=lambda item: order.index(engines[item[0]])))


def _text_colour(background: str) -> str:
    """Dark or white, whichever stands out."""
    red, green, blue = (int(background[k : k + 2], 16) for k in (1, 3, 5))
    return _INK if 0.3 * red + 0.59 * green + 0.11 * blue > 150 else "white"


def _legend(figure: Any, colours: dict[str, str], height: float) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=op) for op, colour in colours.items()]
    if not handles:
        return
    figure.legend(
        handles=handles, loc="lower center", bbox_to_anchor=(0.525, 0.1 / height),
        ncols=min(len(handles), _LEGEND_COLUMNS), frameon=False, fontsize=9, labelcolor=_INK,
        handlelength=1.1,
    )  # fmt: skip


def _frame(axes: Any, labels: list[str], title: str, below: str) -> None:
    axes.set_ylim(-0.06, max(len(labels), 1))
    axes.set_yticks([len(labels) - k - 0.55 for k in range(len(labels))], labels=labels)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_INK, pad=7)
    axes.set_xlabel(below, fontsize=9, color=_FAINT, labelpad=3)
    axes.tick_params(axis="x", labelsize=9, colors=_FAINT, length=3)
    axes.tick_params(axis="y", labelsize=10, colors=_INK, length=0)
    axes.grid(axis="x", color=_GRID, lw=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)


def _unit(ns: float) -> tuple[float, str]:
    """How many ns a unit has in which `ns` is easy to read, and its name."""
    if ns >= 2e6:
        return 1e6, "ms"
    if ns >= 2e3:
        return 1e3, "us"
    return 1.0, "ns"
