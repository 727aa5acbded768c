"""What tools/ab.py asks for, and how one pipeline makes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from wantrn.kernels.backend import Backend, use_backend
from wantrn.model.cached_steps import CachedSteps
from wantrn.model.info import read_model_info
from wantrn.model.media import to_uint8
from wantrn.model.pipeline import WanPipeline
from wantrn.model.quality import Frames
from wantrn.model.settings import Settings, VideoRequest, resolve
from wantrn.model.step_cache import StepCache

PROMPTS = (
    "a red ball moves to the right on a white ground",
    "a blue ring slides to the left on a black ground",
    "a cyan ball bounces on a grey ground",
    "a green square shrinks on a white ground",
    "a purple triangle rises on a black ground",
    "an orange ring sinks on a brown ground",
    "a small yellow triangle gets bigger on a grey ground",
    "a large pink square falls on a brown ground",
)
"""In the words of ``train_tiny/captions.py``; no clip of the training has such a colour, shape and
motion together."""


@dataclass(frozen=True)
class Asked:
    """The videos that each setting makes.

    Attributes:
        model: a checkpoint folder.
        prompts: of which videos are made, in turn. A video's seed is its place.
        steps: of each; None for the checkpoint's default.
        rounds: through the prompts.
    """

    model: Path
    prompts: tuple[str, ...]
    steps: int | None = None
    rounds: int = 1

    def settings(self) -> list[Settings]:
        """Of each video. Raises ``RequestError`` and ``CheckpointError``."""
        info = read_model_info(self.model)
        return [
            resolve(VideoRequest(prompt, seed=seed, steps=self.steps), info)
            for seed, prompt in enumerate(self.prompts * self.rounds)
        ]

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Asked:
        """What ``to_json`` has written."""
        values = json.loads(text)
        return cls(
            Path(values["model"]), tuple(values["prompts"]), values["steps"], values["rounds"]
        )


@dataclass(frozen=True, eq=False)
class Video:
    """One that was made: ``[F, H, W, 3]``, and how many of its steps were the step cache's."""

    frames: Frames
    reused: int = 0


def videos_of(
    pipeline: WanPipeline,
    asked: Asked,
    backend: Backend = Backend.TORCH,
    cache: StepCache | None = None,
) -> Iterator[Video]:
    """All that is ``asked`` for."""
    for settings in asked.settings():
        # not around the yield: it would hold for whoever asks for the next one, too
        with use_backend(backend):
            video = _made(pipeline, settings, cache)
        yield video


def _made(pipeline: WanPipeline, settings: Settings, cache: StepCache | None) -> Video:
    job = pipeline.prepare(settings)
    if cache is not None:
        # settings have a threshold and no more; without the guard there are only these
        cached = CachedSteps.of(cache, len(pipeline.info.experts))
        job = replace(job, settings=replace(settings, step_cache=cache.threshold), cached=cached)
    while not job.done:
        pipeline.step(job)
    reused = 0 if job.cached is None else job.cached.steps_reused
    return Video(to_uint8(pipeline.decode(job)), reused)
