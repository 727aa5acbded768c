"""Modelled times of the attention kernels on Trainium3.

    ./pants run tools/kernel_report.py -- [--only attention | qkv | ring] [--match TEXT]
        [--nki-library CHECKOUT] [--plot FOLDER] [--json]

With `CHECKOUT`, a clone of github.com/aws-neuron/nki-library, `attention_cte` stands beside the
library's kernel of that name, run as it is by the same simulator. `qkv_cte` stands beside the order
of loads that upstream has (`ours_over_streamed`), and the loads that the peer's formula gives. With
`FOLDER`, a timeline of each kernel of attention is drawn there (which needs matplotlib). The rings
of 720p take 13 GB and half an hour: see tools/ring_report.py, which runs them with fewer ranks too.

Nothing is measured: all times are nkisim's, see docs/time-model.md.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ring_report
from nki_library import load

import nkisim
from nkisim import TensorSpec
from nkisim.report import Report
from wantrn.kernels.attention import Options, attention_cte
from wantrn.kernels.qkv.wan_calls import WAN_CALLS, figures_of

LIBRARY_KERNEL = "nkilib_src.nkilib.core.attention.attention_cte"
TARGET = "trn3"


@dataclass(frozen=True)
class Case:
    """One call of `attention_cte`: `[batch, s_q, d]` queries and `[batch, s_k, d]` keys, bf16."""

    name: str
    batch: int
    s_q: int
    s_k: int
    d: int
    causal: bool
    lnc: int
    tp_out: bool = False

    def specs(self) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
        keys = TensorSpec((self.batch, self.s_k, self.d), "bfloat16")
        return TensorSpec((self.batch, self.s_q, self.d), "bfloat16"), keys, keys

    def ours(self) -> Report:
        options = Options(causal=self.causal, tp_out=self.tp_out)
        kernel = attention_cte if self.lnc == 1 else attention_cte[self.lnc]
        return nkisim.profile(kernel, *self.specs(), options, target=TARGET, numerics=False)

    def theirs(self, kernel: Any) -> Report:
        q, k, v = self.specs()
        with contextlib.redirect_stdout(sys.stderr):
            return nkisim.profile(
                kernel[self.lnc],
                q=q,
                k=k,
                v=v,
                scale=1.0,
                causal_mask=self.causal,
                tp_q=True,
                tp_k=True,
                tp_out=self.tp_out,
                target=TARGET,
                numerics=False,
            )


CASES = tuple(
    Case(f"{name}_lnc{lnc}", batch, s_q, s_k, d, causal, lnc, tp_out)
    for name, batch, s_q, s_k, d, causal, tp_out in (
        ("causal_16k", 1, 16384, 16384, 128, True, False),
        ("full_9k_d64", 1, 9216, 9216, 64, False, False),
        # ten heads of a rank's share of 720p against the 512 tokens of a text
        ("wan_cross", 10, 9450, 512, 128, False, True),
        # one head of 480p, all of it
        ("wan_480p", 1, 32760, 32760, 128, False, False),
    )
    for lnc in (1, 2)
)


def attention_figures(cases: tuple[Case, ...], library: Any) -> Iterator[tuple[str, float]]:
    """Names and figures of `attention_cte`, printed as they come."""
    print(f"{'attention_cte':<20} {'us':>9} {'MFU':>7} {'SBUF KiB':>9} {'library us':>11} ratio")
    for case in cases:
        report = case.ours()
        facts = report.json()
        name = f"attention_cte.{case.name}"
        yield f"{name}.us", report.kernel_us
        yield f"{name}.mfu", facts["mfu"]
        line = f"{case.name:<20} {report.kernel_us:9.1f} {facts['mfu']:7.1%}"
        line += f" {facts['sbuf_peak_bytes'] / 1024:9.1f}"
        if library is not None:
            theirs = case.theirs(library).kernel_us
            ratio = report.kernel_us / theirs
            yield f"{name}.ours_over_library", ratio
            line += f" {theirs:11.1f} {ratio:5.2f}"
        print(line, flush=True)


def qkv_figures(match: str) -> Iterator[tuple[str, float]]:
    """Names and figures of `qkv_cte` in Wan's calls, printed as they come."""
    for call, packed in itertools.product(WAN_CALLS, (True, False)):
        name = f"qkv_cte.{'row_mx' if packed else 'bf16'}.{call.name}"
        if match in name:
            for key, value in figures_of(call, packed).items():
                print(f"{name + '.' + key:<56} {value:12.4f}", flush=True)
                yield f"{name}.{key}", value


def draw(folder: Path) -> None:
    """Timelines of short calls, in which single instructions can be seen."""
    folder.mkdir(parents=True, exist_ok=True)
    short = Case("short", 1, 1024, 4096, 128, False, 1)
    short.ours().plot(folder / "attention_cte.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="Modelled times of the attention kernels.")
    parser.add_argument("--nki-library", type=Path, metavar="CHECKOUT", help="to compare with")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="where to draw timelines")
    parser.add_argument("--only", choices=("attention", "qkv", "ring"), help="not the others")
    parser.add_argument("--match", default="", help="only cases whose name has this text")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=nkisim.NkiWarning)
    figures: dict[str, float] = {}
    if options.only in (None, "attention"):
        library = None
        if options.nki_library is not None:
            library = load(options.nki_library, LIBRARY_KERNEL).attention_cte
        cases = tuple(case for case in CASES if options.match in case.name)
        figures |= attention_figures(cases, library)
    if options.only in (None, "qkv"):
        figures |= qkv_figures(options.match)
    if options.only in (None, "ring"):
        figures |= ring_report.ring_figures(options.match, ranks=8, online=True)
    if options.plot is not None:
        draw(options.plot)
        ring_report.draw(options.plot)
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
