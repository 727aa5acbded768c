"""The owner of jobs, with an engine whose every event is the test's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine, settings_of, settle, tiny_info

from wantrn.model.info import ModelInfo
from wantrn.serving.engines.protocol import (
    Cancelled,
    Decoding,
    Event,
    Failed,
    Finished,
    Lost,
    Previewed,
    Ready,
    Started,
    Stepped,
)
from wantrn.serving.jobs.job import Job, Status
from wantrn.serving.jobs.limits import Limits
from wantrn.serving.jobs.manager import JobManager, QueueFullError, UnavailableError
from wantrn.serving.jobs.store import JobStore


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return tiny_info(tmp_path_factory.mktemp("tiny"))


class Watch:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, Status]] = []
        self.removed: list[str] = []

    def job_changed(self, job: Job) -> None:
        self.changes.append((job.id, job.status))

    def job_removed(self, job: Job) -> None:
        self.removed.append(job.id)

    def engine_said(self, event: Event) -> None:
        pass


class House:
    """A store, an engine and the manager over them."""

    def __init__(self, folder: Path, info: ModelInfo, limits: Limits, slots: int) -> None:
        self.store = JobStore(folder)
        self.engine = ScriptedEngine(info, slots)
        self.watch = Watch()
        self.jobs = JobManager(self.store, self.engine, "tiny", limits, (self.watch,))

    async def submit(self, prompt: str = "a") -> Job:
        job = self.jobs.submit(settings_of(self.engine.info, prompt))
        await settle()
        return job

    async def finish(self, id: str) -> None:
        self.engine.has[id].output.write_bytes(b"video of " + id.encode())
        await self.engine.say(Finished(id, {"denoise": 2.0}))

    def status(self, job: Job) -> Status:
        found = self.jobs.get(job.id)
        assert found is not None
        return found.status

    def code(self, job: Job) -> str:
        found = self.jobs.get(job.id)
        assert found is not None and found.error is not None
        return found.error.code

    def folders(self) -> set[str]:
        return {path.name for path in (self.store.folder / "jobs").iterdir()}


@asynccontextmanager
async def house(
    folder: Path, info: ModelInfo, limits: Limits | None = None, slots: int = 2
) -> AsyncIterator[House]:
    made = House(folder, info, Limits() if limits is None else limits, slots)
    await made.jobs.start()
    await settle()
    try:
        yield made
    finally:
        await made.jobs.stop()
        made.store.close()


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 60))


def test_a_job_from_its_beginning_to_its_end(tmp_path: Path, info: ModelInfo) -> None:
    async def body() -> None:
        async with house(tmp_path, info) as h:
            with pytest.raises(UnavailableError, match="starting"):
                await h.submit()
            await h.engine.say(Ready())
            job = await h.submit("a red ball")
            assert h.status(job) is Status.QUEUED
            (work,) = h.engine.given
            assert work.id == job.id and work.settings == job.settings
            assert work.metadata["engine"] == "scripted" and work.metadata["seed"] == 1
            await h.engine.say(Started(job.id))
            assert h.status(job) is Status.IN_PROGRESS
            shown = []
            for step in range(1, 5):
                await h.engine.say(Stepped(job.id, step, 4, 0.5, 0, reused=step in (2, 3)))
                progress = h.jobs.progress(job.id)
                assert progress is not None and progress.step_seconds == 0.5
                shown.append((progress.percent, progress.reused))
            assert shown == [(25, 0), (50, 1), (75, 2), (99, 2)]
            await h.engine.say(Previewed(job.id, b"png"))
            await h.engine.say(Decoding(job.id))
            progress = h.jobs.progress(job.id)
            assert progress is not None and (progress.preview, progress.decoding) == (b"png", True)
            await h.finish(job.id)
            assert h.jobs.progress(job.id) is None
            ended = h.jobs.get(job.id)
            assert ended is not None and ended.status is Status.COMPLETED
            assert ended.seconds == {"denoise": 2.0} and ended.ended_at and ended.expires_at
            assert ended.steps_reused == 2
            assert h.jobs.video(ended).read_bytes() == b"video of " + job.id.encode()
            assert [status for _, status in h.watch.changes] == [
                Status.QUEUED,
                Status.IN_PROGRESS,
                Status.COMPLETED,
            ]

    run(body)


def test_jobs_wait_in_order_and_the_queue_has_an_end(tmp_path: Path, info: ModelInfo) -> None:
    async def body() -> None:
        async with house(tmp_path, info, Limits(queued=3), slots=2) as h:
            await h.engine.say(Ready())
            jobs = [await h.submit(str(place)) for place in range(5)]
            assert [work.id for work in h.engine.given] == [job.id for job in jobs[:2]]
            assert [h.jobs.position(job.id) for job in jobs] == [None, None, 0, 1, 2]
            with pytest.raises(QueueFullError, match="3 jobs are waiting") as full:
                await h.submit()
            assert full.value.retry_after > 0
            await h.engine.say(Started(jobs[0].id))
            await h.finish(jobs[0].id)
            assert [work.id for work in h.engine.given] == [job.id for job in jobs[:3]]
            assert h.jobs.waiting == 2
            await h.submit()

    run(body)


def test_a_picture_is_kept_beside_its_job(tmp_path: Path, info: ModelInfo) -> None:
    async def body() -> None:
        async with house(tmp_path, info) as h:
            await h.engine.say(Ready())
            job = h.jobs.submit(settings_of(info), (".png", b"picture"))
            await settle()
            image = h.engine.given[0].image
            assert image is not None and image.read_bytes() == b"picture"
            assert image.parent == h.engine.given[0].output.parent and job.image == "image.png"

    run(body)


def test_cancelling(tmp_path: Path, info: ModelInfo) -> None:
    async def body() -> None:
        async with house(tmp_path, info, slots=1) as h:
            await h.engine.say(Ready())
            running, waiting, next_one = [await h.submit() for _ in range(3)]
            await h.engine.say(Started(running.id))
            await h.jobs.cancel(waiting)
            assert (h.status(waiting), h.code(waiting)) == (Status.FAILED, "cancelled")
            await h.jobs.cancel(running)
            assert h.engine.asked_to_cancel == [running.id]
            assert h.status(running) is Status.IN_PROGRESS
            await h.engine.say(Cancelled(running.id))
            assert (h.status(running), h.code(running)) == (Status.FAILED, "cancelled")
            assert [work.id for work in h.engine.given] == [running.id, next_one.id]

    run(body)


def test_what_ends_before_it_is_cancelled_has_its_own_end(tmp_path: Path, info: ModelInfo) -> None:
    async def body() -> None:
        async with house(tmp_path, info) as h:
            await h.engine.say(Ready())
            job = await h.submit()
            await h.engine.say(Started(job.id))
            await h.jobs.cancel(job)
            await h.finish(job.id)
            assert h.status(job) is Status.COMPLETED

    run(body)


@pytest.mark.parametrize("end", ["cancelled", "finished", "failed", "lost"])
def test_what_is_deleted_while_it_runs_is_gone_and_its_files_with_the_engines_last_word(
    tmp_path: Path, info: ModelInfo, end: str
) -> None:
    async def body() -> None:
        async with house(tmp_path, info) as h:
            await h.engine.say(Ready())
            job = await h.submit()
            await h.engine.say(Started(job.id))
            await h.jobs.delete(job)
            assert h.jobs.get(job.id) is None and h.jobs.progress(job.id) is None
            assert h.engine.asked_to_cancel == [job.id]
            assert h.folders() == {job.id}  # the engine may be writing there
            await h.engine.say(Stepped(job.id, 2, 4, 0.1, 0))
            if end == "finished":
                await h.finish(job.id)
            else:
                last: dict[str, Event] = {
                    "cancelled": Cancelled(job.id),
                    "failed": Failed(job.id, "not_finite", "step 3"),
                    "lost": Lost("rank 0 of 1 was ended by SIGKILL"),
                }
                await h.engine.say(last[end])
            assert h.folders() == set() and h.watch.removed == [job.id]
            assert h.jobs.page(10, None, True) == []

    run(body)


def test_lost_ranks_fail_what_they_had_begun_and_nothing_else(
    tmp_path: Path, info: ModelInfo
) -> None:
    async def body() -> None:
        async with house(tmp_path, info, slots=2) as h:
            await h.engine.say(Ready())
            begun, given, waiting = [await h.submit() for _ in range(3)]
            await h.engine.say(Started(begun.id))
            await h.engine.say(Lost("rank 1 of 2 was ended by SIGKILL"))
            ended = h.jobs.get(begun.id)
            assert ended is not None and ended.error is not None
            assert ended.error.code == "ranks_lost" and "SIGKILL" in ended.error.message
            assert [h.status(job) for job in (given, waiting)] == [Status.QUEUED] * 2
            assert [h.jobs.position(job.id) for job in (given, waiting)] == [0, 1]
            with pytest.raises(UnavailableError, match="restarting"):
                await h.submit()
            await h.engine.say(Ready())
            assert [work.id for work in h.engine.given[2:]] == [given.id, waiting.id]

    run(body)


def test_what_only_lacked_its_decoding_is_tried_once_more(tmp_path: Path, info: ModelInfo) -> None:
    async def body() -> None:
        async with house(tmp_path, info, slots=1) as h:
            await h.engine.say(Ready())
            jobs = [await h.submit() for _ in range(2)]
            for job in jobs:
                (first,) = [work for work in h.engine.given if work.id == job.id]
                assert first.latents is not None and first.latents.parent == first.output.parent
                await h.engine.say(Started(job.id))
                await h.engine.say(Stepped(job.id, 4, 4, 0.1, 0))
                first.latents.write_bytes(b"latents")
                await h.engine.say(Decoding(job.id))
                await h.engine.say(Lost("rank 0 of 1 was ended by SIGKILL"))
                found = h.jobs.get(job.id)
                assert found is not None
                assert (found.status, found.percent) == (Status.IN_PROGRESS, 99)
                await h.engine.say(Ready())
                assert h.engine.given[-1] == first
                await h.engine.say(Started(job.id))
                await h.engine.say(Decoding(job.id))
                if job is jobs[0]:
                    first.latents.unlink()
                    await h.finish(job.id)
                    assert h.status(job) is Status.COMPLETED
                else:  # what is lost a second time has failed
                    await h.engine.say(Lost("rank 0 of 1 was ended by SIGKILL"))
                    assert (h.status(job), h.code(job)) == (Status.FAILED, "ranks_lost")
                    assert not first.latents.exists()

    run(body)


def test_an_engine_that_gives_up_fails_all(tmp_path: Path, info: ModelInfo) -> None:
    async def body() -> None:
        async with house(tmp_path, info, slots=1) as h:
            await h.engine.say(Ready())
            jobs = [await h.submit() for _ in range(3)]
            await h.engine.say(Started(jobs[0].id))
            await h.engine.say(Lost("it never starts", broken=True))
            assert [h.code(job) for job in jobs] == ["ranks_lost", "engine_broken", "engine_broken"]
            with pytest.raises(UnavailableError, match="broken"):
                await h.submit()

    run(body)


def test_the_next_process_has_what_ended_and_takes_up_what_waited(
    tmp_path: Path, info: ModelInfo
) -> None:
    async def first() -> list[Job]:
        async with house(tmp_path, info, slots=2) as h:
            await h.engine.say(Ready())
            jobs = [await h.submit(str(place)) for place in range(4)]
            await h.engine.say(Started(jobs[0].id))
            await h.finish(jobs[0].id)
            await h.engine.say(Started(jobs[1].id))
            # as if killed: the manager is not stopped, and its store not closed in order
            for task in h.jobs._tasks:
                task.cancel()
            h.jobs._given.clear()
            return jobs

    async def second(jobs: list[Job]) -> None:
        async with house(tmp_path, info, slots=2) as h:
            assert [h.status(job) for job in jobs] == [
                Status.COMPLETED,
                Status.FAILED,
                Status.QUEUED,
                Status.QUEUED,
            ]
            assert h.code(jobs[1]) == "server_stopped"
            assert [job.id for job in h.jobs.page(10, None, False)] == [job.id for job in jobs]
            await h.engine.say(Ready())
            assert [work.id for work in h.engine.given] == [jobs[2].id, jobs[3].id]

    jobs = asyncio.run(first())
    asyncio.run(second(jobs))


def test_a_stop_fails_what_runs_and_keeps_what_waits(tmp_path: Path, info: ModelInfo) -> None:
    async def body() -> None:
        async with house(tmp_path, info, slots=1) as h:
            await h.engine.say(Ready())
            running, waiting = [await h.submit() for _ in range(2)]
            await h.engine.say(Started(running.id))
            await h.jobs.stop()
            assert h.engine.stopped
            assert (h.status(running), h.code(running)) == (Status.FAILED, "server_stopped")
            assert h.status(waiting) is Status.QUEUED
            with pytest.raises(UnavailableError):
                await h.submit()

    run(body)


def test_jobs_of_another_model_are_not_made_with_this_one(tmp_path: Path, info: ModelInfo) -> None:
    store = JobStore(tmp_path)
    other = replace(Job("video_1", "other", settings_of(info), 1.0))
    store.add(other)
    store.close()

    async def body() -> None:
        async with house(tmp_path, info) as h:
            assert h.code(other) == "model_changed"

    run(body)


def test_what_was_kept_long_enough_goes_by_itself(tmp_path: Path, info: ModelInfo) -> None:
    async def body() -> None:
        limits = Limits(keep_hours=0.2 / 3600)
        async with house(tmp_path, info, limits) as h:
            await h.engine.say(Ready())
            job = await h.submit()
            await h.engine.say(Started(job.id))
            await h.finish(job.id)
            until = time.monotonic() + 20
            while h.jobs.get(job.id) is not None and time.monotonic() < until:
                await asyncio.sleep(0.05)
            assert h.jobs.get(job.id) is None and h.folders() == set()

    run(body)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "submit",
                "start",
                "step",
                "finish",
                "fail",
                "obey",
                "cancel",
                "delete",
                "lose",
                "ready",
            ]
        ),
        st.integers(0, 7),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(actions=ACTIONS, slots=st.integers(1, 3))
def test_whatever_happens_every_job_ends_once(
    tmp_path_factory: pytest.TempPathFactory,
    info: ModelInfo,
    actions: list[tuple[str, int]],
    slots: int,
) -> None:
    async def body() -> None:
        async with house(tmp_path_factory.mktemp("any"), info, slots=slots) as h:
            await h.engine.say(Ready())
            jobs: list[Job] = []
            for action, which in [*actions, *[("ready", 0)]]:
                await act(h, jobs, action, which)
            # let everything come to its end
            while h.engine.has:
                id = next(iter(h.engine.has))
                await begin(h, id)
                await (h.finish(id) if id in h.engine.has else settle())
            check(h, jobs)

    run(body)


async def begin(h: House, id: str) -> None:
    """The engine's first word of a job, unless it has been said."""
    job = h.jobs.get(id)
    if job is not None and job.status is Status.QUEUED:
        await h.engine.say(Started(id))


async def act(h: House, jobs: list[Job], action: str, which: int) -> None:
    making = list(h.engine.has)
    made = making[which % len(making)] if making else None
    job = jobs[which % len(jobs)] if jobs else None
    found = None if job is None else h.jobs.get(job.id)
    if action == "submit":
        try:
            jobs.append(await h.submit())
        except (QueueFullError, UnavailableError):
            assert h.engine.health.value == "restarting"
    elif action == "ready" and h.engine.health.value == "restarting":
        await h.engine.say(Ready())
    elif action == "lose" and h.engine.health.value == "ready":
        await h.engine.say(Lost("killed"))
    elif action == "cancel" and found is not None and not found.status.final:
        await h.jobs.cancel(found)
    elif action == "delete" and found is not None:
        await h.jobs.delete(found)
    elif made is not None and action in ("start", "step", "finish", "fail", "obey"):
        await begin(h, made)
        if action == "step":
            await h.engine.say(Stepped(made, 1, 4, 0.1, 0))
        elif action == "finish":
            await h.finish(made)
        elif action == "fail":
            await h.engine.say(Failed(made, "not_finite", "step 1"))
        elif action == "obey" and made in h.engine.asked_to_cancel:
            await h.engine.say(Cancelled(made))


def check(h: House, jobs: list[Job]) -> None:
    """Each job was deleted, or has one end and no more than one; files are where records are."""
    for job in jobs:
        ends = [status for id, status in h.watch.changes if id == job.id and status.final]
        if job.id in h.watch.removed:
            assert h.jobs.get(job.id) is None and len(ends) <= 1
        else:
            assert ends == [h.status(job)]
    assert len(set(h.watch.removed)) == len(h.watch.removed)
    kept = {job.id for job in jobs} - set(h.watch.removed)
    assert h.folders() == kept == {job.id for job in h.jobs.page(1000, None, True)}
    for job in h.jobs.page(1000, None, True):
        assert h.jobs.video(job).exists() is (job.status is Status.COMPLETED)
    assert h.jobs.waiting == 0
