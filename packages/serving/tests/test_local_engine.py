"""The embedded engine by its protocol: real ranks, and every event of theirs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripted_engine import tiny_info
from server_process import processes

from wantrn.model.info import ModelInfo
from wantrn.model.media import read_video
from wantrn.model.settings import VideoRequest, resolve
from wantrn.serving.engines.local.engine import LocalEngine
from wantrn.serving.engines.local.options import LocalOptions
from wantrn.serving.engines.protocol import (
    Cancelled,
    Decoding,
    EngineError,
    Event,
    Failed,
    Finished,
    Health,
    Lost,
    Previewed,
    Ready,
    Started,
    Stepped,
    Work,
)
from wantrn.serving.rank_options import RankOptions

SECONDS = 200.0


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return tiny_info(tmp_path_factory.mktemp("tiny"))


class Running:
    """An engine, and its events as they come."""

    def __init__(self, engine: LocalEngine, folder: Path) -> None:
        self.engine = engine
        self.events = engine.events()
        self.folder = folder

    def work(self, id: str, steps: int, size: int = 64, frames: int = 5) -> Work:
        request = VideoRequest(id, size=(size, size), frames=frames, steps=steps, seed=1)
        settings = resolve(request, self.engine.info)
        return Work(id, settings, self.folder / f"{id}.mp4")

    async def until(self, *wanted: Event | type[Event]) -> list[Event]:
        """All events up to the first that is wanted, or of a wanted kind. No previews."""
        seen: list[Event] = []
        async for event in self.events:
            if isinstance(event, Previewed):
                continue
            seen.append(event)
            if any(event == one or event.__class__ is one for one in wanted):
                return seen
        raise AssertionError(f"the engine ended after {seen[-5:]}")


@asynccontextmanager
async def running(info: ModelInfo, folder: Path, **options: object) -> AsyncIterator[Running]:
    given = {"threads": 1, **options}
    engine = LocalEngine(LocalOptions(model=info.directory, **given))  # type: ignore[arg-type]
    await engine.start()
    try:
        yield Running(engine, folder)
    finally:
        await engine.stop()


def ranks() -> list[int]:
    """The ranks that this process has started, through a launcher."""
    table = processes()
    launchers = {pid for pid, (parent, _) in table.items() if parent == os.getpid()}
    return sorted(pid for pid, (parent, _) in table.items() if parent in launchers)


def test_videos_take_turns_and_end_as_they_should(tmp_path: Path, info: ModelInfo) -> None:
    async def body() -> None:
        async with running(info, tmp_path) as r:
            assert r.engine.health is Health.STARTING
            with pytest.raises(EngineError, match="the engine is starting"):
                await r.engine.submit(r.work("early", 1))
            await r.until(Ready)
            await r.engine.submit(r.work("long", 400))
            await r.engine.submit(r.work("short", 3))
            with pytest.raises(EngineError, match="all 2 slots are taken"):
                await r.engine.submit(r.work("third", 1))
            await r.engine.cancel("nobody")
            seen = await r.until(Finished)
            assert seen[-1].id == "short"  # type: ignore[union-attr]
            turns = [event.id for event in seen if isinstance(event, Stepped)]
            both = turns[turns.index("short") - 1 :]
            assert both[:6] == ["long", "short"] * 3
            await r.engine.cancel("long")
            seen = await r.until(Cancelled("long"))
            steps = [event for event in seen if isinstance(event, Stepped)]
            assert not (tmp_path / "long.mp4").exists() and len(turns) + len(steps) < 400
            frames, _, _ = read_video(tmp_path / "short.mp4")
            assert frames.shape == (5, 64, 64, 3)
            await check_failures(r)
        assert ranks() == []

    asyncio.run(asyncio.wait_for(body(), SECONDS))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at a process in /proc")
def test_one_thread_alone_computes(tmp_path: Path, info: ModelInfo) -> None:
    """A second one would have OpenMP workers of its own, and with more than there are cores, all
    sleep at every barrier: a step took 1.2 times as long."""

    async def of_a_rank(threads: int) -> int:
        async with running(info, tmp_path, threads=threads) as r:
            await r.until(Ready)
            await r.engine.submit(r.work(str(threads), 2, size=128, frames=9))
            await r.until(Finished)
            (rank,) = ranks()
            return len(list(Path(f"/proc/{rank}/task").iterdir()))

    def of_torch(threads: int) -> int:
        program = f"""import os, torch
torch.set_num_threads({threads})
torch.rand(2**20).exp()
print(len(os.listdir("/proc/self/task")))"""
        return int(subprocess.check_output([sys.executable, "-c", program]))

    async def body() -> None:
        more = await of_a_rank(4) - await of_a_rank(1)
        assert more == of_torch(4) - of_torch(1) >= 3

    asyncio.run(asyncio.wait_for(body(), SECONDS))


async def check_failures(r: Running) -> None:
    """Work that cannot be done fails alone, and leaves nothing."""
    picture = r.folder / "no picture"
    picture.write_text("x")
    await r.engine.submit(replace(r.work("a", 2), image=picture))
    (failed,) = [one for one in await r.until(Failed) if isinstance(one, Failed)]
    assert failed.code == "invalid_input"
    await r.engine.submit(replace(r.work("b", 2), output=r.folder / "nowhere" / "b.mp4"))
    (failed,) = [one for one in await r.until(Failed) if isinstance(one, Failed)]
    assert failed.code == "not_written"
    await r.engine.submit(r.work("c", 2))
    seen = await r.until(Finished)
    assert [type(event) for event in seen] == [Started, Stepped, Stepped, Decoding, Finished]
    experts = [event.expert for event in seen if isinstance(event, Stepped)]
    assert experts == [0, 1]
    assert isinstance(seen[-1], Finished)
    assert list(seen[-1].seconds) == ["text and noise", "denoise", "decode", "write"]
    assert all(value > 0 for value in seen[-1].seconds.values())


@pytest.mark.parametrize("tp", [1, 2])
def test_what_is_lost_while_it_is_decoded_is_decoded_again_in_tiles(
    tmp_path: Path, info: ModelInfo, tp: int
) -> None:
    async def body() -> None:
        async with running(info, tmp_path, ranks=RankOptions(tp=tp)) as r:
            await r.until(Ready)
            # long enough to decode for a signal to come in between
            work = replace(r.work("a", 2, 128, 33), latents=tmp_path / "latents")
            await r.engine.submit(work)
            await r.until(Decoding("a"))
            os.kill(ranks()[-1], signal.SIGKILL)
            lost = (await r.until(Lost))[-1]
            assert isinstance(lost, Lost) and not lost.broken
            assert f"rank {tp - 1} of {tp} was ended by SIGKILL" in lost.reason
            assert r.engine.health is Health.RESTARTING
            assert (tmp_path / "latents").exists() and not work.output.exists()
            await r.until(Ready)
            await r.engine.submit(work)
            seen = await r.until(Finished, Failed)
            assert [type(event) for event in seen] == [Started, Decoding, Finished]
            assert not (tmp_path / "latents").exists()
            await compare(r, work)
        assert ranks() == []

    asyncio.run(asyncio.wait_for(body(), SECONDS))


async def compare(r: Running, work: Work) -> None:
    """The video is that of the same work that nothing happened to, but for the tiles' edges."""
    again = replace(work, id="b", output=r.folder / "b.mp4")
    await r.engine.submit(again)
    await r.until(Finished)
    one, other = (read_video(file)[0].astype(int) for file in (work.output, again.output))
    assert one.shape == other.shape == (33, 128, 128, 3)
    # smaller than a tile, so there are no edges
    assert np.array_equal(one, other)


def test_what_was_never_ready_gives_up_and_says_why(tmp_path: Path, info: ModelInfo) -> None:
    async def body() -> None:
        # LocalOptions does not look at weights, and this folder has none
        for file in ("model_index.json", "generation_defaults.json"):
            (tmp_path / file).write_bytes((info.directory / file).read_bytes())
        for folder in ("transformer", "transformer_2", "vae", "scheduler"):
            for name in ("config.json", "scheduler_config.json"):
                source = info.directory / folder / name
                if source.exists():
                    (tmp_path / folder).mkdir(exist_ok=True)
                    (tmp_path / folder / name).write_bytes(source.read_bytes())
        engine = LocalEngine(LocalOptions(model=tmp_path))
        await engine.start()
        with pytest.raises(EngineError, match="started already"):
            await engine.start()
        events = [event async for event in engine.events()]
        assert len(events) == 1 and isinstance(events[0], Lost) and events[0].broken
        assert str(tmp_path) in events[0].reason and "Traceback" not in events[0].reason
        assert engine.health is Health.BROKEN
        await engine.stop()

    asyncio.run(asyncio.wait_for(body(), SECONDS))


def test_an_engine_that_is_stopped_while_it_starts(tmp_path: Path, info: ModelInfo) -> None:
    async def body() -> None:
        engine = LocalEngine(LocalOptions(model=info.directory))
        await engine.stop()  # before it was started: nothing to do
        engine = LocalEngine(LocalOptions(model=info.directory))
        await engine.start()
        await asyncio.sleep(1)
        await engine.stop()
        assert [event async for event in engine.events()] == []
        assert ranks() == []

    asyncio.run(asyncio.wait_for(body(), SECONDS))
