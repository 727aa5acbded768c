"""One thread that watches all ranks of a run: their ends, their reports, what they write."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from wantrn.parallel.environment import LaunchedRank, environment_of
from wantrn.parallel.messages import FAILED, TELL
from wantrn.parallel.output import Tail
from wantrn.parallel.signals import Signals

LOST_SECONDS = 1.0
"""How long a rank that lost a connection waits for the rank that is the cause to be seen."""


@dataclass(frozen=True)
class _Child:
    """A rank that was started; ``tail`` is None for rank 0, which writes for itself."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: socket.socket
    tail: Tail | None


class Supervisor:
    """Starts ranks, and sees that they end together.

    Used as a context: at its end no rank runs, and the process's signal handlers are as before.
    """

    def __init__(
        self,
        world: int,
        grace: float,
        pass_fds: Sequence[int] = (),
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._world = world
        self._grace = grace
        self._pass_fds = tuple(pass_fds)
        self._told = report
        self._children: list[_Child] = []
        self._running: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._signals = Signals((signal.SIGINT, signal.SIGTERM), self._signalled, self._reap)
        self._cause: int | None = None
        """The rank that failed first."""
        self._lost: int | None = None
        """A rank that lost a connection, to nobody knows whom."""
        self._signal: int | None = None
        """The signal that this process got."""
        self._killed: set[int] = set()
        """Ranks that did not end when they were told to."""
        self._deadline: float | None = None
        self._stopping = False

    def __enter__(self) -> Supervisor:
        self._signals.install()
        self._watch(self._signals.descriptor, self._signals.read)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children:
            if child.rank in self._running:
                self._send(child.rank, signal.SIGKILL)
                child.process.wait()
            child.channel.close()
            if child.process.stdout is not None:
                child.process.stdout.close()
        self._signals.restore()
        self._selector.close()

    def start(self, command: Sequence[str], variables: Mapping[str, str], port: int) -> None:
        """Start the next rank, which finds the others by the store at ``port``.

        Raises:
            OSError: the command cannot be started.
        """
        rank = len(self._children)
        ours, theirs = socket.socketpair()
        with theirs:
            place = LaunchedRank(rank, rank, self._world, theirs.fileno())
            # A process group of its own: signals reach its children too, and a terminal's Ctrl-C
            # comes by way of this process only.
            process = subprocess.Popen(
                command,
                env={**variables, **environment_of(place, port)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if rank else None,
                stderr=subprocess.STDOUT if rank else None,
                bufsize=0,
                process_group=0,
                pass_fds=(theirs.fileno(), *self._pass_fds),
            )
        tail = None if process.stdout is None else Tail(process.stdout.fileno())
        child = _Child(rank, process, ours, tail)
        self._children.append(child)
        self._running.add(rank)
        ours.setblocking(False)
        self._watch(ours.fileno(), lambda: self._hear(child))
        if process.stdout is not None:
            self._watch(process.stdout.fileno(), lambda: self._drain(child))

    def wait(self) -> int:
        """Wait until all ranks have ended; the run's exit status."""
        while self._running:
            for key, _ in self._selector.select(self._time_left()):
                key.data()
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._deadline = None
                self._expire()
        if self._signal is not None:
            return 128 + self._signal
        return 0 if self._cause is None else self._report(self._children[self._cause])

    def _watch(self, descriptor: int, act: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, act)

    def _time_left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _hear(self, child: _Child) -> None:
        """A rank's report of a failure."""
        try:
            message = child.channel.recv(1)
        except ConnectionError:
            message = b""
        if not message:
            self._selector.unregister(child.channel)
        elif self._stopping:
            return
        elif message == FAILED:
            self._blame(child.rank)
        elif self._lost is None:
            self._lost = child.rank
            self._deadline = time.monotonic() + LOST_SECONDS

    def _drain(self, child: _Child) -> None:
        assert child.tail is not None and child.process.stdout is not None
        if not child.tail.read():
            self._selector.unregister(child.process.stdout)

    def _reap(self) -> None:
        """Notice the ranks that have ended; rank 0 first, as its errors are on the screen."""
        for rank in sorted(self._running):
            status = self._children[rank].process.poll()
            if status is None:
                continue
            self._running.discard(rank)
            self._send(rank, signal.SIGKILL)  # to children that it left
            if status and not self._stopping:
                self._blame(rank)

    def _blame(self, rank: int) -> None:
        """``rank`` failed: let it tell why, and stop the others."""
        self._cause = rank
        with contextlib.suppress(OSError):
            self._children[rank].channel.send(TELL)
        self._stop(signal.SIGTERM, self._running - {rank})

    def _signalled(self, number: int) -> None:
        if self._signal is None:
            self._signal = number
            self._stop(number, self._running)
        else:
            self._deadline = time.monotonic()

    def _stop(self, number: int, ranks: set[int]) -> None:
        self._stopping = True
        for rank in ranks:
            self._send(rank, number)
        self._deadline = time.monotonic() + self._grace

    def _expire(self) -> None:
        if self._stopping:
            self._killed |= self._running
            for rank in self._running:
                self._send(rank, signal.SIGKILL)
        else:
            assert self._lost is not None
            self._blame(self._lost)

    def _send(self, rank: int, number: int) -> None:
        # macOS says EPERM of a group of which only a zombie is left
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._children[rank].process.pid, number)

    def _report(self, child: _Child) -> int:
        """Name the rank that failed, and why; the run's status."""
        status = child.process.returncode
        how = _end(status)
        if child.rank in self._killed:
            status, how = 1, "failed, and did not end by itself"
        told = ""
        if child.tail is not None:
            child.tail.read()
            told = child.tail.text()
        line = f"rank {child.rank} of {self._world} {how}"
        if self._told is not None:
            self._told(line)
        print(f"{line}; it wrote:\n{told.rstrip()}" if told.strip() else line, file=sys.stderr)
        return 128 - status if status < 0 else status or 1


def _end(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"was ended by signal {-status}"
