"""How much a server takes and keeps."""

from __future__ import annotations

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(
    frozen=True,
    config=ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True),
)
class Limits:
    """How much a server takes and keeps."""

    queued: int = Field(default=64, ge=1)
    """The most jobs that wait."""
    keep_hours: float = Field(default=7 * 24.0, gt=0)
    """How long a job that has ended, and its video, are kept."""
    upload_megabytes: float = Field(default=32.0, gt=0)
    """The most that a request may send."""
    video_megapixels: float | None = Field(default=None, gt=0)
    """The most width times height times frames of a video, in millions; by default four times that
    of the checkpoint's own default video."""

    @property
    def keep_seconds(self) -> float:
        return self.keep_hours * 3600

    @property
    def upload_bytes(self) -> int:
        return int(self.upload_megabytes * 1_000_000)

    @property
    def video_pixels(self) -> int | None:
        return None if self.video_megapixels is None else int(self.video_megapixels * 1_000_000)
