"""Modelled times of the ring kernels on Trainium3, for Wan at TP4: ten heads of a rank, two cores.

    ./pants run tools/ring_report.py -- [--match 480p] [--ranks 8] [--no-online] [--plot FOLDER]
        [--json]

`exposed_comm` is the share of the time that the critical path spends in collectives and barriers:
what would be saved if they took no time, at most. `useful_mfu` counts the multiplications that
attention asks for; `mfu` also those of padding, of the sums of weights and of norms.

With `FOLDER`, a timeline of a short ring is drawn there (which needs matplotlib).

Of all ranks, every instruction is scheduled: 480p takes a minute, 720p ten. Fewer ranks of as many
tokens are quicker, and a little worse, as what precedes the first step counts for more.

Nothing is measured: all times are nkisim's, see docs/time-model.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nkisim
from nkisim.report import Report
from wantrn.kernels.ring import RingOptions, ring_attention, ring_attention_online

TARGET = "trn3"
HEADS, HEAD_DIM, CORES = 10, 128, 2
# tokens of a rank, at CP8
LENGTHS = {"480p": 4095, "720p": 9450}
COMMUNICATION = ("collective_permute_implicit", "all_reduce", "core_barrier")


def report(kernel: Any, tokens: int, ranks: int, heads: int = HEADS) -> Report:
    """A kernel on all ranks, by shapes only."""
    x = nkisim.TensorSpec((1, tokens, heads, HEAD_DIM), "bfloat16")
    world = nkisim.World(ranks, CORES, TARGET, numerics=False, trace=True)
    return world.profile(kernel, [(x, x, x, RingOptions(ranks=ranks))] * ranks)


def figures(name: str, found: Report, tokens: int, ranks: int) -> Iterator[tuple[str, float]]:
    """Names and numbers of one report."""
    facts = found.json()
    waiting = sum(found.critical_us.get(op, 0.0) for op in COMMUNICATION)
    flops = 4 * tokens * tokens * ranks * HEADS * HEAD_DIM
    peak = found.schedule.machine.peak_flops_per_ns("bf16") * CORES
    yield f"{name}.us", found.kernel_us
    yield f"{name}.mfu", facts["mfu"]
    yield f"{name}.useful_mfu", flops / (found.kernel_us * 1e3 * peak)
    yield f"{name}.exposed_comm", waiting / found.kernel_us
    yield f"{name}.sbuf_peak_bytes", facts["sbuf_peak_bytes"]
    yield f"{name}.psum_peak_bytes", facts["psum_peak_bytes"]


def draw(folder: Path) -> None:
    """A timeline in which single instructions can be seen: four ranks of 2048 tokens, two heads."""
    folder.mkdir(parents=True, exist_ok=True)
    report(ring_attention, 2048, 4, heads=2).plot(folder / "ring_attention.png")


def ring_figures(match: str, ranks: int, online: bool) -> Iterator[tuple[str, float]]:
    """Names and figures of the rings, printed as they come.

    Args:
        match: only resolutions whose name has this text.
        online: whether the ring with running maxima is run too.
    """
    kernels = {"ring": ring_attention}
    if online:
        kernels["ring_online"] = ring_attention_online
    for resolution, tokens in LENGTHS.items():
        if match not in resolution:
            continue
        times = []
        for name, kernel in kernels.items():
            one = report(kernel, tokens, ranks)
            times.append(one.kernel_us)
            for key, value in figures(f"{name}.{resolution}", one, tokens, ranks):
                print(f"{key:<40} {value:12.4f}", flush=True)
                yield key, value
        if online:
            key = f"ring.{resolution}.const_max_over_online"
            print(f"{key:<40} {times[0] / times[1]:12.4f}", flush=True)
            yield key, times[0] / times[1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Modelled times of the ring kernels.")
    parser.add_argument("--match", default="", help="only resolutions whose name has this text")
    parser.add_argument("--ranks", type=int, default=8, help="of the ring")
    parser.add_argument("--no-online", action="store_true", help="only the ring with a bound")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="where to draw a timeline")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    found = dict(ring_figures(options.match, options.ranks, not options.no_online))
    if options.plot is not None:
        draw(options.plot)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
