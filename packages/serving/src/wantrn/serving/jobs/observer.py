"""What watches jobs: logs, metrics, traces."""

from __future__ import annotations

from typing import Protocol

from wantrn.serving.engines.protocol import Event
from wantrn.serving.jobs.job import Job


class Observer(Protocol):
    """Is told of everything, in order, in the thread of the event loop; must not wait."""

    def job_changed(self, job: Job) -> None:
        """A job is there, or has another state."""
        ...

    def job_removed(self, job: Job) -> None:
        """A job was deleted (in any state) or has expired."""
        ...

    def engine_said(self, event: Event) -> None: ...
