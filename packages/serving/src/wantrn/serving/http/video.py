"""A job as clients see it: OpenAI's video object, with the settings that were used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel

from wantrn.serving.http.create import as_seconds
from wantrn.serving.jobs.job import Job
from wantrn.serving.jobs.progress import Progress

_POLL_MS = (200, 2000)


class VideoError(BaseModel):
    """Why a video failed; ``code`` is for programs."""

    code: str
    message: str


class VideoLora(BaseModel):
    """A LoRA that a video is made with, and the scale of its effect on each expert."""

    name: str
    scale: float
    scale_2: float


class Video(BaseModel):
    """A video: what became of it, and what it is made with."""

    id: str
    object: Literal["video"] = "video"
    created_at: int
    completed_at: int | None
    expires_at: int | None
    model: str
    status: Literal["queued", "in_progress", "completed", "failed"]
    progress: int
    queue_position: int | None
    step: int | None
    has_preview: bool
    error: VideoError | None
    prompt: str
    negative_prompt: str
    size: str
    seconds: str
    num_frames: int
    fps: int
    num_inference_steps: int
    guidance_scale: float
    guidance_scale_2: float | None
    flow_shift: float
    scheduler: str
    seed: int
    step_cache: float | None
    steps_reused: int
    has_image: bool
    lora: list[VideoLora]
    adjusted: Mapping[str, str]
    stage_seconds: Mapping[str, float]


class VideoList(BaseModel):
    """A page of videos."""

    object: Literal["list"] = "list"
    data: list[Video]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(BaseModel):
    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True


def video_of(job: Job, progress: Progress | None, position: int | None) -> Video:
    """The object of a job. ``progress`` is that of a running one, ``position`` of a waiting one."""
    settings = job.settings
    return Video(
        id=job.id,
        created_at=int(job.created_at),
        completed_at=None if job.ended_at is None else int(job.ended_at),
        expires_at=None if job.expires_at is None else int(job.expires_at),
        model=job.model,
        status=job.status.value,
        progress=job.percent,
        queue_position=position,
        step=None if progress is None else progress.step,
        has_preview=progress is not None and progress.preview is not None,
        error=None
        if job.error is None
        else VideoError(code=job.error.code, message=job.error.message),
        prompt=settings.prompt,
        negative_prompt=settings.negative_prompt,
        size=f"{settings.width}x{settings.height}",
        seconds=as_seconds(settings.frames, settings.fps),
        num_frames=settings.frames,
        fps=settings.fps,
        num_inference_steps=settings.steps,
        guidance_scale=settings.guidance,
        guidance_scale_2=settings.guidance_2,
        flow_shift=settings.shift,
        scheduler=settings.scheduler,
        seed=settings.seed,
        step_cache=settings.step_cache,
        steps_reused=job.steps_reused if progress is None else progress.reused,
        has_image=job.image is not None,
        lora=[
            VideoLora(name=one.name, scale=one.high_scale, scale_2=one.low_scale)
            for one in settings.loras
        ],
        adjusted=job.adjusted,
        stage_seconds=job.seconds,
    )


def poll_after_ms(progress: Progress | None) -> int:
    """When it is worth asking again: after about half a step."""
    least, most = _POLL_MS
    if progress is None or progress.step_seconds is None:
        return least
    return int(min(max(progress.step_seconds * 500, least), most))
