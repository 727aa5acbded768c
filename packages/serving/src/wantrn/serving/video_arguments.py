"""The arguments of commands that have a video made: what it is like."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from wantrn.model.step_cache import DEFAULT_THRESHOLD
from wantrn.serving.argument_types import text


def add_video_arguments(parser: argparse.ArgumentParser, size: Callable[[str], object]) -> None:
    """An argument for each of the fields of ``VideoRequest`` that is a number, a text or a file.

    ``size`` reads the one for the size.
    """
    add = parser.add_argument
    add("--image", metavar="FILE", type=Path, help="the first frame")
    add("--negative-prompt", metavar="TEXT", type=text, help="what the video does not show")
    add("--size", metavar="WxH", type=size, help="width and height in pixels")
    add("--frames", metavar="N", type=int, help="number of frames")
    add("--fps", metavar="N", type=int, help="frames per second")
    add("--steps", metavar="N", type=int, help="denoising steps")
    add("--guidance", metavar="X", type=float, help="guidance of the high-noise (or only) expert")
    add("--guidance-2", metavar="X", type=float, help="guidance of the low-noise expert")
    add("--shift", metavar="X", type=float, help="shift of the noise levels")
    add("--seed", metavar="N", type=int, help="seed of the noise; without it, one is drawn")
    add(
        "--step-cache",
        metavar="THRESHOLD",
        type=float,
        nargs="?",
        const=DEFAULT_THRESHOLD,
        help="let steps reuse most of what earlier ones have computed, as long as less than this "
        "changes, from 0 to 1 (default: not at all; of the option alone: %(const)g)",
    )
