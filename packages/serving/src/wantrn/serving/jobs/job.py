"""What is known of one video that was asked for."""

from __future__ import annotations

import enum
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from wantrn.model.settings import Settings


class Status(enum.StrEnum):
    """The four states that clients of the API know. The last two are final."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        return self in (Status.COMPLETED, Status.FAILED)


_NEXT: Mapping[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.IN_PROGRESS, Status.FAILED}),
    Status.IN_PROGRESS: frozenset({Status.COMPLETED, Status.FAILED}),
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset(),
}


@dataclass(frozen=True)
class JobError:
    """Why a job failed: ``code`` a short word for programs, ``message`` a sentence for people."""

    code: str
    message: str


@dataclass(frozen=True)
class Job:
    """A job's record.

    Attributes:
        model: the name of the checkpoint that makes it.
        settings: the effective ones, without the picture.
        created_at, started_at, ended_at, expires_at: seconds since 1970; None where it has not come
            to that. A job that has ended is removed at ``expires_at``.
        percent: of the steps that are done, up to 99, kept where the job failed; 100 is a video
            that can be fetched.
        image: the name of the uploaded picture among the job's files, or None.
        adjusted: what ``fit=nearest`` changed: field to the value that was asked for.
        seconds: the time of each stage of a completed job.
        steps_reused: how many steps of a job that has ended were made by a step cache.
    """

    id: str
    model: str
    settings: Settings
    created_at: float
    status: Status = Status.QUEUED
    started_at: float | None = None
    ended_at: float | None = None
    expires_at: float | None = None
    percent: int = 0
    error: JobError | None = None
    image: str | None = None
    adjusted: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    steps_reused: int = 0

    def check_change(self, status: Status) -> None:
        """Raise ``ValueError`` unless a job in this state may come to be in ``status``."""
        if status not in _NEXT[self.status]:
            raise ValueError(f"status of {self.id} cannot change from {self.status} to {status}")


def new_id() -> str:
    """An id that nobody can guess, and that is a plain file name."""
    return f"video_{secrets.token_hex(16)}"


def is_id(text: str) -> bool:
    """Whether ``new_id`` may have made it."""
    return re.fullmatch("video_[0-9a-f]{32}", text) is not None
