"""A report as text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nkisim.report.report import CoreReport, Report

_BAR = 30
# cores and instructions that get a line of their own
_CORES, _OPS = 16, 12


def render(report: Report) -> str:
    """The text of `Report.table`."""
    trace, machine = report.schedule.trace, report.schedule.machine
    cores = f"{len(report.cores)} core{'s' if len(report.cores) != 1 else ''}"
    lines = [
        f"{time_text(report.schedule.total_ns)} on {machine.chip}, {cores} "
        f"(ranks: {trace.ranks}, cores of a rank: {trace.lnc}); "
        f"{time_text(1000 * report.total_us)} with its launch",
        f"{_scaled(report.flops, 'FLOP')}, MFU {100 * report.mfu:.1f} %",
    ]
    for core in report.cores[:_CORES]:
        lines += ["", *_core(core)]
    if len(report.cores) > _CORES:
        lines += ["", f"and {len(report.cores) - _CORES} more cores"]
    lines += ["", "Critical path", *_critical(report)]
    lines += ["", "Instructions", *_counts(report)]
    return "\n".join(lines)


def _core(core: CoreReport) -> list[str]:
    lines = [f"Rank {core.rank}, core {core.core}"]
    for engine, share in core.busy.items():
        bar = "#" * round(min(share, 1.0) * _BAR)
        lines.append(f"  {engine:<8}{100 * share:>6.1f} %  |{bar:<{_BAR}}|")
    lines += [
        f"  HBM     read {_scaled(core.hbm_read, 'B')}, written {_scaled(core.hbm_written, 'B')}",
        f"  DMA     {core.transfers} transfers, {core.descriptors} descriptors, "
        f"{100 * core.dma_efficiency:.0f} % of the bandwidth while they move",
        f"  SBUF    {core.usage.sbuf} of {core.usage.sbuf_limit} bytes per partition at most",
        f"  PSUM    {core.usage.psum} of {core.usage.psum_limit} bytes per partition at most",
    ]
    return lines


def _critical(report: Report) -> list[str]:
    total = report.kernel_us or 1.0
    rows = list(report.critical_us.items())
    lines = [f"  {op:<28}{us:>12.2f} us {100 * us / total:>6.1f} %" for op, us in rows[:_OPS]]
    if len(rows) > _OPS:
        rest = sum(us for _, us in rows[_OPS:])
        lines.append(f"  {'others':<28}{rest:>12.2f} us {100 * rest / total:>6.1f} %")
    return lines or ["  nothing"]


def _counts(report: Report) -> list[str]:
    counts: Counter[str] = Counter()
    engines: Counter[str] = Counter()
    for core in report.cores:
        counts.update(core.counts)
        engines.update(core.engine_counts)
    per_engine = ", ".join(f"{engine} {count}" for engine, count in engines.most_common())
    lines = [f"  {sum(counts.values())} in all" + (f": {per_engine}" if per_engine else "")]
    lines += [f"  {op:<28}{count:>12}" for op, count in counts.most_common(_OPS)]
    if len(counts) > _OPS:
        rest = sum(count for _, count in counts.most_common()[_OPS:])
        lines.append(f"  {'others':<28}{rest:>12}")
    return lines


def time_text(ns: float) -> str:
    """A time in the unit that suits it."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.3f} {unit}"
    return f"{ns:.1f} ns"


def _scaled(count: float, unit: str) -> str:
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {prefix}{unit}"
    return f"{count:.0f} {unit}"
