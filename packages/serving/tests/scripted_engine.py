"""An engine whose every event a test decides, and settings for it to be given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from wantrn.model.errors import RequestError
from wantrn.model.info import ModelInfo, ModelKind, read_model_info
from wantrn.model.settings import Settings, VideoRequest, resolve
from wantrn.model.tiny import write_tiny_checkpoint
from wantrn.serving.engines.protocol import (
    Cancelled,
    EngineError,
    Event,
    Failed,
    Finished,
    Health,
    Lost,
    Ready,
    Work,
)

ENDS = (Finished, Failed, Cancelled)


class ScriptedEngine:
    """Keeps what it is given, and says what ``say`` is told to."""

    def __init__(self, info: ModelInfo, slots: int = 2) -> None:
        self._info = info
        self._slots = slots
        self._health = Health.STARTING
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self.has: dict[str, Work] = {}
        self.given: list[Work] = []
        self.asked_to_cancel: list[str] = []
        self.refused = ""
        """What ``check`` refuses every video for."""
        self.stopped = False

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
        return {"engine": "scripted"}

    def check(self, settings: Settings) -> None:
        if self.refused:
            raise RequestError("strict_tokens", self.refused)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.stopped = True
        self._events.put_nowait(None)

    async def submit(self, work: Work) -> None:
        if self._health is not Health.READY:
            raise EngineError(f"the engine is {self._health.value}")
        assert len(self.has) < self._slots, "more work than slots"
        assert work.id not in self.has and work.output.parent.is_dir()
        self.has[work.id] = work
        self.given.append(work)

    async def cancel(self, id: str) -> None:
        self.asked_to_cancel.append(id)

    async def events(self) -> AsyncIterator[Event]:
        while (event := await self._events.get()) is not None:
            yield event

    async def say(self, event: Event) -> None:
        """Let an event happen, and wait until it has been heard and acted upon."""
        if isinstance(event, Ready):
            self._health = Health.READY
        elif isinstance(event, Lost):
            self._health = Health.BROKEN if event.broken else Health.RESTARTING
            self.has.clear()
        elif isinstance(event, ENDS):
            self.has.pop(event.id)
        self._events.put_nowait(event)
        await settle()


async def settle() -> None:
    """Let everything that waits for nothing else run."""
    for _ in range(20):
        await asyncio.sleep(0)


def tiny_info(folder: Path, kind: ModelKind = ModelKind.T2V) -> ModelInfo:
    """Of a model with random weights, which is written to a new folder in ``folder``."""
    return read_model_info(write_tiny_checkpoint(folder / kind.value, kind))


def settings_of(info: ModelInfo, prompt: str = "a red ball", steps: int = 4) -> Settings:
    return resolve(VideoRequest(prompt, size=(64, 64), frames=5, steps=steps, seed=1), info)
