"""The arguments of commands that start ranks."""

from __future__ import annotations

import argparse
from typing import Any

# The same as in wantrn.parallel, which is too slow to import here.
STRATEGIES = ("ring", "all_gather")


def add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    """An argument for each field of ``RankOptions``, by its name."""
    add = parser.add_argument_group(
        "ranks",
        "Several processes make the video together: as many as the product of --tp, --ring, "
        "--ulysses and, with --cfg-parallel, 2. They are started here, or by torchrun.",
    ).add_argument
    degree: dict[str, Any] = {"metavar": "N", "type": int, "default": 1}
    add("--tp", help="ranks that share heads and channels: tensor parallelism", **degree)
    add("--ring", help="ranks that share the video's tokens; keys and values go round", **degree)
    add("--ulysses", help="ranks that share tokens, and swap them for heads", **degree)
    add("--cfg-parallel", action="store_true", help="one rank for each branch of guidance")
    add("--batch-guidance", action="store_true", help="both branches of guidance in one pass")
    add(
        "--sequence-sharding",
        action="store_true",
        help="the ranks of --tp share tokens too, where they do not share heads",
    )
    add(
        "--replicate-cross-attention",
        action="store_true",
        help="each rank of --tp computes the attention to the text whole",
    )
    add(
        "--context",
        choices=STRATEGIES,
        default=STRATEGIES[0],
        help="how the ranks of --ring come by all keys and values (default: %(default)s)",
    )
    add(
        "--strict-tokens",
        action="store_true",
        help="refuse a video whose tokens the ranks cannot share evenly, rather than pad",
    )
    add("--tile-vae", action="store_true", help="decode in tiles, which takes less memory")
    add("--vae-parallel", action="store_true", help="decode in tiles, shared by all ranks")
