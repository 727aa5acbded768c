"""All ranks of one start, asked together, and ended together.

Their processes are forks of a server that multiprocessing keeps until this process ends.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from typing import Any

from wantrn.serving.engines.omni.rank_process import (
    Call,
    End,
    Raised,
    Returned,
    Up,
    failure_of,
    receive,
    run_rank,
    send,
)
from wantrn.serving.engines.protocol import WorkEvent

_log = logging.getLogger("wantrn.ranks")

AGREE_SECONDS = 30.0
"""How long the others may work on when a rank has failed at something: it may be that they fail as
well, and all go on together; else they wait for it in a collective, for ever."""

END_SECONDS = 10.0
"""How long ranks may take to end by themselves."""


def fork_context() -> ForkServerContext:
    """Makes processes that have vLLM-Omni from their beginning."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["wantrn.serving.engines.omni.rank_server"])
    return context


class RanksLostError(RuntimeError):
    """The ranks are gone, for the reason given."""


class RanksFailedError(RuntimeError):
    """All ranks have failed at what they were asked, together, and can go on."""


class RankProcesses:
    """The ranks' processes, from their start to their end; one thread at a time may ask them."""

    def __init__(
        self,
        config: Any,
        context: ForkServerContext,
        run: Callable[[int, Any, Connection], None] = run_rank,
        agree_seconds: float = AGREE_SECONDS,
    ) -> None:
        """Start the processes.

        Args:
            config: an ``OmniDiffusionConfig``; it gets a new port.
            context: how processes are made.
            run: what each of them does.
            agree_seconds: in place of ``AGREE_SECONDS``.
        """
        config.master_port = _free_port()
        self._agree_seconds = agree_seconds
        self._lock = threading.Lock()  # of the reason
        self._busy = threading.Lock()  # while a call is being answered
        self._reason: str | None = None
        self._connections: list[Connection] = []
        self.processes: list[multiprocessing.process.BaseProcess] = []
        for rank in range(config.num_gpus):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=run,
                args=(rank, config, theirs),
                name=f"wantrn rank {rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self._connections.append(ours)

    def wait_until_up(self) -> None:
        """Until all have joined each other and loaded their weights.

        Raises:
            RanksLostError: one of them has failed, for a reason that ranks know, or has ended.
        """
        waiting = set(self._connections)
        while waiting:
            for connection in wait(list(waiting)):
                assert isinstance(connection, Connection)
                answer = self._receive(connection)
                if isinstance(answer, Raised):
                    self.kill(f"rank {self._connections.index(connection)}: {answer.text}")
                    raise RanksLostError(self.reason)
                assert isinstance(answer, Up)
                waiting.discard(connection)

    def call(self, call: Call, tell: Callable[[WorkEvent], None]) -> Any:
        """Let all ranks call a method of their workers; what it gives on the first.

        Args:
            call: what.
            tell: hears what the pipeline reports meanwhile.

        Raises:
            RanksFailedError: it raised something on all ranks.
            RanksLostError: a rank died, or failed alone, or came to another end than the others.
        """
        with self._busy:
            try:
                for connection in self._connections:
                    send(connection, call)
            except OSError as error:
                raise self._lost() from error
            answers = self._answers(tell)
        raised = [answer for answer in answers if isinstance(answer, Raised)]
        if len(raised) == len(answers):
            _log.error("all ranks failed: %s", raised[0].trace)
            raise RanksFailedError(raised[0].text)
        returned = [answer for answer in answers if isinstance(answer, Returned)]
        if not raised and len({answer.outcome for answer in returned}) == 1:
            return returned[0].value
        told = next((text for answer in answers if (text := failure_of(answer))), "nothing failed")
        self.kill(f"the ranks came to different ends: {told}")
        raise RanksLostError(self.reason)

    def watch(self) -> str:
        """Wait until a rank ends, end the others, and return why."""
        wait([process.sentinel for process in self.processes])
        self.kill(None)
        return self.reason

    @property
    def reason(self) -> str:
        """Why the ranks are gone."""
        with self._lock:
            return self._reason or "the ranks were told to end"

    def kill(self, reason: str | None) -> None:
        """End all ranks at once; there is nothing that they would have to save.

        ``reason`` is what ``reason`` will be, if it is the first; None lets it be the end of the
        rank that ended first.
        """
        with self._lock:
            if self._reason is None:
                self._reason = reason or self._first_end()
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()

    def end(self) -> None:
        """Let ranks that have nothing to do end by themselves, and others at once."""
        with self._lock:
            self._reason = self._reason or "the ranks were told to end"
        if self._busy.acquire(blocking=False):
            try:
                self._let_end()
            finally:
                self._busy.release()
        self.kill(None)

    def close(self) -> None:
        """Give back what is left of processes that have ended."""
        with self._busy:
            for connection in self._connections:
                connection.close()

    def _let_end(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                send(connection, End())
        deadline = time.monotonic() + END_SECONDS
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))

    def _answers(self, tell: Callable[[WorkEvent], None]) -> list[Returned | Raised]:
        """One of each rank, in their order."""
        answers: dict[int, Returned | Raised] = {}
        deadline: float | None = None
        while len(answers) < len(self._connections):
            left = [c for rank, c in enumerate(self._connections) if rank not in answers]
            patience = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = wait(left, patience)
            if not ready:
                rank, told = next((r, text) for r in answers if (text := failure_of(answers[r])))
                self.kill(f"rank {rank} failed, and others did not: {told}")
                raise RanksLostError(self.reason)
            for connection in ready:
                assert isinstance(connection, Connection)
                answer = self._receive(connection)
                if not isinstance(answer, Returned | Raised):
                    tell(answer)
                    continue
                answers[self._connections.index(connection)] = answer
                if deadline is None and failure_of(answer):
                    deadline = time.monotonic() + self._agree_seconds
        return [answers[rank] for rank in range(len(answers))]

    def _receive(self, connection: Connection) -> Any:
        try:
            return receive(connection)
        except (EOFError, OSError) as error:
            raise self._lost() from error

    def _lost(self) -> RanksLostError:
        """After a connection broke, which happens while its rank ends."""
        wait([process.sentinel for process in self.processes], 1.0)
        self.kill(None)
        return RanksLostError(self.reason)

    def _first_end(self) -> str:
        ended = wait([process.sentinel for process in self.processes], 0)
        for rank, process in enumerate(self.processes):
            if process.sentinel in ended:
                process.join(1.0)  # it is heard of a little before its status is known
                code = process.exitcode or 0
                how = f"with status {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
                return f"rank {rank} of {len(self.processes)} ended {how}"
        return "the ranks were told to end"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
