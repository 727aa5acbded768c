"""The videos that a rank is making. All ranks do the same with theirs, in the same order."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wantrn.model.denoising import Denoising, DenoisingError
from wantrn.model.errors import RequestError
from wantrn.model.media import read_image, to_uint8, write_video
from wantrn.model.pipeline import WanPipeline
from wantrn.serving.engines.local.latents import read_latents, write_latents
from wantrn.serving.engines.previews import Previews
from wantrn.serving.engines.protocol import (
    Cancelled,
    Decoding,
    Failed,
    Finished,
    Started,
    Stepped,
    Work,
    WorkEvent,
)
from wantrn.serving.stages import Stages

Tell = Callable[[WorkEvent], None]


@dataclass
class _Run:
    work: Work
    job: Denoising
    stages: Stages
    previewed: float
    again: bool  # it was lost while it was being decoded


class Runs:
    """Begins, steps and ends videos.

    ``tell`` hears of it on the rank that speaks for all, and is None on the others. Methods return
    once the rank has done its part; files are written meanwhile in a thread.
    """

    def __init__(self, pipeline: WanPipeline, tell: Tell | None) -> None:
        self._pipeline = pipeline
        self._tell = tell
        self._runs: dict[str, _Run] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._previews = None if tell is None else Previews(pipeline)

    @property
    def ids(self) -> tuple[str, ...]:
        """Those that are being made."""
        return tuple(self._runs)

    def done(self, id: str) -> bool:
        """Whether all steps of a video are made."""
        return self._runs[id].job.done

    def begin(self, work: Work) -> None:
        self._say(Started(work.id))
        stages = Stages()
        settings = work.settings
        try:
            if work.image is not None:
                settings = replace(settings, image=read_image(work.image))
            with stages.measure("text and noise"):
                job = self._pipeline.prepare(settings)
                latents = read_latents(work.latents)
                if latents is not None:
                    self._pipeline.take_up(job, latents)
        except RequestError as error:  # on all ranks: they read the same
            self._say(Failed(work.id, "invalid_input", str(error)))
            return
        again = latents is not None
        self._runs[work.id] = _Run(work, job, stages, time.monotonic(), again)

    def step(self, id: str) -> None:
        run = self._runs[id]
        begun = time.monotonic()
        try:
            with run.stages.measure("denoise"):
                self._pipeline.step(run.job)
        except DenoisingError as error:  # on all ranks: they have the same latents
            del self._runs[id]
            self._say(Failed(id, "not_finite", str(error)))
            return
        seconds, step = time.monotonic() - begun, run.job.step_index
        expert = self._pipeline.expert_of(run.job, step - 1)
        self._say(Stepped(id, step, run.job.steps, seconds, expert, run.job.step_reused))
        self._show(run)

    def finish(self, id: str) -> None:
        run = self._runs.pop(id)
        self._keep_latents(run)
        self._say(Decoding(id))
        if self._tell is None and not self._pipeline.decodes_together:
            return
        with run.stages.measure("decode"):
            video = self._pipeline.decode(run.job, tiled=run.again)
        if self._tell is not None:
            # Here and not in the writer: a thread that once computes in parallel keeps OpenMP
            # workers, and with more of those than cores all of them sleep where they would spin.
            with run.stages.measure("write"):
                frames = to_uint8(video)
            self._writer.submit(self._write, run, frames)

    def drop(self, id: str) -> None:
        """Stop making a video, if it is still being made."""
        if self._runs.pop(id, None) is not None:
            self._say(Cancelled(id))

    def close(self) -> None:
        """Wait until what is complete is written."""
        self._writer.shutdown()

    def _keep_latents(self, run: _Run) -> None:
        """So that decoding can be tried again, if these ranks are lost by it."""
        if self._tell is None or run.work.latents is None or run.again:
            return
        try:
            write_latents(run.work.latents, run.job.latents)
        except OSError as error:  # the video itself may still fit
            print(f"latents cannot be kept: {error}", file=sys.stderr, flush=True)

    def _write(self, run: _Run, frames: NDArray[np.uint8]) -> None:
        work, cached = run.work, run.job.cached
        metadata = dict(work.metadata)
        if cached is not None and not run.again:
            metadata["steps_reused"] = cached.steps_reused
        try:
            with run.stages.measure("write"):
                write_video(work.output, frames, work.settings.fps, metadata)
        except (RequestError, OSError) as error:
            self._say(Failed(work.id, "not_written", f"the video cannot be written: {error}"))
        else:
            if work.latents is not None:
                work.latents.unlink(missing_ok=True)
            self._say(Finished(work.id, run.stages.seconds))

    def _say(self, event: WorkEvent) -> None:
        if self._tell is not None:
            self._tell(event)

    def _show(self, run: _Run) -> None:
        if self._previews is None:
            return
        shown = self._previews.after_step(run.work.id, run.job, run.previewed)
        if shown is not None:
            run.previewed = time.monotonic()
            self._say(shown)
