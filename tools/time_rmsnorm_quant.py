"""Compare the modelled time of AWS's rmsnorm_quant with the times that AWS publishes.

    python tools/time_rmsnorm_quant.py --nki-library CHECKOUT [--json]

As tools/time_attention.py, for a kernel that spends its time on Vector and Scalar. No constant of
the model was chosen on these times.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import statistics
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nki_library import assigned, constant, load

import nkisim
from nkisim import TensorSpec

TESTS = "test/integration/nkilib/core/rmsnorm/test_rmsnorm_quant.py"
KERNEL = "nkilib_src.nkilib.core.rmsnorm.rmsnorm_quant"
# the table of the library's tests that has times, and the columns that make a shape
TABLE = "rmsnorm_quant_lnc"
SHAPE = ("lnc_degree", "batch", "seqlen", "hidden", "quant_only", "lower_bound")


@dataclass(frozen=True)
class Point:
    """One published time, in microseconds, of `[batch, seqlen, hidden]` in bf16, row by row."""

    lnc_degree: int
    batch: int
    seqlen: int
    hidden: int
    quant_only: bool
    lower_bound: float
    published_us: float

    def __str__(self) -> str:
        flags = " quant_only" if self.quant_only else ""
        flags += f" lower_bound {self.lower_bound}" if self.lower_bound else ""
        return f"LNC{self.lnc_degree} {self.batch}x{self.seqlen}x{self.hidden}{flags}"


def points(checkout: Path) -> Iterator[Point]:
    """The published times in the library's tests; of each shape the first, for the values of the
    input make no difference to the model."""
    tables = assigned(checkout / TESTS)
    names = [name.strip() for name in ast.literal_eval(tables[f"{TABLE}_params"]).split(",")]
    rows = tables[f"{TABLE}_perms"]
    assert isinstance(rows, ast.List)
    seen: list[dict[str, Any]] = []
    for row in rows.elts:
        assert isinstance(row, ast.Tuple)
        cells = dict(zip(names, row.elts, strict=True))
        picoseconds = constant(cells["tpbSgCyclesSum"])
        shape = {name: constant(cells[name]) for name in SHAPE}
        if picoseconds is None or shape in seen:
            continue
        seen.append(shape)
        yield Point(published_us=picoseconds / 1e6, **shape)


def modelled_us(module: Any, point: Point) -> float:
    """The model's time of a point."""
    normalization = module.NormType.NO_NORM if point.quant_only else module.NormType.RMS_NORM
    settings = module.RmsNormQuantKernelArgs(lower_bound=point.lower_bound, norm_type=normalization)
    hidden = TensorSpec((point.batch, point.seqlen, point.hidden), "bfloat16")
    weights = TensorSpec((1, point.hidden), "bfloat16")
    # the library's own remarks on its shapes would hide the results
    with contextlib.redirect_stdout(sys.stderr):
        report = nkisim.profile(
            module.rmsnorm_quant_kernel[point.lnc_degree],
            hidden,
            weights,
            settings,
            target="trn2",
            numerics=False,
        )
    return report.total_us


def main() -> None:
    parser = argparse.ArgumentParser(description="Modelled against published times.")
    parser.add_argument("--nki-library", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--json", action="store_true", help="a last line of figures as JSON")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=nkisim.NkiWarning)
    module = load(options.nki_library, KERNEL)
    errors = []
    print(f"{'published':>10} {'modelled':>10} {'error':>8}  point")
    for point in points(options.nki_library):
        modelled = modelled_us(module, point)
        errors.append(modelled / point.published_us - 1.0)
        times = f"{point.published_us:8.0f}us {modelled:8.0f}us {errors[-1]:+8.1%}"
        print(f"{times}  {point}", flush=True)
    median = statistics.median(errors)
    print(f"{len(errors)} points: from {min(errors):+.1%} to {max(errors):+.1%}, {median:+.1%}")
    if options.json:
        figures = {"points": len(errors), "least": min(errors), "most": max(errors)}
        print(json.dumps(figures | {"median": median}))


if __name__ == "__main__":
    main()
