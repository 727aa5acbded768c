"""Tests on several ranks: real processes that speak gloo over the loopback interface."""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any
from unittest import mock

_SECONDS = 240.0  # for everything that the ranks do; a busy machine takes half of it to start them


def run_ranks(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What ``function(*args)`` returns on each of ``world`` ranks, by rank.

    Every rank is a new process with one thread for torch and the default process group initialised:
    ``function`` asks torch.distributed for its rank. It is found by name, so it stands at the top
    level of a test's module, and everything given or returned can be pickled.

    Raises:
        RuntimeError: with the traceback of the rank that failed, or the exit code of one that died.
        TimeoutError: the ranks are not done in four minutes.

    No process is left in any case.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    limit = timedelta(seconds=_SECONDS)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    work = pickle.dumps((function, args))  # by value: tensors need no process that shares them
    context = _fork_server()
    processes: dict[Connection, BaseProcess] = {}
    try:
        for rank in range(world):
            mine, theirs = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(
                target=_run_rank, args=(rank, world, store.port, work, theirs), daemon=True
            )
            process.start()
            theirs.close()  # so that a death ends the pipe
            processes[mine] = process
        return _collect(processes)
    finally:
        for connection, process in processes.items():
            process.kill()
            process.join()
            process.close()
            connection.close()


def _fork_server() -> ForkServerContext:
    """Starts processes as forks of one that has the pipeline, whose import takes seconds, and runs
    no threads, which forks would miss. It ends with this process."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["wantrn.model.pipeline"])
    path = os.pathsep.join(filter(None, sys.path))
    with mock.patch.dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    return context


def _collect(processes: dict[Connection, BaseProcess]) -> list[Any]:
    results: dict[Connection, Any] = {}
    end = time.monotonic() + _SECONDS
    while len(results) < len(processes):
        waited_for = [connection for connection in processes if connection not in results]
        ready = wait(waited_for, max(0.0, end - time.monotonic()))
        if not ready:
            ranks = [rank for rank, c in enumerate(processes) if c not in results]
            raise TimeoutError(f"ranks {ranks} of {len(processes)} are not done")
        failures = _failures(processes, ready, results)
        if failures:
            # one that died takes the others' connections with it, and may be seen after them
            rest = [c for c in processes if c not in ready and c not in results]
            failures += _failures(processes, wait(rest, 2.0), results)
            raise RuntimeError("\n".join(failures))
    return [results[connection] for connection in processes]


def _failures(
    processes: dict[Connection, BaseProcess], ready: list[Any], results: dict[Connection, Any]
) -> list[str]:
    """Take what the ranks at ``ready`` have sent into ``results``; what failed of it."""
    failures = []
    for rank, connection in enumerate(processes):
        if connection not in ready:
            continue
        try:
            succeeded, results[connection] = pickle.loads(connection.recv_bytes())
        except EOFError:
            processes[connection].join()
            failures.append(f"rank {rank} died: exit code {processes[connection].exitcode}")
        else:
            if not succeeded:
                failures.append(f"rank {rank} failed:\n{results[connection]}")
    return failures


def _run_rank(rank: int, world: int, port: int, work: bytes, results: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        torch.set_num_threads(1)
        limit = timedelta(seconds=_SECONDS)
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
        function, args = pickle.loads(work)
        report = pickle.dumps((True, function(*args)))
        dist.barrier()  # nobody leaves while others may still read from it
        dist.destroy_process_group()
    except BaseException:
        report = pickle.dumps((False, traceback.format_exc()))
    results.send_bytes(report)
