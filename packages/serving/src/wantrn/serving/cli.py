"""The command ``wantrn``: its arguments, and the boundary where errors become exit statuses.

| exit status | meaning |
|---|---|
| 0 | done |
| 1 | the run failed, ``inspect`` found a fault, or ``compare`` too much; a traceback means a bug |
| 2 | what was asked for cannot be done; one line on standard error says why |
| 130, 143 | stopped by SIGINT (Ctrl-C) or SIGTERM; nothing half-written has its final name |

Nothing heavy is imported before the arguments are known to be good.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import wantrn.serving.modules  # noqa: F401  # knows where they are before the folder can change
from wantrn.model.errors import CheckpointError, RequestError
from wantrn.serving.argument_types import size, text, threads
from wantrn.serving.client_options import add_client
from wantrn.serving.compare_options import add_compare
from wantrn.serving.lora_options import LORA_OPTIONS, add_lora_options
from wantrn.serving.rank_arguments import add_rank_arguments
from wantrn.serving.serve_options import add_precompile, add_serve, given_of
from wantrn.serving.video_arguments import add_video_arguments

# The same as in wantrn.model, which is too slow to import here.
SCHEDULERS = ("unipc", "euler")
DTYPES = ("float32", "bfloat16")
DEVICES = ("cpu", "neuron")
GROUPS = ("self_attention", "cross_attention", "feed_forward")
LIMITS = (448.0, 240.0)


class Stopped(BaseException):
    """A signal asked the run to stop. No ``Exception``, so that only ``main`` catches it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_status = 128 + signal_number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with ``argv`` (by default the process's) and return its exit status.

    ``SystemExit`` comes out of arguments that cannot be parsed (2) and ``--help`` (0).
    """
    arguments = vars(_parser().parse_args(argv))
    run: Callable[[dict[str, Any]], int] = arguments.pop("run")
    return status_of(f"wantrn {arguments.pop('command')}", lambda: run(arguments))


def status_of(name: str, run: Callable[[], int], says_stopped: bool = True) -> int:
    """The exit status of the command ``name``, whose work is ``run``; errors are told.

    A process that another one stops, and speaks for, does not say so itself.
    """
    try:
        with _signals_as_exceptions():
            return run()
    except Stopped as stopped:
        if says_stopped:
            print(f"{name}: stopped", file=sys.stderr)
        return stopped.exit_status
    except RequestError as error:
        print(f"{name}: error: {_as_option(error)}", file=sys.stderr)
    except CheckpointError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
    return 2


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """SIGINT and SIGTERM raise ``Stopped``, so that what was begun is cleaned up.

    A signal that is ignored from the start (as ``nohup`` does) stays ignored.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _as_option(error: RequestError) -> str:
    """The error's text, beginning with what the user typed."""
    if error.field in ("prompt", "directory", "source", "destination", "A", "B", "video"):
        return str(error)
    option = "bucket" if error.field == "buckets" else error.field.replace("_", "-")
    return f"--{option}{str(error).removeprefix(error.field)}"


def _generate(arguments: dict[str, Any]) -> int:
    from wantrn.serving.generate import GenerateOptions, generate
    from wantrn.serving.rank_options import RankOptions

    ranks = RankOptions(**{field.name: arguments.pop(field.name) for field in fields(RankOptions)})
    for name in LORA_OPTIONS:
        arguments[name] = tuple(arguments[name])
    return generate(GenerateOptions(**arguments, ranks=ranks))


def _inspect(arguments: dict[str, Any]) -> int:
    from wantrn.serving.inspect_command import inspect

    return inspect(arguments["directory"])


def _quantize(arguments: dict[str, Any]) -> int:
    from wantrn.serving.quantize_command import QuantizeOptions, quantize

    return quantize(QuantizeOptions(**arguments))


def _compare(arguments: dict[str, Any]) -> int:
    from wantrn.serving.compare_command import CompareOptions, compare

    return compare(CompareOptions(**arguments))


def _serve(arguments: dict[str, Any]) -> int:
    from wantrn.serving.serve import serve

    return serve(arguments.pop("config"), given_of(arguments))


def _precompile(arguments: dict[str, Any]) -> int:
    from wantrn.serving.precompile import precompile

    return precompile(arguments.pop("config"), given_of(arguments))


def _client(arguments: dict[str, Any]) -> int:
    from wantrn.serving.client_command import ClientOptions, client

    options = ClientOptions(arguments.pop("server"), arguments.pop("patience"))
    return client(arguments.pop("action"), options, arguments)


def _version(arguments: dict[str, Any]) -> int:
    from wantrn.serving.version import version

    return version()


class _Parser(argparse.ArgumentParser):
    """One line for an error, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


class _CommandParser(_Parser):
    """Names itself, and not only ``wantrn``, when it is given what it does not know."""

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        namespace, unknown = super().parse_known_args(*args, **kwargs)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return namespace, unknown


def _parser() -> _Parser:
    parser = _Parser(prog="wantrn", description="Videos from text with Wan2.2.", allow_abbrev=False)
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser
    )
    _add_generate(commands)
    inspect = commands.add_parser(
        "inspect",
        help="say what a checkpoint is and whether it is complete",
        description="Describe a checkpoint from its configuration and the headers of its files; "
        "no weights are read. The exit status is 1 if anything is missing or does not fit.",
    )
    inspect.add_argument("directory", metavar="DIR", type=Path, help="a checkpoint folder")
    inspect.set_defaults(run=_inspect)
    _add_quantize(commands)
    add_compare(commands).set_defaults(run=_compare)
    add_serve(commands).set_defaults(run=_serve)
    add_precompile(commands).set_defaults(run=_precompile)
    add_client(commands).set_defaults(run=_client)
    version = commands.add_parser("version", help="print the versions of what is at work")
    version.set_defaults(run=_version)
    return parser


def _add_generate(commands: argparse._SubParsersAction[_CommandParser]) -> None:
    parser = commands.add_parser(
        "generate",
        help="make a video",
        description="Make a video from a prompt. What is not given is the checkpoint's default, "
        "and is printed before the run.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("prompt", metavar="PROMPT", type=text, help="what the video shows")
    add(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("video.mp4"),
        help="FILE.mp4, FILE.gif, or a name without a suffix for a folder of PNG files "
        "(default: %(default)s)",
    )
    add(
        "--model",
        metavar="DIR",
        type=Path,
        help="a Wan2.2 checkpoint folder in diffusers' layout, or what quantize has made of one; "
        "without it, a tiny one, which knows coloured shapes that move",
    )
    add_video_arguments(parser, size)
    add("--scheduler", choices=SCHEDULERS, help="the solver")
    add("--dtype", choices=DTYPES, help="number format of the weights that are not FP8")
    add(
        "--device",
        choices=DEVICES,
        default=DEVICES[0],
        help="where the transformers compute: neuron is AWS Trainium (default: %(default)s)",
    )
    add(
        "--threads",
        metavar="N",
        type=threads,
        help="CPU threads of each rank (default: torch's choice, or an even share)",
    )
    add_lora_options(parser)
    add_rank_arguments(parser)
    parser.set_defaults(run=_generate)


def _add_quantize(commands: argparse._SubParsersAction[_CommandParser]) -> None:
    parser = commands.add_parser(
        "quantize",
        help="make a checkpoint with FP8 weights",
        description="Write a checkpoint whose transformers have their linear layers in FP8, one "
        "scale for each output channel, with a copy of all else, and print the error of every "
        "layer. A run that was stopped is taken up by giving the same command again.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "source",
        metavar="SRC",
        type=Path,
        help="a checkpoint folder, or one transformer (its folder, index or safetensors file), "
        "which is then all that is written",
    )
    add(
        "destination",
        metavar="DST",
        type=Path,
        help="the folder to make; work grows in DST.partial",
    )
    add(
        "--groups",
        metavar="GROUP,...",
        type=_groups,
        default=GROUPS,
        help=f"what becomes FP8, of {', '.join(GROUPS)} (default: all)",
    )
    add(
        "--limit",
        type=float,
        choices=LIMITS,
        default=LIMITS[0],
        help="the largest code: 448 for Trainium3 (default), 240 for Trainium2",
    )
    add("--threads", metavar="N", type=threads, help="CPU threads (default: torch's choice)")
    parser.set_defaults(run=_quantize)


def _groups(value: str) -> tuple[str, ...]:
    groups = tuple(value.split(","))
    for group in groups:
        if group not in GROUPS:
            raise argparse.ArgumentTypeError(
                f"unknown group {group!r}; allowed are {', '.join(GROUPS)}"
            )
    return groups


if __name__ == "__main__":
    sys.exit(main())
