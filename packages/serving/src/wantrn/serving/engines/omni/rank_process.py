"""A rank: a process that answers what the engine's process asks, until that one ends."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from wantrn.serving.engines.protocol import WorkEvent


@dataclass(frozen=True)
class Call:
    """A method of the worker to be called, by all ranks."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None


@dataclass(frozen=True)
class End:
    """The rank has nothing more to do."""


@dataclass(frozen=True)
class Up:
    """The rank has joined the others and loaded its weights."""


@dataclass(frozen=True)
class Outcome:
    """How a request fared in a step. Ranks go on together only if they all say the same."""

    id: str
    step: int | None
    finished: bool
    failed: bool


@dataclass(frozen=True)
class Returned:
    """What a method gave, which only the first rank tells, and how requests fared in it."""

    value: Any
    outcome: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class Raised:
    """What a method raised, or what ended the rank before it was up."""

    text: str
    trace: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        return cls(f"{type(error).__name__}: {error}", traceback.format_exc())


Answer = Up | Returned | Raised | WorkEvent


def send(connection: Connection, message: Call | End | Answer) -> None:
    """Send a message whole: torch's own way for tensors leaves files that outlive a killed rank."""
    connection.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """What ``send`` sent; ``EOFError`` or ``OSError`` if the other end is gone."""
    return pickle.loads(connection.recv_bytes())


def failure_of(answer: Returned | Raised) -> str | None:
    """What failed, if anything did."""
    if isinstance(answer, Raised):
        return answer.text
    failed = [one.id for one in answer.outcome if one.failed]
    return f"the request {failed[0]}" if failed else None


def run_rank(rank: int, config: Any, connection: Connection) -> None:
    """Be a rank of the stage that ``config`` describes; in a process of its own."""
    # a terminal's Ctrl-C is for the engine's process, which then ends the ranks
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    try:
        worker = _make_worker(rank, config)
        worker.model_runner.pipeline.report_to(lambda event: send(connection, event))
    except BaseException as error:
        send(connection, Raised.of(error))
        raise
    try:
        send(connection, Up())
        while isinstance(call := receive(connection), Call):
            send(connection, _answer(worker, call, rank))
    except (EOFError, OSError):  # the other end is gone, and nobody is there to hear of it
        pass
    finally:
        worker.shutdown()


def _make_worker(rank: int, config: Any) -> Any:
    from wantrn.serving.engines.omni.compatibility import (
        WorkerWrapperBase,
        load_omni_general_plugins,
    )
    from wantrn.serving.engines.omni.worker import WanWorker

    load_omni_general_plugins()
    return WorkerWrapperBase(gpu_id=rank, od_config=config, base_worker_class=WanWorker)


def _answer(worker: Any, call: Call, rank: int) -> Answer:
    try:
        value = worker.execute_method(call.method, *call.args, **(call.kwargs or {}))
    except Exception as error:
        return Raised.of(error)
    outcome = _outcome(value) if call.method == "execute_stepwise" else ()
    return Returned(value if rank == 0 else None, outcome)


def _outcome(output: Any) -> tuple[Outcome, ...]:
    """Of a step's output, which is a ``BatchRunnerOutput``."""
    return tuple(
        Outcome(
            one.request_id,
            one.step_index,
            one.finished,
            one.result is not None and one.result.error is not None,
        )
        for one in output.runner_outputs
    )


def _end_with_parent() -> None:
    """Let no rank outlive the engine's process, whatever it is computing or waiting for."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a rank is started by the engine's process"
    sentinel = parent.sentinel

    def watch() -> None:
        wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
