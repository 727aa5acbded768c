"""What makes videos: the small protocol between the jobs and whatever computes them.

An engine knows nothing of jobs that wait, of records or of files but the one that it is told to
write. Of whoever uses it, it needs one reader of its events.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from wantrn.model.info import ModelInfo
from wantrn.model.settings import Settings


class Health(enum.Enum):
    """Whether an engine can work now."""

    STARTING = "starting"
    """It has not been ready yet."""
    READY = "ready"
    RESTARTING = "restarting"
    """Its ranks died; it is starting them again by itself."""
    BROKEN = "broken"
    """It gave up; only a new process helps."""


@dataclass(frozen=True)
class Work:
    """One video to make.

    Attributes:
        id: unique among all that an engine is ever given.
        settings: the effective ones, without the picture.
        output: the MP4 file to write; its folder exists.
        image: the file of the first frame, for ``settings`` that have one.
        latents: a file for the latents of all steps, which an engine may write before it decodes
            them. Where it is there already, an engine that writes it makes no steps, and decodes in
            tiles, which takes less memory: with more, it was lost at that point.
        metadata: is kept in the video.
    """

    id: str
    settings: Settings
    output: Path
    image: Path | None = None
    latents: Path | None = None
    metadata: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ready:
    """The engine takes work: for the first time, or again after ``Lost``."""


@dataclass(frozen=True)
class Lost:
    """The ranks are gone, and with them all work that the engine had; no other event of that work
    follows. With ``broken`` the engine gave up, else it starts them again and says ``Ready``."""

    reason: str
    broken: bool = False


@dataclass(frozen=True)
class Started:
    """The work's prompt is being encoded."""

    id: str


@dataclass(frozen=True)
class Stepped:
    """A denoising step is done.

    Attributes:
        step: the number of steps done, from 1.
        steps: the number of all.
        seconds: of this step alone.
        expert: the transformer that made it: 0 the high-noise (or only) one, 1 the low-noise one.
        reused: a step cache made it of what earlier ones had computed.
    """

    id: str
    step: int
    steps: int
    seconds: float
    expert: int
    reused: bool = False


@dataclass(frozen=True)
class Previewed:
    """What the video would be like by now: a small PNG picture of its middle frame."""

    id: str
    png: bytes


@dataclass(frozen=True)
class Decoding:
    """All steps are done; the video is being decoded and written."""

    id: str


@dataclass(frozen=True)
class Finished:
    """The file is complete at ``Work.output``.

    ``seconds`` is the time of each stage: ``text and noise``, ``denoise``, ``decode``, ``write``.
    """

    id: str
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Failed:
    """The work cannot be made; nothing is at ``Work.output``.

    ``code`` is a short word for programs, ``reason`` a sentence for people.
    """

    id: str
    code: str
    reason: str


@dataclass(frozen=True)
class Cancelled:
    """The work was dropped, as ``cancel`` asked; nothing is at ``Work.output``."""

    id: str


WorkEvent = Started | Stepped | Previewed | Decoding | Finished | Failed | Cancelled
Event = Ready | Lost | WorkEvent


class EngineError(RuntimeError):
    """An engine cannot be started, or has no use for what it is told now."""


class Engine(Protocol):
    """Makes videos, several at once, one step of each in turn.

    Each piece of work ends in exactly one of ``Finished``, ``Failed``, ``Cancelled`` or ``Lost``.
    """

    @property
    def info(self) -> ModelInfo:
        """The checkpoint that it makes videos with."""
        ...

    @property
    def slots(self) -> int:
        """How many pieces of work it takes at once."""
        ...

    @property
    def health(self) -> Health: ...

    def describe(self) -> Mapping[str, str | int | float]:
        """How it computes, for people and for the metadata of videos."""
        ...

    def check(self, settings: Settings) -> None:
        """Raise ``RequestError``, naming the field, for a video that cannot be made here."""
        ...

    async def start(self) -> None:
        """Begin to become ready, which ``Ready`` tells.

        Raises:
            EngineError: it cannot be started at all.
        """
        ...

    async def stop(self) -> None:
        """End, and leave no process, file or shared memory behind. ``events`` ends."""
        ...

    async def submit(self, work: Work) -> None:
        """Make a video.

        Raises:
            EngineError: it is not ready, or all slots are taken.
        """
        ...

    async def cancel(self, id: str) -> None:
        """Drop work at the next step; ``Cancelled`` tells when it is done. What is unknown, or
        ends in another way meanwhile, is left alone."""
        ...

    def events(self) -> AsyncIterator[Event]:
        """What happens, in order, until ``stop``. For one reader."""
        ...
