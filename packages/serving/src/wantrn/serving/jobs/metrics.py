"""What Prometheus can ask of a server: how many jobs, how long their parts take, what was lost."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from wantrn.serving.engines.protocol import Engine, Event, Finished, Health, Lost, Stepped
from wantrn.serving.jobs.job import Job, Status
from wantrn.serving.jobs.manager import CANCELLED
from wantrn.serving.jobs.store import JobStore
from wantrn.serving.shapes import Shape

CONTENT_TYPE = CONTENT_TYPE_LATEST

EXPERTS = ("transformer", "transformer_2")
"""By ``Stepped.expert``: the names of the checkpoint's folders."""

_STEP_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_STAGE_SECONDS = (0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1200, 3600)
_WAIT_SECONDS = (0.1, 1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14400, 43200)


class Metrics:
    """An ``Observer`` that counts, in a registry of its own. Counters begin at 0 with the process.

    Every label has few values: states, error codes, stages and experts, but never an id.
    ``warmed_up`` are the shapes that the ranks make before they are ready.
    """

    def __init__(
        self,
        store: JobStore,
        clock: Callable[[], float] = time.time,
        warmed_up: Sequence[Shape] = (),
    ) -> None:
        self._store = store
        self._clock = clock
        self._warmed_up = frozenset(warmed_up)
        self._made = set(warmed_up)  # shapes, by the ranks that there are now
        self.registry = CollectorRegistry()
        self._define_gauges()
        self._define_counts()
        self._define_times()

    def _define_gauges(self) -> None:
        self._queue = Gauge(
            "wantrn_queue_depth", "Jobs that wait for the engine.", registry=self.registry
        )
        self._jobs = Gauge(
            "wantrn_jobs", "Jobs that are kept, by state.", ["status"], registry=self.registry
        )
        self._health = Gauge(
            "wantrn_engine_health",
            "1 for the state that the engine is in, 0 for the others.",
            ["state"],
            registry=self.registry,
        )
        self._slots = Gauge(
            "wantrn_engine_slots", "Videos that are made at once, at most.", registry=self.registry
        )
        self._bytes = Gauge(
            "wantrn_store_bytes", "Size of all files of the store.", registry=self.registry
        )

    def _define_counts(self) -> None:
        self._begun = Counter(
            "wantrn_jobs_begun",
            "Jobs begun, by whether the ranks had made the size and length before, or were "
            "warmed up for it. For a new one, a device's compiler has to work, unless it finds its "
            "own files of an earlier process.",
            ["shape"],
            registry=self.registry,
        )
        for known in (True, False):
            self._count_begun(known, 0)
        self._ended = Counter(
            "wantrn_jobs_ended",
            "Jobs that ended, by state and error code (none for completed ones).",
            ["status", "code"],
            registry=self.registry,
        )
        self._cancelled = Counter(
            "wantrn_jobs_cancelled",
            "Jobs that were cancelled or deleted before they ended, by the state they were in.",
            ["status"],
            registry=self.registry,
        )
        self._removed = Counter(
            "wantrn_videos_removed",
            "Jobs that were removed: deleted by request, or expired.",
            ["reason"],
            registry=self.registry,
        )
        self._steps = Counter(
            "wantrn_steps", "Denoising steps, by expert.", ["expert"], registry=self.registry
        )
        self._reused = Counter(
            "wantrn_steps_reused",
            "Denoising steps that a step cache made of what earlier ones had computed, by expert.",
            ["expert"],
            registry=self.registry,
        )
        self._restarts = Counter(
            "wantrn_engine_restarts",
            "Times that the engine lost its ranks and started them again.",
            registry=self.registry,
        )

    def _define_times(self) -> None:
        self._step_seconds = Histogram(
            "wantrn_step_seconds",
            "Time of a denoising step, by expert.",
            ["expert"],
            buckets=_STEP_SECONDS,
            registry=self.registry,
        )
        self._stage_seconds = Histogram(
            "wantrn_stage_seconds",
            "Time of a stage of a finished video.",
            ["stage"],
            buckets=_STAGE_SECONDS,
            registry=self.registry,
        )
        self._waited = Histogram(
            "wantrn_queue_wait_seconds",
            "Time from the request to the beginning of the work.",
            buckets=_WAIT_SECONDS,
            registry=self.registry,
        )

    def _count_begun(self, known: bool, count: int = 1) -> None:
        self._begun.labels("known" if known else "new").inc(count)

    def job_changed(self, job: Job) -> None:
        shape = Shape(job.settings.width, job.settings.height, job.settings.frames)
        if job.status is Status.IN_PROGRESS and job.started_at is not None:
            self._waited.observe(max(0.0, job.started_at - job.created_at))
            self._count_begun(shape in self._made)
        elif job.status is Status.COMPLETED:
            self._made.add(shape)
        if not job.status.final:
            return
        code = "none" if job.error is None else job.error.code
        self._ended.labels(job.status.value, code).inc()
        if code == CANCELLED.code:
            before = Status.QUEUED if job.started_at is None else Status.IN_PROGRESS
            self._cancelled.labels(before.value).inc()

    def job_removed(self, job: Job) -> None:
        if not job.status.final:
            self._cancelled.labels(job.status.value).inc()
        expired = job.expires_at is not None and job.expires_at <= self._clock()
        self._removed.labels("expired" if expired else "deleted").inc()

    def engine_said(self, event: Event) -> None:
        if isinstance(event, Stepped):
            expert = EXPERTS[event.expert]
            self._steps.labels(expert).inc()
            self._reused.labels(expert).inc(event.reused)
            self._step_seconds.labels(expert).observe(event.seconds)
        elif isinstance(event, Finished):
            for stage, seconds in event.seconds.items():
                self._stage_seconds.labels(stage).observe(seconds)
        elif isinstance(event, Lost):
            self._made = set(self._warmed_up)
            if not event.broken:
                self._restarts.inc()

    async def text(self, waiting: int, engine: Engine) -> bytes:
        """All of it as it is now, in Prometheus' text format (``CONTENT_TYPE``).

        ``waiting`` is how many jobs the engine has not been given yet.
        """
        stored = await asyncio.to_thread(_folder_bytes, self._store.folder)
        self._bytes.set(stored)
        self._queue.set(waiting)
        for status, count in self._store.counts().items():
            self._jobs.labels(status.value).set(count)
        for state in Health:
            self._health.labels(state.value).set(state is engine.health)
        self._slots.set(engine.slots)
        return generate_latest(self.registry)


def _folder_bytes(folder: Path) -> int:
    """The size of all files below ``folder``, some of which may vanish meanwhile."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except FileNotFoundError:
                continue
    return total
