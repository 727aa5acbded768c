"""Ranks on this machine: started, watched, and ended together."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from wantrn.parallel.environment import LaunchedRank, rank_of_environment
from wantrn.parallel.supervisor import Supervisor
from wantrn.parallel.world import join_world

__all__ = ["LaunchedRank", "join_world", "rank_of_environment", "run_local", "threads_per_rank"]


def run_local(
    world: int,
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    grace: float = 5.0,
    pass_fds: Sequence[int] = (),
    report: Callable[[str], None] | None = None,
) -> int:
    """Run ``command`` as ``world`` ranks until all have ended; its exit status.

    Each rank has this process's environment, ``environment`` over it, and what ``torchrun`` tells a
    rank; it joins the others by ``join_world``. Its standard input is empty. Rank 0 has this
    process's output and errors; of what the others write, the end is kept, and shown if they fail.

    If a rank fails, the others are told to stop (SIGTERM), and killed after ``grace`` seconds;
    standard error then names the rank and its traceback or signal. SIGINT and SIGTERM are passed
    on, with the same grace; a second one kills at once. A rank's own children end with it. If this
    process is killed, the ranks end too, once they have joined.

    Args:
        world: the number of ranks.
        command: a program and its arguments.
        environment: variables for all ranks. Unless set here or in this process,
            ``OMP_NUM_THREADS`` is ``threads_per_rank(world)``, and ``PYTHONUNBUFFERED`` is 1.
        grace: in seconds.
        pass_fds: open file descriptors that every rank has too, by the same numbers.
        report: is told which rank failed first, and how, before standard error is.

    Returns:
        0 if all ranks ended with 0; else the status of the rank that failed first, 128 + n for a
        signal n, as for a signal that this process got.

    Raises:
        ValueError: an argument out of its range, by name.
        RuntimeError: not called in the main thread, which signals need.
        OSError: the command cannot be started.
    """
    if world < 1:
        raise ValueError(f"world must be at least 1, got {world}")
    if not command:
        raise ValueError("command must have a program, got none")
    if not grace > 0:
        raise ValueError(f"grace must be more than 0 seconds, got {grace}")
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("run_local must be called in the main thread: it passes signals on")
    variables = _defaults(world) | os.environ | dict(environment or {})
    store = _store()
    with Supervisor(world, grace, pass_fds, report) as supervisor:
        for _ in range(world):
            supervisor.start(command, variables, store.port)
        return supervisor.wait()


def threads_per_rank(world: int) -> int:
    """The processors that this process may use, shared out to ``world`` ranks; at least 1.

    More threads than processors make every rank wait for the others' at each collective.
    """
    try:
        processors = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        processors = os.cpu_count() or 1
    return max(1, processors // world)


def _defaults(world: int) -> dict[str, str]:
    """Variables that the user may set otherwise."""
    defaults = {
        "OMP_NUM_THREADS": str(threads_per_rank(world)),
        # Output into a pipe would come late and cut in mid-line, between lines of errors; and not
        # at all from a rank that was killed.
        "PYTHONUNBUFFERED": "1",
    }
    # the machine's own name may lead to an address that it does not have
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):
            defaults["GLOO_SOCKET_IFNAME"] = name
    return defaults


def _store() -> TCPStore:
    """Where the ranks find each other, open to this machine only.

    Its port is the system's choice, and bound before a rank hears of it, so no other program can
    take it in between.
    """
    listening = socket.create_server(("127.0.0.1", 0), backlog=socket.SOMAXCONN)
    port = listening.getsockname()[1]
    return TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
