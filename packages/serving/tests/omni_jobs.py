"""What becomes of work that the engine of vLLM-Omni is given, good and bad, through a dead rank.

A program for the environment with vLLM-Omni; see ``omni_environment``. The question is a checkpoint
folder, a folder for videos, ranks, and a picture for models that need one; the answer is all events
and what was seen in between.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from wantrn.model.media import read_image
from wantrn.model.settings import Settings, VideoRequest, resolve
from wantrn.serving.engines.omni.engine import OmniEngine
from wantrn.serving.engines.options import EngineOptions
from wantrn.serving.engines.protocol import (
    Cancelled,
    EngineError,
    Event,
    Failed,
    Finished,
    Lost,
    Previewed,
    Ready,
    Stepped,
    Work,
)
from wantrn.serving.rank_options import RankOptions

SECONDS = 240.0  # for anything, on a busy machine


class Trial:
    """An engine, and all that it has said."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.folder = Path(question["folder"])
        picture = question["picture"]
        self.picture = None if picture is None else Path(picture)
        self.engine = OmniEngine(
            EngineOptions(
                model=Path(question["model"]), threads=1, ranks=RankOptions(**question["ranks"])
            )
        )
        self.events: list[Event] = []
        self.seen: dict[str, Any] = {}
        self._told = asyncio.Condition()

    async def follow(self) -> None:
        async for event in self.engine.events():
            self.events.append(event)
            async with self._told:
                self._told.notify_all()

    async def until(self, wanted: Callable[[Event], bool], after: int = 0) -> Event:
        """The first such event, of those after the first ``after``."""

        def found() -> list[Event]:
            return [event for event in self.events[after:] if wanted(event)]

        async with asyncio.timeout(SECONDS), self._told:
            await self._told.wait_for(lambda: bool(found()))
        return found()[0]

    def settings(
        self, steps: int, size: tuple[int, int] = (48, 48), guidance: float = 3
    ) -> Settings:
        image = None if self.picture is None else read_image(self.picture)
        request = VideoRequest(
            prompt="a cat", image=image, size=size, frames=5, steps=steps, guidance=guidance, seed=5
        )
        return replace(resolve(request, self.engine.info), image=None)

    async def submit(self, id: str, settings: Settings, image: Path | None = None) -> None:
        # a folder of PNG files, whose pixels are exact, where they are looked at
        name = id if id in ("plain", "after") else f"{id}.mp4"
        await self.engine.submit(
            Work(
                id=id,
                settings=settings,
                output=self.folder / name,
                image=image or self.picture,
                metadata={"made": id},
            )
        )

    async def ended(self, id: str) -> Event:
        ends = (Finished, Failed, Cancelled)
        return await self.until(lambda event: isinstance(event, ends) and event.id == id)

    async def stepped(self, id: str) -> Event:
        return await self.until(lambda event: isinstance(event, Stepped) and event.id == id)

    async def refused(self, id: str, settings: Settings) -> str:
        try:
            await self.submit(id, settings)
        except EngineError as error:
            return str(error)
        raise AssertionError(f"{id} was taken")


@asynccontextmanager
async def started(question: dict[str, Any]) -> AsyncIterator[Trial]:
    trial = Trial(question)
    trial.seen["described"] = dict(trial.engine.describe())
    trial.seen["refused early"] = await trial.refused("early", trial.settings(2))
    await trial.engine.start()
    following = asyncio.create_task(trial.follow())
    await trial.until(lambda event: isinstance(event, Ready | Lost))
    yield trial
    await trial.engine.stop()
    await asyncio.wait_for(following, SECONDS)


async def good_and_bad(trial: Trial) -> None:
    """A video; work that fails, and nothing else with it; quick work behind slow work."""
    await trial.submit("plain", trial.settings(4))
    await trial.ended("plain")
    await trial.submit("unreadable", trial.settings(2), Path("nothing-there.png"))
    await trial.ended("unreadable")
    await trial.submit("infinite", trial.settings(3, guidance=1e38))
    await trial.ended("infinite")

    # a step takes longer than hearing of it
    await trial.submit("slow", trial.settings(900, (256, 256)))
    await trial.stepped("slow")
    await trial.submit("quick", trial.settings(6, (64, 32)))
    trial.seen["refused full"] = await trial.refused("third", trial.settings(2))
    await trial.ended("quick")
    trial.seen["slow when quick ended"] = steps_of(trial, "slow")
    await trial.until(lambda event: isinstance(event, Previewed) and event.id == "slow")
    trial.seen["slow when told to stop"] = steps_of(trial, "slow")
    await trial.engine.cancel("slow")
    await trial.engine.cancel("never heard of")
    await trial.ended("slow")
    trial.seen["slow when cancelled"] = steps_of(trial, "slow")


async def dead_rank(trial: Trial) -> None:
    """A rank that dies with two videos in work, and what comes after."""
    await trial.submit("doomed", trial.settings(900))
    await trial.submit("doomed too", trial.settings(900, (64, 32)))
    await trial.stepped("doomed too")
    before, killed = len(trial.events), time.monotonic()
    os.kill(trial.engine.pids[-1], signal.SIGKILL)
    await trial.until(lambda event: isinstance(event, Lost))
    trial.seen["seconds to notice"] = time.monotonic() - killed
    trial.seen["health when lost"] = trial.engine.health.value
    trial.seen["refused when lost"] = await trial.refused("lost", trial.settings(2))
    await trial.until(lambda event: isinstance(event, Ready), before)
    await trial.submit("after", trial.settings(4))
    await trial.ended("after")


def steps_of(trial: Trial, id: str) -> int:
    return sum(isinstance(event, Stepped) and event.id == id for event in trial.events)


def ranks_left() -> list[str]:
    """Processes of this one's session that are ranks."""
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            session = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[3])
            title = folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if session == os.getsid(0) and "Worker" in title:
            left.append(title)
    return left


def as_json(event: Event) -> list[Any]:
    values = {"bytes": len(event.png)} if isinstance(event, Previewed) else asdict(event)
    return [type(event).__name__, getattr(event, "id", None), values]


async def run(question: dict[str, Any]) -> dict[str, Any]:
    shared = sorted(os.listdir("/dev/shm"))
    async with started(question) as trial:
        trial.seen["pids"] = len(set(trial.engine.pids))
        trial.seen["ranks"] = len(ranks_left())
        await good_and_bad(trial)
        if question["kill"]:
            await dead_rank(trial)
        await trial.submit("unfinished", trial.settings(900))
        await trial.stepped("unfinished")
    trial.seen["ranks left"] = ranks_left()
    trial.seen["shared memory left"] = sorted(set(os.listdir("/dev/shm")) - set(shared))
    return {"events": [as_json(event) for event in trial.events], "seen": trial.seen}


def main() -> None:
    question = json.loads(Path(sys.argv[1]).read_text())
    answer = asyncio.run(run(question))
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
