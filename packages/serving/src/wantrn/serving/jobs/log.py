"""The log of jobs: a line for each change, with the job's id."""

from __future__ import annotations

import logging

from wantrn.serving.engines.protocol import Event, Lost, Ready
from wantrn.serving.jobs.job import Job, Status

_log = logging.getLogger("wantrn.jobs")


class JobLog:
    """See ``Observer``."""

    def job_changed(self, job: Job) -> None:
        fields: dict[str, str | float] = {"job": job.id, "status": job.status.value}
        if job.status is Status.QUEUED:
            settings = job.settings
            fields["size"] = f"{settings.width}x{settings.height}"
            fields["frames"], fields["steps"] = settings.frames, settings.steps
        if job.started_at is not None:
            began, until = job.started_at, job.ended_at
            if until is None:
                fields["waited_s"] = round(began - job.created_at, 3)
            else:
                fields["took_s"] = round(until - began, 3)
        if job.error is not None:
            fields["code"] = job.error.code
            _log.warning("video failed: %s", job.error.message, extra={"fields": fields})
        else:
            _log.info("video %s", job.status.value, extra={"fields": fields})

    def job_removed(self, job: Job) -> None:
        fields = {"job": job.id, "status": job.status.value}
        _log.info("video removed", extra={"fields": fields})

    def engine_said(self, event: Event) -> None:
        if isinstance(event, Ready):
            _log.info("the engine is ready")
        elif isinstance(event, Lost):
            what = "has given up" if event.broken else "starts again"
            _log.error("the engine %s: %s", what, event.reason)
