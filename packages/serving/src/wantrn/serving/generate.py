"""``wantrn generate``: one video, in this process."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from wantrn.model.errors import CheckpointError, RequestError
from wantrn.model.info import DTYPES, ModelInfo, ModelKind, read_model_info
from wantrn.model.media import check_output, read_image, to_uint8, write_video
from wantrn.model.pipeline import Denoising, DenoisingError, WanPipeline
from wantrn.model.settings import Settings, VideoRequest, resolve
from wantrn.model.tiny import cached_tiny_checkpoint
from wantrn.serving import __version__
from wantrn.serving.stages import Stages
from wantrn.serving.table import aligned


@dataclass(frozen=True)
class GenerateOptions:
    """The command's arguments; None means that it was not given."""

    prompt: str
    output: Path
    model: Path | None = None
    image: Path | None = None
    negative_prompt: str | None = None
    size: tuple[int, int] | None = None  # (width, height), pixels
    frames: int | None = None
    fps: int | None = None
    steps: int | None = None
    guidance: float | None = None
    guidance_2: float | None = None
    shift: float | None = None
    scheduler: str | None = None
    seed: int | None = None
    dtype: str | None = None
    threads: int | None = None


def generate(options: GenerateOptions) -> int:
    """Make the video; return the exit status. Only its path goes to standard output.

    Everything that needs no weights is checked before any are read. Raises ``RequestError`` and
    ``CheckpointError``; nothing new is then at the output's path.
    """
    image = None if options.image is None else read_image(options.image)
    info = read_model_info(_checkpoint(options))
    settings = resolve(
        VideoRequest(
            prompt=options.prompt,
            negative_prompt=options.negative_prompt,
            image=image,
            size=options.size,
            frames=options.frames,
            fps=options.fps,
            steps=options.steps,
            guidance=options.guidance,
            guidance_2=options.guidance_2,
            shift=options.shift,
            scheduler=options.scheduler,
            seed=options.seed,
        ),
        info,
    )
    check_output(options.output, (settings.width, settings.height), settings.fps)
    dtype = info.defaults.dtype if options.dtype is None else DTYPES[options.dtype]
    info.check_dtype(dtype)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    if options.model is None:
        print(
            "No --model is given: this is a tiny model with random weights, "
            "and its pictures are noise.",
            file=sys.stderr,
        )
    described = _describe(settings, info, dtype)
    print(aligned({**described, "output": str(options.output)}), file=sys.stderr)
    return _run(settings, described, dtype, info.directory, options.output)


def _run(
    settings: Settings,
    described: dict[str, str | int | float],
    dtype: torch.dtype,
    directory: Path,
    output: Path,
) -> int:
    stages = Stages()
    with stages.measure("load"):
        pipeline = WanPipeline.load(directory, dtype)
    with stages.measure("text and noise"):
        job = pipeline.prepare(settings)
    with stages.measure("denoise"):
        try:
            _denoise(pipeline, job)
        except DenoisingError as error:
            print(f"wantrn generate: failed: {error}", file=sys.stderr)
            return 1
    with stages.measure("decode"):
        frames = to_uint8(pipeline.decode(job))
    with stages.measure("write"):
        write_video(output, frames, settings.fps, described)
    print(stages.summary(), file=sys.stderr)
    print(output)
    return 0


def _denoise(pipeline: WanPipeline, job: Denoising) -> None:
    """All steps, under a progress bar with the time that is left."""
    # a log is not the place for ten lines a second
    interval = 0.1 if sys.stderr.isatty() else 10.0
    with tqdm(
        total=job.steps, desc="denoising", unit="step", file=sys.stderr, mininterval=interval
    ) as bar:
        while not job.done:
            pipeline.step(job)
            bar.update()


def _checkpoint(options: GenerateOptions) -> Path:
    """The folder asked for, or else that of a tiny checkpoint, made at its first use."""
    if options.model is not None:
        if not options.model.is_dir():
            raise RequestError("model", f"there is no folder {options.model}")
        return options.model
    kind = ModelKind.T2V if options.image is None else ModelKind.I2V
    cache = _cache_folder()
    try:
        return cached_tiny_checkpoint(cache, kind)
    except OSError as error:
        raise CheckpointError(
            f"{cache}: a tiny checkpoint cannot be kept there: {error.strerror or error}"
        ) from error


def _cache_folder() -> Path:
    """The user's, by the XDG base directory specification (relative paths do not count)."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (chosen if chosen.is_absolute() else Path.home() / ".cache") / "wantrn"


def _describe(
    settings: Settings, info: ModelInfo, dtype: torch.dtype
) -> dict[str, str | int | float]:
    """What is printed before the run and kept in the video: enough to make it again."""
    quantization = info.quantization
    return {
        **settings.describe(),
        "model": f"{info.directory.resolve().name} ({info.kind.value})",
        "dtype": str(dtype).removeprefix("torch."),
        **({} if quantization is None else {"fp8": quantization.describe()}),
        "wantrn": __version__,
    }
