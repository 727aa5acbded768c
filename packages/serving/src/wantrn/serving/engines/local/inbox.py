"""The first rank's end of the socket to the engine's process."""

from __future__ import annotations

import os
import queue
import socket
import threading

from wantrn.serving.engines.local.messages import (
    LENGTH,
    Begin,
    Command,
    Drop,
    End,
    Report,
    extra_bytes,
    pack,
    unpack,
)


class Inbox:
    """Takes commands in a thread of its own, and sends reports.

    If the engine's process is gone, this one ends at once, and the other ranks with it: nobody is
    left to make videos for.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._sending = threading.Lock()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def take(self, seconds: float) -> Command | None:
        """The next command, waiting up to ``seconds`` for one; None if none came."""
        try:
            return self._commands.get(timeout=seconds) if seconds else self._commands.get_nowait()
        except queue.Empty:
            return None

    def send(self, report: Report) -> None:
        with self._sending:
            self._socket.sendall(pack(report))

    def _read(self) -> None:
        try:
            while head := self._exactly(LENGTH.size):
                encoded = self._exactly(*LENGTH.unpack(head))
                command = unpack(encoded, self._exactly(extra_bytes(encoded)))
                assert isinstance(command, Begin | Drop | End)
                self._commands.put(command)
        except OSError:
            pass
        os._exit(1)

    def _exactly(self, count: int) -> bytes:
        """``count`` bytes; none at the end of what is sent."""
        parts = []
        while count:
            part = self._socket.recv(count)
            if not part:
                return b""
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
