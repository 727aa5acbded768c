"""``wantrn generate``: one video, in this process or on several ranks.

Asked for several ranks, the command checks all that it can, starts them, and each of them runs
``generate`` again, in the world that the starting process made. Started by ``torchrun``, a process
is such a rank from the beginning.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from tqdm import tqdm

from wantrn.model.denoising import Denoising, DenoisingError
from wantrn.model.device import find_device
from wantrn.model.errors import RequestError
from wantrn.model.info import ModelInfo, read_model_info
from wantrn.model.lora import LoraChoice
from wantrn.model.media import check_output, read_image, to_uint8, write_video
from wantrn.model.pipeline import WanPipeline
from wantrn.model.settings import Settings, VideoRequest, resolve
from wantrn.parallel import Groups
from wantrn.parallel.launch import join_world, rank_of_environment
from wantrn.serving.computation import describe_computation
from wantrn.serving.local_ranks import run_on_local_ranks
from wantrn.serving.model_folder import model_folder
from wantrn.serving.rank_options import RankOptions, request_error
from wantrn.serving.reuse_summary import describe_reuse
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
    step_cache: float | None = None  # threshold
    lora: tuple[tuple[Path, float], ...] = ()  # files, each with its scale
    lora_high: tuple[tuple[Path, float], ...] = ()
    lora_low: tuple[tuple[Path, float], ...] = ()
    dtype: str | None = None
    device: str = "cpu"
    threads: int | None = None
    ranks: RankOptions = field(default_factory=RankOptions)


@dataclass(frozen=True)
class Plan:
    """What the options come to, all that needs no weights checked."""

    settings: Settings
    info: ModelInfo
    dtype: torch.dtype
    device: torch.device

    def describe(self, ranks: RankOptions) -> dict[str, str | int | float]:
        """What is printed before the run and kept in the video: enough to make it again."""
        computation = describe_computation(self.info, self.dtype, self.device, ranks)
        return {**self.settings.describe(), **computation}


def generate(options: GenerateOptions) -> int:
    """Make the video; return the exit status. Only its path goes to standard output.

    Everything that needs no weights is checked before any are read. Raises ``RequestError`` and
    ``CheckpointError``; nothing new is then at the output's path.
    """
    plan = _plan(options)
    if rank_of_environment() is None and options.ranks.degrees().world > 1:
        # all ranks draw the same noise
        return run_on_local_ranks(replace(options, seed=plan.settings.seed))
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with _world(options.ranks, plan.device) as groups:
        if options.seed is None:
            seed = int(groups.world.gather(torch.tensor([plan.settings.seed]))[0])
            settings = replace(plan.settings, seed=seed)
            plan = replace(plan, settings=settings)
        return _run(options, plan, groups)


def _plan(options: GenerateOptions) -> Plan:
    image = None if options.image is None else read_image(options.image)
    info = read_model_info(model_folder(options.model))
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
            loras=_loras(options, info),
            step_cache=options.step_cache,
        ),
        info,
    )
    check_output(options.output, (settings.width, settings.height), settings.fps)
    dtype = info.choose_dtype(options.dtype)
    options.ranks.check(info, settings)
    return Plan(settings, info, dtype, find_device(options.device))


def _loras(options: GenerateOptions, info: ModelInfo) -> tuple[LoraChoice, ...]:
    """All that are given, those for all experts first."""
    if len(info.experts) == 1:
        for field_name, given in (("lora_high", options.lora_high), ("lora_low", options.lora_low)):
            if given:
                raise RequestError(
                    field_name, f"got {given[0][0]}, but the model has one expert: give --lora"
                )
    return (
        *(LoraChoice.of(path, scale) for path, scale in options.lora),
        *(LoraChoice(path.name, path, None, high_scale=scale) for path, scale in options.lora_high),
        *(LoraChoice(path.name, None, path, low_scale=scale) for path, scale in options.lora_low),
    )


@contextmanager
def _world(ranks: RankOptions, device: torch.device) -> Iterator[Groups]:
    """This process's groups, of a world that exists while they are used."""
    if rank_of_environment() is None:
        yield Groups.single()
        return
    # what is on the device goes over its own links
    backend = "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:{device.type}"
    with join_world(backend=backend):
        try:
            groups = Groups.build(ranks.degrees())
        except ValueError as error:
            raise request_error(error) from error
        yield groups


def _run(options: GenerateOptions, plan: Plan, groups: Groups) -> int:
    """Make the video, together with the other ranks. The first one speaks, and writes the file."""
    speaks, stages = groups.rank == 0, Stages()
    described = plan.describe(options.ranks)
    if speaks:
        _announce(options, described)
    with stages.measure("load"):
        execution = replace(options.ranks.execution(groups), device=plan.device)
        pipeline = WanPipeline.load(plan.info.directory, plan.dtype, execution)
    with stages.measure("text and noise"):
        job = pipeline.prepare(plan.settings)
    with stages.measure("denoise"):
        try:
            _denoise(pipeline, job, speaks)
        except DenoisingError as error:
            if speaks:  # all have the same latents
                print(f"wantrn generate: failed: {error}", file=sys.stderr)
            return 1
    if speaks and job.cached is not None:
        print(describe_reuse(job.cached), file=sys.stderr)
        described["steps_reused"] = job.cached.steps_reused
    if not (speaks or pipeline.decodes_together):
        return 0  # with nothing to do that the first rank has not
    with stages.measure("decode"):
        video = pipeline.decode(job)
    if not speaks:
        return 0
    with stages.measure("write"):
        write_video(options.output, to_uint8(video), plan.settings.fps, described)
    print(stages.summary(), file=sys.stderr)
    print(options.output)
    return 0


def _announce(options: GenerateOptions, described: dict[str, str | int | float]) -> None:
    if options.model is None:
        print(
            "No --model is given: this is a tiny one, which knows coloured shapes that move.",
            file=sys.stderr,
        )
    print(aligned({**described, "output": str(options.output)}), file=sys.stderr)


def _denoise(pipeline: WanPipeline, job: Denoising, speaks: bool) -> None:
    """All steps, under a progress bar with the time that is left."""
    # a log is not the place for ten lines a second
    interval = 0.1 if sys.stderr.isatty() else 10.0
    with tqdm(
        total=job.steps,
        desc="denoising",
        unit="step",
        file=sys.stderr,
        mininterval=interval,
        disable=not speaks,
    ) as bar:
        while not job.done:
            pipeline.step(job)
            bar.update()
