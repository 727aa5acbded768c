"""One thread for each core of a run, and what ends a run that hangs."""

from __future__ import annotations

import contextvars
import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from nkisim.communicator import Communicator, Stopped
from nkisim.errors import NkiDeadlockError

T = TypeVar("T")

# A stall is so many looks in a row without a new instruction. Looks are counted instead of seconds,
# so that a process that was suspended for a while does not take itself for stalled.
LOOKS = 16
# Seconds that the threads of a run that is given up have to end by themselves, and then to end once
# they are interrupted.
GRACE = 0.2
INTERRUPTED_GRACE = 2.0


def run_threads(functions: Sequence[Callable[[], T]], communicator: Communicator) -> list[T]:
    """Run one function for each core, each in a thread with a copy of the caller's context.

    A single function runs in the calling thread. If the communicator follows every core, a run in
    which none issues an instruction for `communicator.stall_seconds` is ended; otherwise a core
    that never comes back holds the run for ever.

    Args:
        functions: what each core runs, core by core

    Returns:
        The result of each function.

    Raises:
        The error that a core raised by itself (of several cores: the lowest one), with a note that
        says which; the errors of those that waited for it are dropped.
        NkiDeadlockError: the cores wait for each other for ever, or none makes progress.
    """
    if len(functions) != communicator.cores:
        raise ValueError(f"functions has {len(functions)} items for {communicator.cores} cores")
    if len(functions) == 1:
        return [functions[0]()]
    results: dict[int, T] = {}
    threads = [
        _thread(core, function, communicator, results)
        for core, function in zip(communicator.numbers, functions, strict=True)
    ]
    try:
        for thread in threads:
            thread.start()
        stall = _supervise(communicator)
    except BaseException:
        _give_up(threads, communicator)
        raise
    if stall is None:
        for thread in threads:
            thread.join()
    else:
        running = _give_up(threads, communicator)
        if running:
            stall += f"\nstill running, in {', '.join(running)}: a call that cannot be interrupted"
    error = communicator.failure()
    if error is not None:
        if stall is not None:
            error.add_note(stall)
        raise error
    if stall is not None:
        raise NkiDeadlockError(stall)
    return [results[core] for core in communicator.numbers]


def _thread(
    core: int, function: Callable[[], T], communicator: Communicator, results: dict[int, T]
) -> threading.Thread:
    context = contextvars.copy_context()

    def run() -> None:
        try:
            communicator.started(core)
            try:
                results[core] = context.run(function)
            except Stopped:
                raise
            except BaseException as error:
                communicator.fail(core, error)
            else:
                communicator.finish(core)
        except Stopped:
            # the run is over; nobody waits for this core any more
            return

    # a thread that cannot be ended must not keep the process alive
    return threading.Thread(target=run, name=communicator.name(core), daemon=True)


def _supervise(communicator: Communicator) -> str | None:
    """Wait until all cores have ended; the reason if the run has to be given up before."""
    seen = communicator.progress()
    looks = 0
    # a wait without end would not notice an interrupt that another thread takes
    while not communicator.wait(communicator.stall_seconds / LOOKS):
        issued = communicator.progress()
        looks = 0 if issued is None or issued != seen else looks + 1
        seen = issued
        if looks >= LOOKS:
            return (
                f"no core has issued an instruction for {communicator.stall_seconds:g} s\n"
                f"{communicator.table()}"
            )
    return None


def _give_up(threads: list[threading.Thread], communicator: Communicator) -> list[str]:
    """End all threads; the names of those that do not end."""
    communicator.stop()
    started = [thread for thread in threads if thread.ident is not None]
    _join(started, GRACE)
    for thread in started:
        if thread.is_alive():
            # raises Stopped at the next Python instruction of that thread
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stopped)
            )
    _join(started, INTERRUPTED_GRACE)
    return [thread.name for thread in started if thread.is_alive()]


def _join(threads: list[threading.Thread], seconds: float) -> None:
    share = seconds / max(1, len(threads))
    for thread in threads:
        if thread.is_alive():
            thread.join(share)
