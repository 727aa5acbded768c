"""The arguments of ``wantrn compare``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_compare(commands: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the command; an argument that was not given is None."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="say how far two videos are from each other",
        description="Compare two videos of one size and length, frame by frame: .mp4 or .gif "
        "files, or folders of PNG files, whoever wrote them. The exit status is 1 if they are "
        "farther from each other than --least-psnr or --least-ssim allow.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("a", metavar="A", type=Path, help="the one that is compared with")
    add("b", metavar="B", type=Path, help="the other")
    add("--json", action="store_true", help="all figures as one object on the last line")
    add("--plot", metavar="FILE.png", type=Path, help="draw PSNR and SSIM of each frame")
    add("--strip", metavar="FILE.png", type=Path, help="draw frames of A, of B, and what differs")
    add("--least-psnr", metavar="X", type=_decibels, help="status 1 where PSNR, in dB, is below it")
    add("--least-ssim", metavar="X", type=_similarity, help="status 1 where SSIM is below it")
    return parser


def _decibels(value: str) -> float:
    return _number(value, 0.0, 1000.0)


def _similarity(value: str) -> float:
    return _number(value, -1.0, 1.0)


def _number(value: str, least: float, most: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{value!r} is no number from {least:g} to {most:g}")
    return number
