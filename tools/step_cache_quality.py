"""What a step cache brings and what it costs: its speed, and PSNR against the video without it.

    ./pants run tools/step_cache_quality.py -- [--model DIR] [--thresholds X ...] [--steps N]
        [--prompts N] [--rounds N] [--unguarded] [--json]

Each prompt's video is made without a step cache and then with each threshold, in turns, so often as
there are rounds. The speed is the median, over all prompts and rounds, of the ratio of the two
times for all steps (without text and decoding, in which they do not differ). PSNR is that of the
decoded frames. Without a model it is the tiny one that ``wantrn generate`` uses, which knows what
the prompts say.

``--unguarded`` shows what the guard is for: no limit to the drift or to the steps in a row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from ab_videos import PROMPTS

from wantrn.model.cached_steps import CachedSteps
from wantrn.model.media import to_uint8
from wantrn.model.pipeline import WanPipeline
from wantrn.model.quality import Frames
from wantrn.model.quality.comparison import finite_or_none
from wantrn.model.quality.psnr import psnr
from wantrn.model.settings import Settings, VideoRequest, resolve
from wantrn.model.step_cache import DEFAULT_THRESHOLD, MAX_THRESHOLD, StepCache
from wantrn.tiny import CHECKPOINT

THRESHOLDS = tuple(DEFAULT_THRESHOLD * factor for factor in (0.25, 0.5, 1.0, 1.5, 2.0))


@dataclass(frozen=True, eq=False)
class Made:
    """A video, the seconds of its steps, and what its step cache did."""

    frames: Frames
    seconds: float
    reused: int = 0
    drift: float = 0.0
    stopped: bool = False


@dataclass(frozen=True)
class Compared:
    """A video with a step cache beside the one without."""

    speed: float
    psnr: float
    reused: int
    drift: float
    stopped: bool

    @classmethod
    def of(cls, plain: Made, made: Made) -> Compared:
        quality = psnr(plain.frames, made.frames)
        return cls(plain.seconds / made.seconds, quality, made.reused, made.drift, made.stopped)


def make(pipeline: WanPipeline, settings: Settings, cache: StepCache | None) -> Made:
    """One video."""
    job = pipeline.prepare(settings)
    if cache is not None:
        job.cached = CachedSteps.of(cache, len(pipeline.info.experts))
    begun = time.perf_counter()
    while not job.done:
        pipeline.step(job)
    seconds = time.perf_counter() - begun
    frames = to_uint8(pipeline.decode(job))
    if job.cached is None:
        return Made(frames, seconds)
    return Made(
        frames,
        seconds,
        job.cached.steps_reused,
        max(expert.drift for expert in job.cached.experts),
        any(expert.stopped for expert in job.cached.experts),
    )


def compare(
    pipeline: WanPipeline, videos: Sequence[Settings], caches: Sequence[StepCache], rounds: int
) -> Iterator[list[Compared]]:
    """For each video and round, in turn, what each of the caches does."""
    make(pipeline, videos[0], None)  # what is slow only at first is not measured
    for settings in videos:
        for _ in range(rounds):
            plain = make(pipeline, settings, None)
            yield [Compared.of(plain, make(pipeline, settings, cache)) for cache in caches]


def figures(found: Sequence[Compared]) -> dict[str, float | None]:
    """Of one threshold, for all videos and rounds."""
    qualities = [one.psnr for one in found]
    return {
        "speed": statistics.median(one.speed for one in found),
        "psnr.min": finite_or_none(min(qualities)),
        "psnr.median": finite_or_none(statistics.median(qualities)),
        "steps_reused": statistics.median(one.reused for one in found),
        "drift.max": max(one.drift for one in found),
        "stopped": sum(one.stopped for one in found) / len(found),
    }


def row(threshold: float, values: dict[str, float | None]) -> str:
    psnrs = (values[name] for name in ("psnr.min", "psnr.median"))
    least, middle = ("same" if value is None else f"{value:.1f}" for value in psnrs)
    return (
        f"{threshold:<11g}{values['speed']:7.2f}{least:>10}{middle:>9}"
        f"{values['steps_reused']:9.0f}{values['drift.max']:8.3f}{values['stopped']:9.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--model", type=Path, default=CHECKPOINT, metavar="DIR", help="(default: the tiny one)")
    add("--thresholds", type=float, nargs="+", default=THRESHOLDS, metavar="X")
    add("--steps", type=int, default=40, help="(default 40)")
    add("--prompts", type=int, default=len(PROMPTS), help="how many (default: all)")
    add("--rounds", type=int, default=3, help="(default 3)")
    add("--unguarded", action="store_true", help="without the guard")
    add("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    for name in ("prompts", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be at least 1")
    if not all(0 < threshold <= MAX_THRESHOLD for threshold in options.thresholds):
        parser.error(f"--thresholds are {options.thresholds}; all must be in 0 to {MAX_THRESHOLD}")
    pipeline = WanPipeline.load(options.model, torch.float32)
    videos = [
        resolve(VideoRequest(prompt, seed=seed, steps=options.steps), pipeline.info)
        for seed, prompt in enumerate(PROMPTS[: options.prompts])
    ]
    caches = [StepCache(each, guard=not options.unguarded) for each in options.thresholds]
    columns = list(zip(*compare(pipeline, videos, caches, options.rounds), strict=True))
    print("threshold    speed least, dB   median   reused   drift  stopped")
    found: dict[str, float | None] = {}
    for cache, compared in zip(caches, columns, strict=True):
        values = figures(compared)
        print(row(cache.threshold, values))
        found |= {f"threshold_{cache.threshold:g}.{name}": one for name, one in values.items()}
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
