"""Where two runs of the denoiser begin to differ: step by step, module by module.

    ./pants run tools/capture_steps.py -- record fp32 --dtype float32 --steps 20
    ./pants run tools/capture_steps.py -- record bf16 --inputs-of fp32 --dtype bfloat16
    ./pants run tools/capture_steps.py -- record sim --inputs-of fp32 --dtype bfloat16 --backend sim
    ./pants run tools/capture_steps.py -- compare fp32 sim --reference bf16 --picture sim.png

`record` writes a new folder with what modules give at every step. `compare` measures the errors of
one against the first, beside those of a reference in the same precision, and says which module of
which step is the first that is worse than it should be. Its exit status is 0 if none is, 1 if one
is, and 2 if the captures cannot be compared. See docs/step-capture.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from capture_compare import CompareOptions, compare_captures
from capture_record import RecordOptions, record

from wantrn.kernels.backend import Backend
from wantrn.model.capture import DEFAULT_MODULES, CaptureError
from wantrn.model.device import DEVICES
from wantrn.model.info import DTYPES
from wantrn.serving.argument_types import positive, size, text
from wantrn.serving.cli import status_of
from wantrn.serving.rank_arguments import add_rank_arguments
from wantrn.serving.video_arguments import add_video_arguments
from wantrn.tiny import CHECKPOINT


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of the command with ``argv``, by default the process's."""
    given = sys.argv[1:] if argv is None else list(argv)
    options = _parser().parse_args(given)
    return status_of(f"capture_steps {options.command}", lambda: _run(options, given))


def _run(options: argparse.Namespace, given: Sequence[str]) -> int:
    try:
        if options.command == "record":
            return record(RecordOptions.of(options), given)
        return compare_captures(CompareOptions.of(options))
    except CaptureError as error:
        print(f"capture_steps {options.command}: error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    _add_record(commands.add_parser("record", help="capture a run"))
    _add_compare(commands.add_parser("compare", help="captures beside each other"))
    return parser


def _add_record(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", type=Path, help="a new folder, for the capture")
    add("--model", metavar="DIR", type=Path, default=CHECKPOINT, help="(default: the tiny one)")
    add("--dtype", choices=DTYPES, help="of the weights (default: the checkpoint's)")
    backends = [backend.value for backend in Backend]
    add("--backend", choices=backends, default="auto", help="who computes (default: %(default)s)")
    add("--device", choices=DEVICES, default="cpu", help="where (default: %(default)s)")
    like = parser.add_mutually_exclusive_group()
    like.add_argument(
        "--inputs-of",
        metavar="CAPTURE",
        type=Path,
        help="have every step start from what that capture's has started from; what else is not "
        "given is as there too",
    )
    like.add_argument(
        "--like",
        metavar="CAPTURE",
        type=Path,
        help="what is not given is as in that capture, but the inputs of the steps",
    )
    modules = " ".join(DEFAULT_MODULES)
    add("--modules", metavar="NAME", nargs="+", help=f"names, with * ? [] (default: {modules})")
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument("--every", metavar="N", type=positive, help="capture each N-th step")
    steps.add_argument("--at", metavar="STEP", type=int, nargs="+", help="these steps, from 0")
    add("--every-token", metavar="N", type=positive, help="keep each N-th token of a module")
    add("--prompt", type=text, help="(default: a red ball rolls to the right)")
    add_video_arguments(parser, size)
    add_rank_arguments(parser)


def _add_compare(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("fp32", type=Path, help="the capture that is taken to be exact")
    add("target", type=Path, help="the one that is judged")
    add("--reference", metavar="CAPTURE", type=Path, help="one that errs as it should")
    add("--picture", metavar="FILE", type=Path, help="draw it; needs matplotlib")
    add("--json", action="store_true", help="one object on the last line")
    limits = parser.add_argument_group("limits").add_argument
    limits(
        "--largest-ratio",
        metavar="X",
        type=float,
        help="the largest error is below X of the reference's (default 3)",
    )
    limits(
        "--overlap",
        metavar="X",
        type=float,
        help="histograms of the errors overlap by more than X (default 0.9)",
    )
    limits(
        "--same-trends",
        action="store_true",
        help="an error that jumps or grows over the steps does so in the reference too",
    )
    limits(
        "--relative",
        metavar="X",
        type=float,
        help="the RMS error is below X of the tensor (needed without --reference)",
    )


if __name__ == "__main__":
    sys.exit(main())
