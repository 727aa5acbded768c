"""The arguments of ``wantrn client`` and its actions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from wantrn.serving.argument_types import positive, seconds, size, text
from wantrn.serving.video_arguments import add_video_arguments

_SERVER = "http://127.0.0.1:8000"
_PATIENCE = 120.0
_VARIANTS = ("video", "thumbnail", "spritesheet")


def add_client(commands: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the command; its arguments come with the name of the action as ``action``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "client",
        help="ask a server for videos",
        description="Have videos made by a server of wantrn serve, and see to them. The key, where "
        "the server needs one, is taken from the environment: WANTRN_API_KEY.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_create(actions)
    several = _action(actions, "list", "show the newest videos, one a line")
    several.add_argument(
        "--limit", metavar="N", type=positive, default=20, help="the most (default: %(default)s)"
    )
    for name, what in (
        ("show", "show all that is known of a video"),
        ("cancel", "stop a video, which stays as failed"),
        ("delete", "remove a video, and stop it if it is being made"),
    ):
        _action(actions, name, what).add_argument("id", metavar="ID", type=text, help="the video's")
    fetch = _action(actions, "download", "fetch a finished video, or a picture of it")
    add = fetch.add_argument
    add("id", metavar="ID", type=text, help="the video's")
    add("--output", metavar="FILE", type=Path, help="(default: the id, as .mp4, .webp or .jpg)")
    add("--variant", choices=_VARIANTS, default=_VARIANTS[0], help="(default: %(default)s)")
    return parser


def _action(
    actions: argparse._SubParsersAction[Any], name: str, what: str
) -> argparse.ArgumentParser:
    """An action, with the options that all have."""
    description = f"{what[0].upper()}{what[1:]}."
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=what, description=description, allow_abbrev=False
    )
    add = parser.add_argument
    add("--server", metavar="URL", default=_SERVER, help="(default: %(default)s)")
    add(
        "--patience",
        metavar="SECONDS",
        type=seconds,
        default=_PATIENCE,
        help="how long a server that is busy is asked again (default: %(default)g)",
    )
    return parser


def _add_create(actions: argparse._SubParsersAction[Any]) -> None:
    parser = _action(
        actions,
        "create",
        "have a video made, and fetch it; what is not given is the server's default",
    )
    add = parser.add_argument
    add("prompt", metavar="PROMPT", type=text, help="what the video shows")
    add("--output", metavar="FILE", type=Path, help="FILE.mp4 (default: video.mp4)")
    add(
        "--no-wait",
        dest="wait",
        action="store_false",
        help="print the video's id, and leave; else Ctrl-C cancels the video",
    )
    add("--model", metavar="NAME", help="refuse to be served by another")
    add_video_arguments(parser, _size)
    add("--seconds", metavar="X", help="in place of --frames: from the first frame to the last")
    add("--scheduler", metavar="NAME", help="the solver")
    add(
        "--lora",
        metavar="NAME[=SCALE[,SCALE]]",
        type=_lora,
        action="append",
        help="a LoRA of the server's; the second scale is of its effect on the low-noise expert; "
        "may be given several times",
    )
    add(
        "--fit",
        choices=("exact", "nearest"),
        help="nearest makes the nearest size and length, where exact, the default, refuses",
    )


def _size(value: str) -> str:
    width, height = size(value)
    return f"{width}x{height}"


def _lora(value: str) -> dict[str, str | float]:
    name, separator, scales = value.partition("=")
    parts = scales.split(",") if separator else []
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = [0.0] * 3
    if len(numbers) > 2:
        raise argparse.ArgumentTypeError(f"{value!r} is not allowed; it must be such as style=0.8")
    return {"name": text(name), **dict(zip(("scale", "scale_2"), numbers, strict=False))}
