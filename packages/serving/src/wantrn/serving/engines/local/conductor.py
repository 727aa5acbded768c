"""Decides, on the first rank, what all ranks do next."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from wantrn.serving.engines.local.messages import Begin, Command, Drop, End
from wantrn.serving.engines.protocol import Work

IDLE_SECONDS = 30.0
"""How long ranks wait for work before they meet again: a collective may not take for ever."""


@dataclass(frozen=True)
class Order:
    """What all ranks do. ``what`` is ``begin`` (with ``work``), ``step``, ``finish`` or ``drop``
    (with ``id``), ``wait`` or ``end``."""

    what: str
    id: str = ""
    work: Work | None = None


class Commands(Protocol):
    def take(self, seconds: float) -> Command | None: ...


class Videos(Protocol):
    """What is being made; see ``Runs``."""

    @property
    def ids(self) -> tuple[str, ...]: ...

    def done(self, id: str) -> bool: ...


class Conductor:
    """A step of each video in turn, in the order in which they came. Commands come before steps."""

    def __init__(self, commands: Commands, videos: Videos) -> None:
        self._commands = commands
        self._videos = videos
        self._turns: deque[str] = deque()

    def next(self) -> Order:
        command = self._commands.take(0.0 if self._videos.ids else IDLE_SECONDS)
        if isinstance(command, Begin):
            self._turns.append(command.work.id)
            return Order("begin", work=command.work)
        if isinstance(command, Drop):
            return Order("drop", id=command.id)
        if isinstance(command, End):
            return Order("end")
        return self._turn()

    def _turn(self) -> Order:
        making = self._videos.ids
        while self._turns:
            id = self._turns.popleft()
            if id not in making:  # it failed, or was dropped
                continue
            if self._videos.done(id):
                return Order("finish", id=id)
            self._turns.append(id)
            return Order("step", id=id)
        return Order("wait")
