"""Ranks as processes, over gloo."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn


def run_ranks(count: int, folder: Path, function: Callable[..., None], *args: Any) -> None:
    """`function(rank, *args)` in `count` processes that have found each other; what one raises is
    raised here, and ends the others.

    Args:
        folder: where there is nothing yet of the name `store`.
    """
    spawn(_body, (count, str(folder / "store"), function, args), count)  # type: ignore[no-untyped-call]


def _body(rank: int, count: int, store: str, function: Callable[..., None], args: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=60),
    )
    function(rank, *args)
    dist.destroy_process_group()
