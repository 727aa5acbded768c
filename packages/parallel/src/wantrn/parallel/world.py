"""How a process joins the world that it was launched into, and how it leaves it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from wantrn.parallel.environment import LaunchedRank, rank_of_environment
from wantrn.parallel.messages import FAILED, LOST

COLLECTIVE_TIMEOUT = timedelta(hours=2)
"""How long a collective waits for the other ranks.

Longer than a first step on a device, which compiles for up to an hour, and not on all ranks equally
long. It need not find dead ranks: the program that started them sees those at once.
"""

LAST_SECONDS = 5.0
"""How long a rank that failed may take to end, where no supervisor sees to it."""


@contextmanager
def join_world(
    timeout: timedelta = COLLECTIVE_TIMEOUT, *, backend: str = "gloo"
) -> Iterator[LaunchedRank]:
    """Be a rank of the world that ``run_local`` or ``torchrun`` launched.

    ``backend`` is torch.distributed's, such as ``"cpu:gloo,neuron:neuron"`` for tensors of the CPU
    and of a Trainium device.

    Inside, torch.distributed's default group is there; at the end it is destroyed. The process ends
    at once if its supervisor does. An exception that leaves the context ends the process within
    seconds, whatever it waits for: a collective in flight would keep it for ever. Of several ranks
    that fail, one lets its exception out; the others, whose connections it took with it, wait in
    silence for their end.

    Raises:
        RuntimeError: the process was not launched as a rank.
        ValueError: what the environment says is no rank.
    """
    place = rank_of_environment()
    if place is None:
        raise RuntimeError("this process is no rank: RANK is not in its environment")
    supervisor = None if place.supervisor is None else _Supervisor(place.supervisor)
    try:
        dist.init_process_group(backend, init_method="env://", timeout=timeout)
        yield place
    except SystemExit as end:
        if end.code in (0, None):
            dist.destroy_process_group()
        else:
            _fail(end, supervisor)
        raise
    except Exception as error:
        _fail(error, supervisor)
        raise
    dist.destroy_process_group()


class _Supervisor:
    """The socket to the process that started this one and watches over it."""

    def __init__(self, descriptor: int) -> None:
        try:
            self._socket = socket.socket(fileno=descriptor)
        except OSError as error:
            raise ValueError(f"the supervisor's socket {descriptor} is not open here") from error
        self._socket.set_inheritable(False)
        self._turn = threading.Event()
        threading.Thread(target=self._watch, name="supervisor", daemon=True).start()

    def wait_turn(self, message: bytes) -> None:
        """Report a failure, and wait until this rank is the one to tell of it."""
        self._socket.sendall(message)
        self._turn.wait()

    def _watch(self) -> None:
        try:
            while self._socket.recv(1):
                self._turn.set()
        except ConnectionError:
            pass
        # The supervisor gave this rank a process group of its own: with it go its children.
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _fail(error: BaseException, supervisor: _Supervisor | None) -> None:
    if supervisor is not None:
        supervisor.wait_turn(LOST if _is_lost_connection(error) else FAILED)
    else:
        signal.setitimer(signal.ITIMER_REAL, LAST_SECONDS)


def _is_lost_connection(error: BaseException | None) -> bool:
    """Whether the failure may be that of another rank."""
    while error is not None:
        if isinstance(error, dist.DistError) or "gloo/transport" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
