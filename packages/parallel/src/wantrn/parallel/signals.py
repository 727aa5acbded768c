"""Signals as something to read, beside pipes and sockets."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any


class Signals:
    """Turns signals into calls from the main thread's own loop.

    A signal that the process was told to ignore stays ignored.
    """

    def __init__(
        self, numbers: Sequence[int], act: Callable[[int], None], reap: Callable[[], None]
    ) -> None:
        """``act`` is called with each of ``numbers``, ``reap`` when a child has ended."""
        self._numbers = numbers
        self._act = act
        self._reap = reap
        self._handlers: dict[int, Any] = {}
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)

    @property
    def descriptor(self) -> int:
        """Readable when there is a signal to ``read``."""
        return self._reading.fileno()

    def install(self) -> None:
        """Take the signals over; in the main thread."""
        self._wakeup = signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in (*self._numbers, signal.SIGCHLD):
            if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, _nothing)

    def restore(self) -> None:
        """Give them back."""
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup)
        self._reading.close()
        self._writing.close()

    def read(self) -> None:
        """Act on what has come."""
        numbers = self._reading.recv(4096)
        if signal.SIGCHLD in numbers:
            self._reap()
        for number in numbers:
            if number in self._numbers:
                self._act(number)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The number is in the socket already."""
