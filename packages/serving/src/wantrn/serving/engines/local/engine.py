"""The embedded engine: starts ranks, speaks to the first, and starts all again when one dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process

from wantrn.model.device import find_device
from wantrn.model.info import read_model_info
from wantrn.serving.computation import describe_computation
from wantrn.serving.engines.local.messages import (
    LENGTH,
    Begin,
    Command,
    Drop,
    End,
    Ended,
    Report,
    extra_bytes,
    pack,
    unpack,
)
from wantrn.serving.engines.local.options import LocalOptions
from wantrn.serving.engines.options import check_ranks
from wantrn.serving.engines.protocol import (
    Cancelled,
    EngineError,
    Failed,
    Finished,
    Health,
    Lost,
    Ready,
    Work,
)
from wantrn.serving.engines.restarts import Restarts
from wantrn.serving.engines.state import EngineState
from wantrn.serving.modules import MODULES

_log = logging.getLogger("wantrn.ranks")

_END_SECONDS = 20.0  # that ranks may take to end by themselves: a step, and a file to write
_LINE_BYTES = 1 << 20


class LocalEngine(EngineState):
    """See ``Engine``. ``options`` are checked when it is made.

    Raises:
        CheckpointError: the folder holds no checkpoint.
        RequestError: an option that the model or this machine does not have, by name.
    """

    def __init__(self, options: LocalOptions) -> None:
        info = read_model_info(options.model)
        dtype, device = info.choose_dtype(options.dtype), find_device(options.device)
        check_ranks(options.ranks, options.warm_up, info)
        super().__init__(options, info, describe_computation(info, dtype, device, options.ranks))
        self._options = options
        self._has: set[str] = set()
        self._socket: asyncio.StreamWriter | None = None
        self._process: Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._became_ready = False  # the ranks that there are now

    async def start(self) -> None:
        if self._keeper is not None:
            raise EngineError("the engine has been started already")
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        self._stopping = True
        if self._keeper is None:
            self._events.put_nowait(None)
            return
        await self._send(End())
        if self._process is not None and not self._became_ready:
            _signal(self._process, signal.SIGTERM)  # what is loading hears nothing
        await _end(self._process)
        await self._keeper

    async def submit(self, work: Work) -> None:
        self._check_room(self._has)
        self._has.add(work.id)
        await self._send(Begin(work))

    async def cancel(self, id: str) -> None:
        if id in self._has:
            await self._send(Drop(id))

    async def _send(self, command: Command) -> None:
        if self._socket is None:
            return
        # of ranks that are ending, the keeper hears
        with contextlib.suppress(ConnectionError):
            self._socket.write(pack(command))
            await self._socket.drain()

    async def _keep(self) -> None:
        """Have ranks that are ready, until told to stop or there is no hope."""
        restarts = Restarts()
        while not self._stopping:
            self._became_ready = False
            reason = await self._one_life()
            if self._stopping:
                break
            broken = restarts.give_up(self._became_ready)
            self._health = Health.BROKEN if broken else Health.RESTARTING
            self._has.clear()
            self._events.put_nowait(Lost(reason, broken))
            if broken:
                break
        self._events.put_nowait(None)

    async def _one_life(self) -> str:
        """Start ranks, follow them to their end, and return its reason."""
        ours, theirs = socket.socketpair()
        report, told = os.pipe()
        try:
            with theirs:
                process = await self._launch(theirs.fileno(), told)
        except OSError as error:
            ours.close()
            os.close(report)
            return f"the ranks cannot be started: {error}"
        finally:
            os.close(told)
        reader, self._socket = await asyncio.open_connection(sock=ours)
        self._process = process
        writing = asyncio.create_task(_log_lines(process))
        try:
            if self._stopping:  # told to before there was somebody to tell
                _signal(process, signal.SIGTERM)
            explained = await self._follow(reader)
            await process.wait()
            await writing
            line = os.read(report, 65536).decode(errors="replace")
            return explained or line or f"the ranks ended with status {process.returncode}"
        finally:
            os.close(report)
            self._socket.close()
            self._socket = self._process = None

    async def _launch(self, descriptor: int, told: int) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "wantrn.serving.engines.local.launcher",
            self._options.to_json(),
            str(descriptor),
            str(told),
            env={**os.environ, "PYTHONPATH": MODULES},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            pass_fds=(descriptor, told),
            limit=_LINE_BYTES,
            # a terminal's Ctrl-C is for this process, which then ends the ranks
            process_group=0,
        )

    async def _follow(self, reader: asyncio.StreamReader) -> str:
        """Pass on what the first rank says, until it ends; why, if it said so."""
        explained = ""
        while (report := await _receive(reader)) is not None:
            if isinstance(report, Ended):
                explained = report.reason
                continue
            if isinstance(report, Ready):
                self._health, self._became_ready = Health.READY, True
            elif isinstance(report, Finished | Failed | Cancelled):
                self._has.discard(report.id)
            self._events.put_nowait(report)
        if self._became_ready:
            self._health = Health.RESTARTING
        return explained


async def _receive(reader: asyncio.StreamReader) -> Report | None:
    """The next report; None if there is no more, or only part of one."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        head = await reader.readexactly(length)
        report = unpack(head, await reader.readexactly(extra_bytes(head)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    assert not isinstance(report, Begin | Drop | End)
    return report


async def _log_lines(process: Process) -> None:
    """What ranks write, line by line, into the log."""
    assert process.stdout is not None
    while True:
        try:
            line = await process.stdout.readline()
        except ValueError:  # longer than may be kept
            continue
        if not line:
            return
        _log.info("%s", line.decode(errors="replace").rstrip())


async def _end(process: Process | None) -> None:
    """Wait for the launcher to end; tell it to, and at last kill it, if it does not."""
    if process is None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_SECONDS)
            return
        _signal(process, number)
    await process.wait()


def _signal(process: Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
