"""Making what a server will be asked for, before it is: so that no request waits for a compiler."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from wantrn.model.info import ModelInfo
from wantrn.model.pipeline import WanPipeline
from wantrn.model.schedulers import make_scheduler
from wantrn.model.settings import resolve
from wantrn.serving.shapes import Shape, trial_request

_MOST_STEPS = 64


def warm_up(pipeline: WanPipeline, shapes: Sequence[Shape], tells: bool) -> None:
    """Make a video of each shape, with as few steps as use every expert; the rank that ``tells``
    says on standard error how long it took. All ranks do it together; the videos are thrown away.
    """
    for shape in shapes:
        begun = time.monotonic()
        steps = fewest_steps(pipeline.info)
        run = pipeline.prepare(resolve(trial_request(shape, pipeline.info, steps), pipeline.info))
        while not run.done:
            pipeline.step(run)
        pipeline.decode(run)
        if tells:
            spent = time.monotonic() - begun
            print(f"warmed up {shape} in {spent:.1f} s", file=sys.stderr, flush=True)


def fewest_steps(info: ModelInfo) -> int:
    """The least number of steps of a run that uses every expert, by the checkpoint's schedule."""
    if info.boundary_ratio is None:
        return 1
    for steps in range(1, _MOST_STEPS):
        timesteps = make_scheduler(info.scheduler_config, steps, None, None).timesteps
        below = timesteps < info.boundary_ratio * 1000
        if below.any() and not below.all():
            return steps
    return _MOST_STEPS
