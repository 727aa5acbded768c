"""What a trace says about a kernel: its time, where that goes, and what it uses of the chip."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nkisim.enums import Engine
from nkisim.report import perfetto, plot, table
from nkisim.timing import schedule
from nkisim.timing.placement import Usage
from nkisim.timing.schedule import LOOKAHEAD, CoreSchedule, Schedule
from nkisim.trace import CoreTrace, Trace

# keys of `Report.json` that add up over the cores, and those of which the largest counts
_SUMS = (
    "instructions", "dma_transfers", "dma_descriptors", "hbm_read_bytes", "hbm_written_bytes",
)  # fmt: skip
_PEAKS = ("sbuf_peak_bytes", "sbuf_limit_bytes", "psum_peak_bytes", "psum_limit_bytes")

# what executes; DMA is counted apart, because it is many
COMPUTE = (Engine.tensor, Engine.vector, Engine.scalar, Engine.gpsimd, Engine.sync)


@dataclass(frozen=True)
class CoreReport:
    """One core's part.

    Attributes:
        rank, core: which
        busy: share of the kernel's time that each engine is busy; for "dma" the mean of its engines
        counts: instructions by name
        engine_counts: instructions by engine
        flops: of matmuls
        ideal_ns: the time of these at the peak of their kind
        hbm_read, hbm_written: bytes
        transfers, descriptors: how many
        dma_efficiency: share of the bandwidth that transfers reach while they move; 1 without any
        usage: the most of SBUF and PSUM in use at once
    """

    rank: int
    core: int
    busy: Mapping[str, float]
    counts: Mapping[str, int]
    engine_counts: Mapping[str, int]
    flops: int
    ideal_ns: float
    hbm_read: int
    hbm_written: int
    transfers: int
    descriptors: int
    dma_efficiency: float
    usage: Usage


@dataclass(frozen=True, repr=False)
class Report:
    """A schedule and what follows from it. Made by `make`.

    Attributes:
        schedule: when every instruction runs
        cores: each core's part
        critical_us: time on the critical path by instruction, longest first
    """

    schedule: Schedule
    cores: tuple[CoreReport, ...]
    critical_us: Mapping[str, float]

    @property
    def kernel_us(self) -> float:
        """From the first instruction of the kernel to its last result."""
        return self.schedule.total_ns / 1000

    @property
    def launch_us(self) -> float:
        """What starting the kernel and waiting for its end add."""
        return self.schedule.machine.launch_ns / 1000

    @property
    def total_us(self) -> float:
        """What a caller waits: the kernel and its launch."""
        return self.kernel_us + self.launch_us

    @property
    def flops(self) -> int:
        """Multiplications and additions of all matmuls; transposes do none."""
        return sum(core.flops for core in self.cores)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: the PE arrays' time at peak over the kernel's."""
        available = self.schedule.total_ns * len(self.cores)
        return sum(core.ideal_ns for core in self.cores) / available if available else 0.0

    def __repr__(self) -> str:
        machine = self.schedule.machine
        cores = f"{len(self.cores)} core{'s' if len(self.cores) != 1 else ''}"
        return f"<Report: {self.total_us:.1f} us on {machine.chip}, {cores}>"

    def table(self) -> str:
        """A text of a page for people."""
        return table.render(self)

    def json(self) -> dict[str, Any]:
        """Names and numbers that `json.dumps` takes.

        Keys:
            target, chip, ranks, lnc: what it ran on
            total_us: of the kernel with its launch; kernel_us and launch_us are the two
            flops, mfu: of matmuls; against the peak over kernel_us
            instructions, dma_transfers, dma_descriptors, dma_efficiency
            hbm_read_bytes, hbm_written_bytes: of all cores
            sbuf_peak_bytes, sbuf_limit_bytes, psum_peak_bytes, psum_limit_bytes: per partition, of
                the core that uses most
            busy.<engine>: share of kernel_us, mean of all cores
            count.<instruction>: how many
            critical_us.<instruction>: time on the critical path
            cores: the same for each core, without the first two lines and the critical path
        """
        trace, machine = self.schedule.trace, self.schedule.machine
        cores = [_core_json(core, self.schedule.total_ns) for core in self.cores]
        best = sum(_best_ns(core) for core in self.schedule.cores)
        moved = sum(_moving_ns(core) for core in self.schedule.cores)
        found: dict[str, Any] = {
            "target": trace.target.name,
            "chip": machine.chip,
            "ranks": trace.ranks,
            "lnc": trace.lnc,
            "total_us": self.total_us,
            "kernel_us": self.kernel_us,
            "launch_us": self.launch_us,
            "flops": self.flops,
            "mfu": self.mfu,
            "dma_efficiency": best / moved if moved else 1.0,
        }
        for key in _SUMS:
            found[key] = sum(core[key] for core in cores)
        for key in _PEAKS:
            found[key] = max((core[key] for core in cores), default=0)
        for engine in (*(e.name for e in COMPUTE), "dma"):
            shares = [core.busy[engine] for core in self.cores]
            found[f"busy.{engine}"] = sum(shares) / len(shares) if shares else 0.0
        counts: Counter[str] = Counter()
        for core in self.cores:
            counts.update(core.counts)
        found.update({f"count.{op}": count for op, count in sorted(counts.items())})
        found.update({f"critical_us.{op}": us for op, us in self.critical_us.items()})
        found["cores"] = cores
        return found

    def perfetto(self, path: str | Path) -> None:
        """Write a trace that ui.perfetto.dev and chrome://tracing open.

        Args:
            path: a file that ends in .json

        Raises:
            ValueError: it does not, or its folder is not there.
        """
        perfetto.write(self.schedule, _checked(path, (".json",)))

    def plot(self, path: str | Path) -> None:
        """Draw the engines over time.

        Args:
            path: a file that ends in .png or .svg

        Raises:
            ValueError: it does not, or its folder is not there.
            ImportError: matplotlib is not installed (`nkisim[plot]`).
        """
        plot.draw(self, _checked(path, (".png", ".svg")))


def make(trace: Trace, lookahead: int = LOOKAHEAD) -> Report:
    """The report on `trace`; see `nkisim.timing.schedule.make` for arguments and errors."""
    found = schedule.make(trace, lookahead)
    cores = tuple(
        _core(core, timed, found.total_ns)
        for core, timed in zip(trace.cores, found.cores, strict=True)
    )
    critical: defaultdict[str, float] = defaultdict(float)
    for step in found.critical:
        critical[trace.cores[step.core].instructions[step.index].op] += step.ns
    ordered = sorted(critical.items(), key=lambda item: (-item[1], item[0]))
    return Report(found, cores, {op: ns / 1000 for op, ns in ordered})


def _core(core: CoreTrace, timed: CoreSchedule, total_ns: float) -> CoreReport:
    busy = dict.fromkeys(COMPUTE, 0.0)
    counts: Counter[str] = Counter()
    engines: Counter[str] = Counter()
    flops = read = written = transfers = descriptors = 0
    ideal_ns = 0.0
    for instruction, charge in zip(core.instructions, timed.costs, strict=True):
        counts[instruction.op] += 1
        engines[instruction.engine.name] += 1
        if instruction.engine in busy:
            busy[instruction.engine] += charge.busy_ns
        flops += charge.flops
        ideal_ns += charge.ideal_ns
        if charge.transfer is not None:
            transfers += 1
            descriptors += charge.transfer.descriptors
            read += charge.transfer.read
            written += charge.transfer.written
            if charge.transfer.dge == "swdge":
                busy[Engine.gpsimd] += charge.transfer.dge_ns
    shares = {e.name: ns / total_ns if total_ns else 0.0 for e, ns in busy.items()}
    mean = sum(timed.dma_busy_ns) / len(timed.dma_busy_ns)
    shares["dma"] = mean / total_ns if total_ns else 0.0
    moved = _moving_ns(timed)
    efficiency = _best_ns(timed) / moved if moved else 1.0
    return CoreReport(
        core.rank, core.core, shares, dict(counts), dict(engines), flops, ideal_ns,
        read, written, transfers, descriptors, efficiency, timed.usage,
    )  # fmt: skip


def _best_ns(core: CoreSchedule) -> float:
    """DMA engine time of all transfers of a core at the bandwidth that the engines can reach."""
    moves = [charge.transfer for charge in core.costs if charge.transfer is not None]
    return sum(moved.best_ns * moved.engines for moved in moves)


def _moving_ns(core: CoreSchedule) -> float:
    """The DMA engine time that they take."""
    moves = [charge.transfer for charge in core.costs if charge.transfer is not None]
    return sum(moved.engine_ns * moved.engines for moved in moves)


def _core_json(core: CoreReport, total_ns: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rank": core.rank,
        "core": core.core,
        "flops": core.flops,
        "mfu": core.ideal_ns / total_ns if total_ns else 0.0,
        "instructions": sum(core.counts.values()),
        "dma_transfers": core.transfers,
        "dma_descriptors": core.descriptors,
        "dma_efficiency": core.dma_efficiency,
        "hbm_read_bytes": core.hbm_read,
        "hbm_written_bytes": core.hbm_written,
        "sbuf_peak_bytes": core.usage.sbuf,
        "sbuf_limit_bytes": core.usage.sbuf_limit,
        "psum_peak_bytes": core.usage.psum,
        "psum_limit_bytes": core.usage.psum_limit,
    }
    found.update({f"busy.{engine}": share for engine, share in core.busy.items()})
    found.update({f"count.{op}": count for op, count in sorted(core.counts.items())})
    return found


def _checked(path: str | Path, suffixes: tuple[str, ...]) -> Path:
    checked = Path(path)
    if checked.suffix.lower() not in suffixes:
        raise ValueError(f"path is {str(path)!r}; it must end in {' or '.join(suffixes)}")
    if not checked.parent.is_dir():
        raise ValueError(f"path is {str(path)!r}; there is no folder {str(checked.parent)!r}")
    return checked
