"""Ranks as processes, over gloo."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes


def run_ranks(count: int, folder: Path, function: Callable[..., None], *args: Any) -> None:
    """`function(rank, *args)` in `count` processes that have found each other; what one raises is
    raised here, and ends the others.

    Args:
        folder: where there is nothing yet of the name `store`.
    """
    _start_fork_server()
    arguments = (count, str(folder / "store"), function, args)
    start_processes(_body, arguments, count, start_method="forkserver")  # type: ignore[no-untyped-call]


def _start_fork_server() -> None:
    """Of which the processes are forks: it has torch, whose import takes seconds, and runs no
    threads, which forks would miss. It ends with this process."""
    get_context("forkserver").set_forkserver_preload(["torch.distributed", "wantrn.kernels.ops"])
    path = os.pathsep.join(filter(None, sys.path))
    with mock.patch.dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1"):
        forkserver.ensure_running()


def _body(rank: int, count: int, store: str, function: Callable[..., None], args: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=200),
    )
    function(rank, *args)
    dist.destroy_process_group()
