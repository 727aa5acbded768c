"""What every engine keeps, and answers in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping

from wantrn.model.info import ModelInfo
from wantrn.model.settings import Settings
from wantrn.serving.engines.options import EngineOptions
from wantrn.serving.engines.protocol import EngineError, Event, Health


class EngineState:
    """The part of ``Engine`` that does not depend on where the ranks are.

    ``described`` is how it computes. Whoever derives from it puts events into ``_events``, None as
    the last, and keeps ``_health``.
    """

    def __init__(
        self,
        options: EngineOptions,
        info: ModelInfo,
        described: Mapping[str, str | int | float],
    ) -> None:
        self._info = info
        self._slots = options.slots
        self._ranks = options.ranks
        self._described = described
        self._health = Health.STARTING
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._stopping = False

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def health(self) -> Health:
        return self._health

    def describe(self) -> Mapping[str, str | int | float]:
        return self._described

    def check(self, settings: Settings) -> None:
        self._ranks.check(self._info, settings)

    async def events(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            yield event

    def _check_room(self, given: Collection[str]) -> None:
        """Raise ``EngineError`` unless work can be taken beside what was ``given``."""
        if self._health is not Health.READY:
            raise EngineError(f"the engine is {self._health.value}")
        if len(given) >= self._slots:
            raise EngineError(f"all {self._slots} slots are taken")
