"""Functions run by real ranks: processes with a gloo group between them."""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection, forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

LIMIT = 200.0
"""Seconds that one call, or one collective, may take."""


def run_ranks(world: int, function: Callable[..., Any], *args: object) -> list[Any]:
    """Results of ``function(*args)`` by rank, each in a new process; see :class:`Ranks`."""
    with Ranks(world) as ranks:
        return ranks.run(function, *args)


class Ranks:
    """Processes that are kept for many calls, as each takes a while to start.

    Made by a fixture of a module's scope::

        @pytest.fixture(scope="module")
        def four() -> Iterator[Ranks]:
            with Ranks(4) as ranks:
                yield ranks

    Processes start at the first call, and again after one that failed.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._store: TCPStore | None = None

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def run(self, function: Callable[..., Any], *args: object) -> list[Any]:
        """Results of ``function(*args)`` by rank.

        ``function`` is a module's own; it finds its rank by ``dist.get_rank()``. Arguments and
        results are copied.

        Raises:
            AssertionError: a rank raised (with its traceback), ended, or took more than ``LIMIT``.
        """
        if not self._processes:
            self._start()
        call = pickle.dumps((function, args))
        try:
            for pipe in self._pipes:
                pipe.send_bytes(call)
            return self._collect(time.monotonic() + LIMIT)
        except BaseException:
            self._stop()
            raise

    def _start(self) -> None:
        context = _fork_server()
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(self.world):
            ours, theirs = context.Pipe()
            place = (rank, self.world, self._store.port)
            process = context.Process(target=_serve, args=(*place, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _collect(self, deadline: float) -> list[Any]:
        results: dict[int, Any] = {}
        while len(results) < self.world:
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in results]
            ready = connection.wait(waiting, max(0.0, deadline - time.monotonic()))
            if not ready:
                silent = [rank for rank in range(self.world) if rank not in results]
                raise AssertionError(f"no answer in time from the ranks {silent}")
            failures: list[tuple[float, str]] = []
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                at, error, results[rank] = self._answer(rank)
                if error:
                    failures.append((at, f"rank {rank}: {error}"))
            if failures:
                # the others fail of the first one's end
                raise AssertionError(min(failures)[1])
        return [results[rank] for rank in range(self.world)]

    def _answer(self, rank: int) -> tuple[float, str, Any]:
        try:
            answer: tuple[float, str, Any] = pickle.loads(self._pipes[rank].recv_bytes())
        except (EOFError, ConnectionError):
            self._processes[rank].join(LIMIT)
            return time.monotonic(), f"ended with {self._processes[rank].exitcode}", None
        return answer

    def _stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes, self._store = [], [], None


def _fork_server() -> ForkServerContext:
    """Starts processes as forks of one that has torch, whose import takes seconds, and runs no
    threads, which forks would miss. It ends with this process."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "wantrn.parallel.attention"])
    path = os.pathsep.join(filter(None, sys.path))
    with mock.patch.dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    return context


def _serve(rank: int, world: int, port: int, pipe: Connection) -> None:
    """A rank: answer calls until the pipe is closed."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=LIMIT)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    try:
        while True:
            try:
                function, args = pickle.loads(pipe.recv_bytes())
            except EOFError:
                break
            error, result = "", None
            try:
                result = function(*args)
            except Exception:
                error = traceback.format_exc()
            pipe.send_bytes(pickle.dumps((time.monotonic(), error, result)))
    finally:
        dist.destroy_process_group()
