"""The end of what a process wrote."""

from __future__ import annotations

import os


class Tail:
    """The last ``limit`` bytes that came through a pipe, which is never left full."""

    def __init__(self, descriptor: int, limit: int = 1 << 16) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._limit = limit
        self._kept = bytearray()
        self._cut = False

    def read(self) -> bool:
        """Take what is there; whether more can come."""
        while True:
            try:
                chunk = os.read(self._descriptor, self._limit)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._kept += chunk
            if len(self._kept) > self._limit:
                del self._kept[: -self._limit]
                self._cut = True

    def text(self) -> str:
        """What was kept, in whole lines, with a mark where the beginning is missing."""
        text = self._kept.decode(errors="replace")
        return "[...]\n" + text.partition("\n")[2] if self._cut else text
