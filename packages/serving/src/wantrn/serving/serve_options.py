"""The arguments of ``wantrn serve`` and ``wantrn precompile``: what stands over the file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wantrn.serving.argument_types import threads
from wantrn.serving.rank_arguments import add_rank_arguments

# The same as in wantrn.serving.deployment, which is too slow to import here.
_DTYPES = ("float32", "bfloat16")
_DEVICES = ("cpu", "neuron")
_ENGINES = ("local", "omni")
_LOGS = ("text", "json")
_LIMITS = ("queued", "keep_hours", "upload_megabytes", "video_megapixels")
_RANKS = (
    "tp",
    "ring",
    "ulysses",
    "cfg_parallel",
    "batch_guidance",
    "sequence_sharding",
    "replicate_cross_attention",
    "context",
    "strict_tokens",
    "tile_vae",
    "vae_parallel",
)


def add_serve(commands: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the command; an argument that was not given is None."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="make videos for others, over HTTP",
        description="Serve OpenAI's videos API until Ctrl-C. What is given here stands over what "
        "the file of --config says. Standard output has the address and nothing else.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    _add_config(parser)
    add("--name", metavar="NAME", help="what clients know the model by (default: its folder's)")
    add("--store", metavar="DIR", type=Path, help="jobs and videos (default: wantrn-store)")
    add("--host", metavar="ADDRESS", help="the address to listen at (default: 127.0.0.1)")
    add("--port", metavar="N", type=int, help="0 is one of the system's choice (default: 8000)")
    add("--loras", metavar="DIR", type=Path, help="LoRAs that videos may be made with, by name")
    add("--api-keys-file", metavar="FILE", type=Path, help="keys that may be used, one a line")
    add("--slots", metavar="N", type=int, help="videos made at once, a step each in turn (2)")
    add("--queued", metavar="N", type=int, help="the most jobs that wait (default: 64)")
    add("--keep-hours", metavar="X", type=float, help="how long videos are kept (default: 168)")
    add("--upload-megabytes", metavar="X", type=float, help="of one request (default: 32)")
    add(
        "--video-megapixels",
        metavar="X",
        type=float,
        help="the most width x height x frames, in millions (default: four default videos)",
    )
    add("--log", choices=_LOGS, help="the form of the log, which is standard error")
    add("--trace-endpoint", metavar="URL", help="a collector for OpenTelemetry's traces (none)")
    add("--print-schema", action=_PrintSchema, help="print the schema of --config's file, and exit")
    _add_engine(parser)
    return parser


def add_precompile(commands: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the command; an argument that was not given is None."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "precompile",
        help="make a server's first start quick",
        description="Make a short video of each bucket on the ranks of a deployment, and end. What "
        "a device's compiler keeps of it is there when the server starts. Takes what serve takes "
        "of the model, the engine and the ranks, and ignores the rest of the file of --config.",
        allow_abbrev=False,
    )
    _add_config(parser)
    _add_engine(parser)
    return parser


def given_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """What was given, by the names of ``Deployment``; its parts are there even if empty."""
    given = {name: value for name, value in arguments.items() if value is not None}
    ranks = {name: given.pop(name) for name in _RANKS if name in given}
    limits = {name: given.pop(name) for name in _LIMITS if name in given}
    trace = {"endpoint": given.pop("trace_endpoint")} if "trace_endpoint" in given else {}
    return {**given, "ranks": ranks, "limits": limits, "trace": trace}


def _add_config(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", metavar="FILE", type=Path, help="a YAML file with any of these, and more")
    add("--model", metavar="DIR", type=Path, help="a checkpoint folder, as for generate")


def _add_engine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--engine", choices=_ENGINES, help="what makes the videos: omni is vLLM-Omni (local)")
    add(
        "--bucket",
        dest="buckets",
        metavar="WxHxFRAMES",
        type=_shape,
        action="append",
        help="a shape to be ready for; with any, no others are made; may be repeated",
    )
    add("--dtype", choices=_DTYPES, help="number format of the weights that are not FP8")
    add("--device", choices=_DEVICES, help="where the transformers compute (default: cpu)")
    add("--threads", metavar="N", type=threads, help="CPU threads of each rank")
    add_rank_arguments(parser)
    parser.set_defaults(**dict.fromkeys(_RANKS))


class _PrintSchema(argparse.Action):
    """As ``--help``: whatever else is given, this is all that is done."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *others: object) -> None:
        from wantrn.serving.deployment import schema_text

        sys.stdout.write(schema_text())
        parser.exit()


def _shape(value: str) -> dict[str, int]:
    parts = value.split("x")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{value!r} is no shape such as 832x480x81")
    return dict(zip(("width", "height", "frames"), map(int, parts), strict=True))
