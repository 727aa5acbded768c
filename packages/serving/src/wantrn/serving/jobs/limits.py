"""How much a server takes and keeps."""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class Limits:
    """How much a server takes and keeps.

    Attributes:
        queued: the most jobs that wait.
        keep_hours: how long a job that has ended, and its video, are kept.
        upload_megabytes: the most that a request may send.
    """

    queued: int = 64
    keep_hours: float = 7 * 24.0
    upload_megabytes: float = 32.0

    def __post_init__(self) -> None:
        if self.queued < 1:
            raise ValueError(f"queued must be at least 1, got {self.queued}")
        for name in ("keep_hours", "upload_megabytes"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name} must be more than 0, got {value}")

    @property
    def keep_seconds(self) -> float:
        return self.keep_hours * 3600

    @property
    def upload_bytes(self) -> int:
        return int(self.upload_megabytes * 1_000_000)
