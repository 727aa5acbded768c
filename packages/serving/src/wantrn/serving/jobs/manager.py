"""The one owner of jobs: takes them, gives them to the engine, keeps what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wantrn.model.settings import Settings
from wantrn.serving.engines.protocol import (
    Cancelled,
    Decoding,
    Engine,
    EngineError,
    Failed,
    Finished,
    Health,
    Lost,
    Previewed,
    Ready,
    Started,
    Stepped,
    Work,
    WorkEvent,
)
from wantrn.serving.jobs.job import Job, JobError, Status, new_id
from wantrn.serving.jobs.limits import Limits
from wantrn.serving.jobs.observer import Observer
from wantrn.serving.jobs.progress import Progress
from wantrn.serving.jobs.store import JobStore

VIDEO = "video.mp4"
LATENTS = "latents.safetensors"
CANCELLED = JobError("cancelled", "cancelled by request")
INTERRUPTED = JobError("server_stopped", "the server stopped while the video was being made")

_SWEEP_SECONDS = 30.0


class QueueFullError(Exception):
    """As many jobs wait as may. ``retry_after`` is when one will likely have begun, in seconds."""

    def __init__(self, limit: int, retry_after: float) -> None:
        super().__init__(f"{limit} jobs are waiting already, which is the most")
        self.retry_after = retry_after


class UnavailableError(Exception):
    """No job is taken: the engine is not ready, or this server is ending."""


@dataclass
class _Given:
    """A job that the engine has: whether it was lost once already, when only decoding was left, and
    what it will have failed of once it is dropped."""

    deleted: bool = False
    again: bool = False
    error: JobError | None = None


class JobManager:
    """Jobs, in the thread of one event loop.

    The store has what must outlive the process; ``progress`` what else is known of running jobs.
    """

    def __init__(
        self,
        store: JobStore,
        engine: Engine,
        model: str,
        limits: Limits | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._store = store
        self._engine = engine
        self._model = model
        self._limits = Limits() if limits is None else limits
        self._observers = observers
        self._queue: deque[str] = deque()
        self._given: dict[str, _Given] = {}
        self._progress: dict[str, Progress] = {}
        self._job_seconds = 1.0  # of the last job, which says how soon a place may be free
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def model(self) -> str:
        """The name that clients know the checkpoint by."""
        return self._model

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._queue)

    async def start(self) -> None:
        """Take up what an earlier process left, and start the engine.

        Raises:
            EngineError: it cannot be started.
        """
        self._recover()
        await self._engine.start()
        for work in (self._follow(), self._feed(), self._sweep()):
            self._tasks.append(asyncio.create_task(work))

    async def stop(self) -> None:
        """End the engine. Jobs that run fail; those that wait stay for the next process."""
        self._stopping = True
        await self._engine.stop()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._void(INTERRUPTED)

    def submit(
        self,
        settings: Settings,
        image: tuple[str, bytes] | None = None,
        adjusted: Mapping[str, str] | None = None,
    ) -> Job:
        """Take a job.

        Args:
            settings: the effective ones; the picture in it is not kept, but ``image`` is.
            image: the uploaded file's suffix, such as ``".png"``, and its bytes.
            adjusted: what was asked for, of the fields that ``settings`` has otherwise.

        Raises:
            QueueFullError: as many wait as may.
            UnavailableError: the engine cannot work now.
        """
        if self._stopping or self._engine.health is not Health.READY:
            raise UnavailableError(f"the engine is {self._engine.health.value}")
        if len(self._queue) >= self._limits.queued:
            raise QueueFullError(self._limits.queued, self._job_seconds / self._engine.slots)
        job = Job(
            id=new_id(),
            model=self._model,
            settings=replace(settings, image=None),
            created_at=time.time(),
            image=None if image is None else f"image{image[0]}",
            adjusted={} if adjusted is None else adjusted,
        )
        if image is not None and job.image is not None:
            folder = self._store.files(job.id)
            folder.mkdir()
            (folder / job.image).write_bytes(image[1])
        self._store.add(job)
        self._queue.append(job.id)
        self._tell_job(job)
        self._wake.set()
        return job

    def get(self, id: str) -> Job | None:
        return self._store.get(id)

    def page(self, limit: int, after: str | None, newest_first: bool) -> list[Job]:
        """See ``JobStore.page``."""
        return self._store.page(limit, after, newest_first)

    def progress(self, id: str) -> Progress | None:
        """How far a running job is; None if it does not run."""
        return self._progress.get(id)

    def position(self, id: str) -> int | None:
        """How many jobs are ahead of a waiting one; None if it does not wait."""
        return self._queue.index(id) if id in self._queue else None

    def video(self, job: Job) -> Path:
        """The file of a completed job."""
        return self._store.files(job.id) / VIDEO

    def file(self, job: Job, name: str) -> Path:
        """A file of a job's folder, by a name of this program's own."""
        return self._store.files(job.id) / name

    async def cancel(self, job: Job) -> None:
        """Let a job that has not ended fail as cancelled: at once if it waits, else at the next
        step."""
        if job.id in self._queue:
            self._queue.remove(job.id)
            self._end(job, Status.FAILED, CANCELLED)
        elif job.id in self._given:
            self._given[job.id].error = CANCELLED
            await self._engine.cancel(job.id)

    async def delete(self, job: Job) -> None:
        """Forget a job and its files; the engine drops it at the next step."""
        self._store.remove(job.id)
        self._progress.pop(job.id, None)
        for observer in self._observers:
            observer.job_removed(job)
        if job.id in self._given:
            self._given[job.id].deleted = True
            await self._engine.cancel(job.id)
            return
        with contextlib.suppress(ValueError):
            self._queue.remove(job.id)
        self._store.remove_files(job.id)

    def _recover(self) -> None:
        self._store.sweep()
        for job in self._store.having(Status.IN_PROGRESS):
            self._end(job, Status.FAILED, INTERRUPTED)
        for job in self._store.having(Status.QUEUED):
            if job.model != self._model:
                message = f"the server now has the model {self._model}"
                self._end(job, Status.FAILED, JobError("model_changed", message))
            else:
                self._queue.append(job.id)

    async def _feed(self) -> None:
        """Give the engine what waits, whenever it has a place."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue and self._has_place():
                await self._give(self._queue.popleft())

    def _has_place(self) -> bool:
        return self._engine.health is Health.READY and len(self._given) < self._engine.slots

    async def _give(self, id: str) -> None:
        job = self._store.get(id)
        assert job is not None, "what is deleted leaves the queue"
        self._given[id] = _Given(again=job.status is Status.IN_PROGRESS)
        folder = self._store.files(id)
        work = Work(
            id=id,
            settings=job.settings,
            output=folder / VIDEO,
            image=None if job.image is None else folder / job.image,
            latents=folder / LATENTS,
            metadata={**job.settings.describe(), "model": job.model, **self._engine.describe()},
        )
        try:
            await self._engine.submit(work)
        except EngineError:  # lost meanwhile: Ready will wake this again
            if self._given.pop(id, None) is not None:
                self._queue.appendleft(id)

    async def _follow(self) -> None:
        """Keep what the engine says."""
        async for event in self._engine.events():
            for observer in self._observers:
                observer.engine_said(event)
            if isinstance(event, Lost):
                self._lost(event)
            elif not isinstance(event, Ready):
                self._heard(event)
            self._wake.set()

    async def _sweep(self) -> None:
        """Remove what has been kept long enough."""
        while True:
            for id in self._store.expired(time.time()):
                job = self._store.get(id)
                if job is not None:
                    await self.delete(job)
            await asyncio.sleep(min(_SWEEP_SECONDS, self._limits.keep_seconds))

    def _heard(self, event: WorkEvent) -> None:
        given = self._given.get(event.id)
        if given is None:
            return
        if isinstance(event, Finished | Failed | Cancelled):
            del self._given[event.id]
        if given.deleted:
            if event.id not in self._given:
                self._store.remove_files(event.id)
            return
        job = self._store.get(event.id)
        assert job is not None, "only delete removes a record"
        if isinstance(event, Started):
            if not given.again:
                self._started(job)
        elif isinstance(event, Finished):
            self._job_seconds = sum(event.seconds.values())
            self._end(replace(job, seconds=event.seconds, percent=100), Status.COMPLETED)
        elif isinstance(event, Failed):
            self._end(job, Status.FAILED, JobError(event.code, event.reason))
        elif isinstance(event, Cancelled):
            self._end(job, Status.FAILED, given.error or CANCELLED)
        else:
            self._advanced(event)

    def _started(self, job: Job) -> None:
        self._progress[job.id] = Progress(steps=job.settings.steps)
        self._change(replace(job, started_at=time.time()), Status.IN_PROGRESS, job)

    def _advanced(self, event: Stepped | Previewed | Decoding) -> None:
        progress = self._progress[event.id]
        if isinstance(event, Stepped):
            progress = replace(
                progress,
                step=event.step,
                step_seconds=event.seconds,
                reused=progress.reused + event.reused,
            )
            self._store.advance(event.id, progress.percent)
        elif isinstance(event, Previewed):
            progress = replace(progress, preview=event.png)
        else:
            progress = replace(progress, decoding=True)
        self._progress[event.id] = progress

    def _lost(self, lost: Lost) -> None:
        self._void(JobError("ranks_lost", lost.reason))
        if lost.broken:
            while self._queue:
                job = self._store.get(self._queue.popleft())
                if job is not None:
                    self._end(job, Status.FAILED, JobError("engine_broken", lost.reason))

    def _void(self, error: JobError) -> None:
        """The engine has nothing any more. What it had not begun waits again, at the front."""
        waiting = []
        for id, given in self._given.items():
            job = None if given.deleted else self._store.get(id)
            if job is None:
                self._store.remove_files(id)
            elif given.error is not None:
                self._end(job, Status.FAILED, given.error)
            elif job.status is Status.QUEUED or self._can_be_decoded(id, given):
                waiting.append(id)
            else:
                self._end(job, Status.FAILED, error)
        self._given.clear()
        self._queue.extendleft(reversed(waiting))

    def _can_be_decoded(self, id: str, given: _Given) -> bool:
        """Whether a lost job's steps are all made and kept. It is tried again once, in tiles: what
        takes too much memory as a whole may not in parts."""
        if given.again or self._stopping:
            return False
        return (self._store.files(id) / LATENTS).exists()

    def _end(self, job: Job, status: Status, error: JobError | None = None) -> None:
        now = time.time()
        ended = replace(job, error=error, ended_at=now, expires_at=now + self._limits.keep_seconds)
        progress = self._progress.pop(job.id, None)
        if progress is not None:
            ended = replace(ended, steps_reused=progress.reused)
        (self._store.files(job.id) / LATENTS).unlink(missing_ok=True)
        self._change(ended, status, job)

    def _change(self, changed: Job, status: Status, before: Job) -> None:
        before.check_change(status)
        changed = replace(changed, status=status)
        self._store.update(changed)
        self._tell_job(changed)

    def _tell_job(self, job: Job) -> None:
        for observer in self._observers:
            observer.job_changed(job)
