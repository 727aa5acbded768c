"""The command `nkisim`: run, time and check a kernel in a file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import nkisim
from nkisim.command_inputs import ArgumentText, inputs_of, load_kernel
from nkisim.errors import NkiError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 0, 1 for findings of `lint`, 2 for an error."""
    options = _parser().parse_args(argv)
    try:
        status: int = options.action(options)
        return status
    except (ArgumentText, NkiError, OSError, TypeError, ValueError, IndexError) as error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        print(f"nkisim: {error}{notes}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nkisim", description="NKI kernels on a CPU.")
    parser.add_argument("--version", action="version", version=nkisim.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a kernel and describe what it returns")
    _add_kernel(run)
    run.add_argument("--inputs", type=Path, metavar="FILE.npz", help="arrays, by argument name")
    run.add_argument("--save", type=Path, metavar="FILE.npz", help="where to put the results")
    run.set_defaults(action=_run)
    profile = commands.add_parser("profile", help="report the time that a kernel takes on the chip")
    _add_kernel(profile)
    profile.add_argument(
        "--numerics", action="store_true", help="compute values too; needed where they decide"
    )
    profile.add_argument("--json", type=Path, metavar="FILE", help="the report as JSON")
    profile.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="a trace for ui.perfetto.dev"
    )
    profile.add_argument(
        "--plot", type=Path, metavar="FILE", help="the picture (default: KERNEL.png)"
    )
    profile.add_argument("--no-plot", action="store_true", help="no picture")
    profile.set_defaults(action=_profile)
    lint = commands.add_parser("lint", help="find what AWS's compiler or the device would reject")
    lint.add_argument("kernel", metavar="FILE:KERNEL")
    lint.set_defaults(action=_lint)
    return parser


def _add_kernel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernel", metavar="FILE:KERNEL")
    parser.add_argument(
        "--shapes",
        nargs="+",
        default=[],
        metavar="[NAME=]SIZES[:DTYPE]",
        help="tensor arguments, such as q=1x4096x128:bfloat16 (default dtype: float32)",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        dest="others",
        metavar="NAME=VALUE",
        help="other arguments, as Python literals: scale=0.125 causal=True",
    )
    parser.add_argument("--lnc", type=int, choices=(1, 2), help="cores of the rank")
    parser.add_argument("--target", default=None, help="gen2, gen3, gen4 or trn1, trn2, trn3")
    parser.add_argument("--seed", type=int, default=0, help="of random inputs and engines")


def _settings(options: argparse.Namespace) -> nkisim.Settings:
    overrides: dict[str, Any] = {"seed": options.seed}
    if options.target is not None:
        overrides["target"] = options.target
    return nkisim.Settings().changed(**overrides)


def _run(options: argparse.Namespace) -> int:
    kernel = load_kernel(options.kernel)
    settings = _settings(options)
    positional, named = inputs_of(options.shapes, options.others, options.seed, True)
    if options.inputs is not None:
        with np.load(options.inputs) as arrays:
            named.update(arrays)
    simulation = nkisim.simulate(kernel, settings)
    if options.lnc is not None:
        simulation = simulation[options.lnc]
    results = _flat("result", simulation(*positional, **named))
    for name, value in results.items():
        print(_described(name, value))
    if options.save is not None:
        np.savez(options.save, **{name: _savable(value) for name, value in results.items()})
    return 0


def _flat(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, (list, tuple)):
        return {k: v for i, item in enumerate(value) for k, v in _flat(f"{name}{i}", item).items()}
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in _flat(str(key), item).items()}
    return {} if value is None else {name: value}


def _described(name: str, value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return f"{name}: {value!r}"
    numbers = value.astype(np.float64)
    return (
        f"{name}: {list(value.shape)} {value.dtype}, least {numbers.min():.6g}, "
        f"largest {numbers.max():.6g}, mean {numbers.mean():.6g}"
    )


def _savable(value: Any) -> Any:
    """NumPy's own file format does not know the types of ml_dtypes; float32 holds them all."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "V":
        return value.astype(np.float32)
    return value


def _profile(options: argparse.Namespace) -> int:
    kernel = load_kernel(options.kernel)
    settings = _settings(options)
    positional, named = inputs_of(options.shapes, options.others, options.seed, options.numerics)
    _, trace = nkisim.simulation.launch(
        nkisim.simulation.prepared(kernel, options.lnc),
        settings.changed(numerics=options.numerics),
        1,
        [(positional, named)],
    )
    report = nkisim.report.make(trace)
    print(report.table())
    if options.json is not None:
        options.json.write_text(json.dumps(report.json(), indent=1) + "\n")
    if options.perfetto is not None:
        report.perfetto(options.perfetto)
    if options.plot is not None:
        report.plot(options.plot)
    elif not options.no_plot:
        _default_picture(report, Path(f"{options.kernel.rpartition(':')[2]}.png"))
    return 0


def _default_picture(report: nkisim.report.Report, path: Path) -> None:
    if find_spec("matplotlib") is None:
        print("\nno picture: it needs matplotlib (pip install 'nkisim[plot]')")
        return
    report.plot(path)
    print(f"\npicture: {path}")


def _lint(options: argparse.Namespace) -> int:
    findings = nkisim.lint(load_kernel(options.kernel))
    for finding in findings:
        print(finding)
    print(f"{len(findings)} finding{'' if len(findings) == 1 else 's'}")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
