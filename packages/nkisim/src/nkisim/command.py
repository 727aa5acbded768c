"""The command `nkisim`: run, time and check a kernel in a file.

| exit status | meaning |
|---|---|
| 0 | done |
| 1 | `lint` found something |
| 2 | what was asked for cannot be done, or the kernel fails; one line says why |
| 130 | stopped by Ctrl-C |
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

import nkisim
from nkisim.command_inputs import Inputs, inputs_of
from nkisim.command_kernel import CommandError, load_kernel
from nkisim.errors import NkiError
from nkisim.settings import Rules, target_of
from nkisim.simulation import launch, prepared
from nkisim.trace import Trace

# frames of these are not where the kernel goes wrong
_OURS = frozenset({"nkisim", "numpy", "ml_dtypes", "importlib"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (by default the process's) and return its exit status.

    `SystemExit` comes out of arguments that cannot be parsed (2), `--help` and `--version` (0).
    """
    options = _parser().parse_args(argv)
    try:
        status: int = options.action(options)
        return status
    except KeyboardInterrupt:
        print(f"{options.prog}: stopped", file=sys.stderr)
        return 130
    except Exception as error:
        # the kernel's code may raise anything
        if options.traceback and not isinstance(error, CommandError):
            traceback.print_exception(error)
        print(f"{options.prog}: error: {_described(error)}", file=sys.stderr)
        return 2


def _described(error: Exception) -> str:
    """What happened, and the innermost line of the kernel where it did."""
    text = str(error) if isinstance(error, NkiError) else f"{type(error).__name__}: {error}"
    where = _position(error.__traceback__)
    if where is not None and where not in text:
        first, newline, rest = text.partition("\n")
        text = f"{first} at {where}{newline}{rest}"
    return "\n".join([text, *getattr(error, "__notes__", ())])


def _position(trace: TracebackType | None) -> str | None:
    found = None
    while trace is not None:
        names = trace.tb_frame.f_globals
        package = names.get("__package__") or names.get("__name__") or ""
        if package.partition(".")[0] not in _OURS:
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


class _Parser(argparse.ArgumentParser):
    """One line for an error, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def _parser() -> _Parser:
    parser = _Parser(prog="nkisim", description="NKI kernels on a CPU.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=nkisim.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    run = _command(commands, "run", _run, "run a kernel and describe what it returns")
    _add_inputs(run)
    run.add_argument("--save", type=Path, metavar="FILE.npz", help="where to put the results")
    profile = _command(commands, "profile", _profile, "report the time a kernel takes on the chip")
    _add_inputs(profile)
    profile.add_argument(
        "--numerics",
        action="store_true",
        help="compute values too; where they decide what the kernel does",
    )
    profile.add_argument("--json", type=Path, metavar="FILE", help="the report as JSON")
    profile.add_argument(
        "--perfetto", type=Path, metavar="FILE.json", help="a trace for ui.perfetto.dev"
    )
    picture = profile.add_mutually_exclusive_group()
    picture.add_argument(
        "--plot", type=Path, metavar="FILE", help="the picture, .png or .svg (default: KERNEL.png)"
    )
    picture.add_argument("--no-plot", action="store_true", help="no picture")
    lint = _command(commands, "lint", _lint, "find what AWS's compiler or the device rejects")
    lint.add_argument(
        "--frontend",
        choices=("parser", "tracer"),
        help="of AWS's compiler: up to NKI 0.6, or 0.7 (default: both)",
    )
    return parser


def _command(commands: Any, name: str, action: Any, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    parser.set_defaults(action=action, prog=parser.prog)
    parser.add_argument("kernel", metavar="FILE:KERNEL")
    parser.add_argument(
        "--traceback", action="store_true", help="where an error came from, call by call"
    )
    return parser


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shapes",
        nargs="+",
        default=[],
        metavar="[NAME=]SIZES[:DTYPE]",
        help="tensors, such as q=1x4096x128:bfloat16 (default type: float32); values are random",
    )
    parser.add_argument(
        "--inputs",
        type=Path,
        metavar="FILE.npz",
        help="tensors with their values, by the kernel's names for them; NAME:DTYPE rounds",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        dest="others",
        metavar="NAME=VALUE",
        help="other arguments, as Python literals: scale=0.125 causal=True",
    )
    parser.add_argument("--ranks", type=int, default=1, help="that run the kernel (default: 1)")
    parser.add_argument("--lnc", type=int, choices=(1, 2), help="cores of each rank")
    parser.add_argument(
        "--target", help="gen2, gen3, gen4 or trn1, trn2, trn3 (default: trn3, or what the "
        "environment variable NEURON_PLATFORM_TARGET_OVERRIDE names)"
    )  # fmt: skip
    parser.add_argument(
        "--rules",
        nargs="+",
        default=[],
        metavar="RULE=LEVEL",
        help="levels that differ from the usual ones: error, warn or off",
    )
    parser.add_argument("--seed", type=int, default=0, help="of random values (default: 0)")


def _settings(options: argparse.Namespace) -> nkisim.Settings:
    overrides: dict[str, Any] = {"seed": options.seed}
    if options.seed < 0:
        raise CommandError(f"--seed is {options.seed}; it must be at least 0")
    if options.ranks < 1:
        raise CommandError(f"--ranks is {options.ranks}; it must be at least 1")
    if options.target is not None:
        try:
            overrides["target"] = target_of(options.target)
        except ValueError as error:
            raise CommandError(f"--{error}") from None
    levels: dict[str, Any] = {}
    for text in options.rules:
        rule, _, level = text.partition("=")
        if rule not in Rules.__dataclass_fields__ or level not in ("error", "warn", "off"):
            raise CommandError(
                f"--rules {text!r} must be RULE=LEVEL: the level error, warn or off, the rule one "
                f"of {', '.join(Rules.__dataclass_fields__)}"
            )
        levels[rule] = level
    return nkisim.Settings(rules=Rules(**levels)).changed(**overrides)


def _check_output(option: str, path: Path | None, suffixes: tuple[str, ...] = ()) -> None:
    """Before the kernel runs, that the file can be written afterwards."""
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise CommandError(f"{option} is {str(path)!r}; it must end in {' or '.join(suffixes)}")
    if not path.parent.is_dir() or path.is_dir():
        raise CommandError(f"{option} is {str(path)!r}; it must be a file in a folder that exists")


def _launch(options: argparse.Namespace, numerics: bool, fits: bool) -> tuple[list[Any], Trace]:
    """Run the kernel; the results of each rank, and the trace."""
    settings = _settings(options).changed(numerics=numerics)
    kernel = prepared(load_kernel(options.kernel), options.lnc)
    inputs: Inputs = inputs_of(kernel, options.shapes, options.others, options.inputs)
    arguments = [
        inputs.arrays(options.seed, rank) if numerics else inputs.specs()
        for rank in range(options.ranks)
    ]
    return launch(kernel, settings, options.ranks, arguments, fits=fits)


def _run(options: argparse.Namespace) -> int:
    _check_output("--save", options.save, (".npz",))
    ranks, _ = _launch(options, numerics=True, fits=True)
    results: dict[str, Any] = {}
    for rank, returned in enumerate(ranks):
        prefix = f"rank{rank}." if len(ranks) > 1 else ""
        results.update(_flat(f"{prefix}result", returned))
    for name, value in results.items():
        print(_summary(name, value))
    if not results:
        print("the kernel returns nothing")
    if options.save is not None:
        np.savez(options.save, **{name: _savable(value) for name, value in results.items()})
    return 0


def _flat(name: str, value: Any) -> dict[str, Any]:
    """The tensors in what a kernel returned, by where they are in it."""
    if isinstance(value, (list, tuple)):
        items = [(f"{name}{i}", item) for i, item in enumerate(value)]
    elif isinstance(value, dict):
        items = [(f"{name}.{key}", item) for key, item in value.items()]
    else:
        return {} if value is None else {name: value}
    return {key: found for at, item in items for key, found in _flat(at, item).items()}


def _summary(name: str, value: Any) -> str:
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
    _check_output("--json", options.json)
    _check_output("--perfetto", options.perfetto, (".json",))
    _check_output("--plot", options.plot, (".png", ".svg"))
    drawable = find_spec("matplotlib") is not None
    if options.plot is not None and not drawable:
        raise CommandError("--plot needs matplotlib, which is not installed: nkisim[plot] has it")
    _, trace = _launch(options, options.numerics, fits=False)
    report = nkisim.report.make(trace)
    print(report.table())
    if options.json is not None:
        options.json.write_text(json.dumps(report.json(), indent=1) + "\n")
    if options.perfetto is not None:
        report.perfetto(options.perfetto)
    if not options.no_plot:
        _draw(report, options.plot or Path(f"{options.kernel.rpartition(':')[2]}.png"), drawable)
    return 0


def _draw(report: nkisim.Report, path: Path, drawable: bool) -> None:
    if not drawable:
        print("\nno picture: matplotlib is not installed; nkisim[plot] has it")
        return
    report.plot(path)
    print(f"\npicture: {path}")


def _lint(options: argparse.Namespace) -> int:
    findings = nkisim.lint(load_kernel(options.kernel), options.frontend)
    for finding in findings:
        print(finding)
    print(f"{len(findings)} finding{'' if len(findings) == 1 else 's'}")
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
