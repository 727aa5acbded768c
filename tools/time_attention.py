"""Compare the modelled time of AWS's attention_cte with the times that AWS publishes.

    python tools/time_attention.py --nki-library CHECKOUT [--match TEXT] [--limit N] [--json]

CHECKOUT is a clone of github.com/aws-neuron/nki-library. Its tests of attention_cte hold, beside
the shapes, the time of each on a Trainium2 (the field tpbSgCyclesSum, in picoseconds). The kernel
runs in nkisim as it is, without numerics, and the model's time is set against the published one.
Nothing of the checkout is kept; shapes and times are read from it.

The summary also says which launch would fit best: the time that, added to each modelled kernel,
leaves the smallest squares of relative errors.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from nki_library import assigned, constant, load

import nkisim
from nkisim import TensorSpec

TESTS = "test/integration/nkilib/core/attention/test_attention_cte.py"
KERNEL = "nkilib_src.nkilib.core.attention.attention_cte"


@dataclass(frozen=True)
class Point:
    """One published time: the test's parameters by name, and microseconds."""

    parameters: dict[str, Any]
    published_us: float

    @property
    def lnc(self) -> int:
        lnc: int = self.parameters.get("vnc_degree", 1)
        return lnc

    def __str__(self) -> str:
        p = self.parameters
        flags = [name for name in ("causal_mask", "tp_q", "tp_k", "tp_out", "sink") if p.get(name)]
        if p.get("sliding_window"):
            flags.append(f"window {p['sliding_window']}")
        if p.get("prior_len"):
            flags.append(f"prior {p['prior_used_len']}/{p['prior_len']}")
        sizes = f"{p['bs']}x{p['seqlen_q']}x{p['seqlen_kv']} d{p['d']} {p['dtype']}"
        return f"LNC{self.lnc} {sizes} {' '.join(flags)}"


@dataclass(frozen=True)
class Result:
    """A point with the model's time; `error` is relative to the published one, with its sign."""

    point: Point
    modelled_us: float
    kernel_us: float
    instructions: int
    seconds: float

    @property
    def error(self) -> float:
        return self.modelled_us / self.point.published_us - 1.0

    @property
    def kinds(self) -> list[str]:
        """The groups of points that this one belongs to."""
        p = self.point.parameters
        mask = "causal" if p.get("causal_mask") else "not causal"
        found = [f"LNC{self.point.lnc}", f"d {p['d']}"]
        found.append("window" if p.get("sliding_window") else mask)
        if p.get("prior_len"):
            found.append("prior")
        return found


def points(checkout: Path) -> Iterator[Point]:
    """The published times in the library's tests.

    A test's parameters are a string of names and a list of lists; the last name is the time, or a
    pair whose first is that of Trainium2. Entries without a time are left out.
    """
    tables = assigned(checkout / TESTS)
    for name, value in tables.items():
        names = tables.get(name.replace("_perms", "_params"))
        if not name.endswith("_perms") or names is None:
            continue
        parameters = [entry.strip() for entry in ast.literal_eval(names).split(",")]
        if parameters[-1] != "tpbSgCyclesSum" or not isinstance(value, ast.List):
            continue
        for entry in value.elts:
            assert isinstance(entry, ast.List)
            row = [constant(item) for item in entry.elts]
            cycles = row[-1][0] if isinstance(row[-1], tuple) else row[-1]
            if cycles is not None:
                yield Point(dict(zip(parameters[:-1], row[:-1], strict=True)), cycles / 1e6)


def arguments(point: Point) -> dict[str, Any]:
    """The kernel's arguments for a point, without values except for the length of the prefix."""
    p = point.parameters
    bs, d, dtype = p["bs"], p["d"], p["dtype"]

    def spec(length: int, transposed: bool) -> TensorSpec:
        return TensorSpec((bs, d, length) if transposed else (bs, length, d), dtype)

    tp_q, tp_k = bool(p["tp_q"]), bool(p.get("tp_k", False))
    kwargs: dict[str, Any] = {
        "q": spec(p["seqlen_q"], not tp_q),
        "k": spec(p["seqlen_kv"], not tp_k),
        "v": spec(p["seqlen_kv"], False),
        "scale": p["softmax_scale"],
        "causal_mask": p["causal_mask"],
        "tp_q": tp_q,
        "tp_k": tp_k,
        "tp_out": p["tp_out"],
        "sliding_window": p.get("sliding_window", 0),
    }
    if p.get("sink"):
        kwargs["sink"] = TensorSpec((bs, 1), "float32")
    if p.get("prior_len"):
        kwargs["k_prior"] = spec(p["prior_len"], not tp_k)
        kwargs["v_prior"] = spec(p["prior_len"], False)
        kwargs["prior_used_len"] = np.full((1,), p["prior_used_len"], np.int32)
    return kwargs


def measure(kernel: Any, point: Point) -> Result:
    """The model's time of a point."""
    began = time.perf_counter()
    # the library's own remarks on its shapes would hide the results
    with contextlib.redirect_stdout(sys.stderr):
        report = nkisim.profile(
            kernel[point.lnc], target="trn2", numerics=False, **arguments(point)
        )
    seconds = time.perf_counter() - began
    instructions = report.json()["instructions"]
    return Result(point, report.total_us, report.kernel_us, instructions, seconds)


def best_launch_us(results: list[Result]) -> float:
    """The launch that leaves the smallest sum of ((kernel + launch) / published - 1) ** 2."""
    weights = [1.0 / r.point.published_us for r in results]
    missing = sum(w * (1.0 - w * r.kernel_us) for w, r in zip(weights, results, strict=True))
    return missing / sum(w * w for w in weights)


def summary(results: list[Result]) -> dict[str, float]:
    """Figures of all points: absolute and signed errors, and the launch that fits best."""
    errors = [abs(result.error) for result in results]
    return {
        "points": len(results),
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "rms_error": statistics.fmean(error * error for error in errors) ** 0.5,
        "median_signed_error": statistics.median(result.error for result in results),
        "best_launch_us": best_launch_us(results),
    }


def print_kinds(results: list[Result]) -> None:
    """The errors of each group of points."""
    kinds: dict[str, list[float]] = {}
    for result in results:
        for kind in result.kinds:
            kinds.setdefault(kind, []).append(result.error)
    print(f"{'':12}{'points':>7} {'median':>8} {'from':>8} {'to':>8}")
    for kind, errors in sorted(kinds.items()):
        middle = statistics.median(errors)
        print(f"{kind:12}{len(errors):7} {middle:+8.1%} {min(errors):+8.1%} {max(errors):+8.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Modelled against published times.")
    parser.add_argument("--nki-library", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--match", default="", help="only points whose description has this text")
    parser.add_argument("--limit", type=int, default=None, help="only so many points")
    parser.add_argument("--json", action="store_true", help="a last line of figures as JSON")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=nkisim.NkiWarning)
    kernel = load(options.nki_library, KERNEL).attention_cte
    chosen = [p for p in points(options.nki_library) if options.match in str(p)]
    if not chosen:
        parser.error(f"no point's description has the text {options.match!r}")
    results = []
    print(f"{'published':>10} {'modelled':>10} {'error':>8}  point")
    for point in chosen[: options.limit]:
        result = measure(kernel, point)
        results.append(result)
        times = f"{point.published_us:8.0f}us {result.modelled_us:8.0f}us {result.error:+8.1%}"
        print(f"{times}  {point}", flush=True)
    print_kinds(results)
    figures = summary(results)
    seconds = sum(result.seconds for result in results)
    print(
        f"{len(results)} points: median error {figures['median_error']:.1%}, worst "
        f"{figures['worst_error']:.1%}; a launch of {figures['best_launch_us']:.1f} us fits best; "
        f"{sum(r.instructions for r in results)} instructions in {seconds:.0f} s"
    )
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
