"""`capture_steps.py record`: a run, and what its modules give."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from wantrn.kernels.backend import Backend, use_backend
from wantrn.model.capture import (
    Capture,
    CaptureError,
    CapturePlan,
    Selection,
    recording,
)
from wantrn.model.denoising import DenoisingError
from wantrn.model.device import find_device
from wantrn.model.errors import RequestError
from wantrn.model.info import read_model_info
from wantrn.model.media import read_image
from wantrn.model.pipeline import WanPipeline
from wantrn.model.settings import Settings, VideoRequest, resolve
from wantrn.parallel import Groups
from wantrn.parallel.launch import join_world, rank_of_environment, run_local
from wantrn.serving.modules import MODULES
from wantrn.serving.rank_options import RankOptions
from wantrn.serving.table import aligned
from wantrn.tiny import CHECKPOINT

PROMPT = "a red ball rolls to the right"


@dataclass(frozen=True)
class RecordOptions:
    """The command's arguments; None means that it was not given.

    ``request`` has those that are fields of ``VideoRequest``, as far as they are given.
    """

    folder: Path
    model: Path = CHECKPOINT
    dtype: str | None = None
    backend: str = "auto"
    device: str = "cpu"
    inputs_of: Path | None = None
    like: Path | None = None
    modules: Sequence[str] | None = None
    every: int | None = None
    at: Sequence[int] | None = None
    every_token: int | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    ranks: RankOptions = field(default_factory=RankOptions)

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> RecordOptions:
        given = vars(arguments)
        ranks = RankOptions(**{one.name: given[one.name] for one in fields(RankOptions)})
        wanted = {one.name: given.get(one.name) for one in fields(VideoRequest)}
        request = {name: value for name, value in wanted.items() if value is not None}
        own = {one.name for one in fields(cls)} - {"request", "ranks"}
        return cls(**{name: given[name] for name in own}, request=request, ranks=ranks)


def record(options: RecordOptions, arguments: Sequence[str]) -> int:
    """Make the capture, and print its folder; the exit status.

    ``arguments`` are the command's own: ranks that are started here run it again.

    Raises:
        RequestError, CheckpointError, CaptureError: what cannot be done, by name; nothing is at the
            capture's path then.
    """
    for name in ("tile_vae", "vae_parallel"):
        if getattr(options.ranks, name):
            raise RequestError(name, "must not be given: nothing is decoded")
    old = options.inputs_of or options.like
    capture = None if old is None else Capture.open(old)
    info = read_model_info(options.model)
    request = _request(options, capture)
    settings = resolve(request, info)
    options.ranks.check(info, settings)
    world = options.ranks.degrees().world
    if world > 1 and rank_of_environment() is None:
        command = [sys.executable, "-m", "capture_steps", *arguments, f"--seed={settings.seed}"]
        return run_local(world, command, environment={"PYTHONPATH": MODULES})
    if world > 1 and request.seed is None:
        raise RequestError("seed", "must be given to ranks, for all to draw the same noise")
    with _groups(options) as groups, use_backend(Backend(options.backend)):
        execution = replace(options.ranks.execution(groups), device=find_device(options.device))
        pipeline = WanPipeline.load(info.directory, info.choose_dtype(options.dtype), execution)
        return _record(options.folder, _plan(options, capture, pipeline, settings))


def _record(folder: Path, plan: CapturePlan) -> int:
    # a log is not the place for ten lines a second
    interval = 0.1 if sys.stderr.isatty() else 10.0
    with recording(plan, folder) as recorder:
        if plan.writes:
            print(aligned(_facts(plan)), file=sys.stderr)
        for _ in tqdm(
            plan.steps_to_make,
            "capturing",
            unit="step",
            mininterval=interval,
            disable=not plan.writes,
        ):
            try:
                recorder.make()
            except DenoisingError as error:
                raise CaptureError(f"{folder}: {error}") from error
    if plan.writes:
        print(folder)
    return 0


def _plan(
    options: RecordOptions, capture: Capture | None, pipeline: WanPipeline, settings: Settings
) -> CapturePlan:
    selection = Selection()
    if capture is not None:
        known = capture.description
        steps = [step.index for step in known.steps]
        selection = Selection(known.modules, steps, known.every_token)
    if options.modules is not None:
        selection = replace(selection, modules=options.modules)
    if options.every is not None:
        selection = replace(selection, steps=range(0, settings.steps, options.every))
    if options.at is not None:
        selection = replace(selection, steps=options.at)
    if options.every_token is not None:
        selection = replace(selection, every_token=options.every_token)
    inputs = capture if options.inputs_of is not None else None
    try:
        return CapturePlan.of(pipeline, pipeline.prepare(settings), selection, inputs)
    except ValueError as error:
        raise CaptureError(str(error)) from error


def _request(options: RecordOptions, capture: Capture | None) -> VideoRequest:
    """What is given, over what the capture is of."""
    known = {} if capture is None else _known(capture)
    given = dict(options.request)
    if "image" in given:
        given["image"] = read_image(given["image"])
    return VideoRequest(**{"prompt": PROMPT, **known, **given})


def _known(capture: Capture) -> dict[str, Any]:
    """The settings of a capture, but for a picture, which it does not have."""
    found: dict[str, Any] = dict(capture.description.settings)
    if "lora" in found:
        raise CaptureError(f"{capture.folder}: has LoRAs, which this command does not read")
    width, _, height = found["size"].partition("x")
    found["size"] = (int(width), int(height))
    names = {one.name for one in fields(VideoRequest)} - {"image"}
    return {name: value for name, value in found.items() if name in names}


def _facts(plan: CapturePlan) -> dict[str, object]:
    """What is said before the first step."""
    described = plan.describe()
    largest = max(map(plan.step_nbytes, plan.steps))
    own = "each step takes what the one before has made"
    inputs = own if plan.inputs is None else f"those of {plan.inputs.folder}"
    return {
        **described.settings,
        "model": described.model,
        "computation": described.what(),
        "inputs": inputs,
        "modules": f"{len(plan.modules)}, of {len(plan.steps)} of {plan.run.steps} steps",
        "space": f"{_size(plan.nbytes)}, at most {_size(largest)} of them in memory",
    }


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


@contextmanager
def _groups(options: RecordOptions) -> Iterator[Groups]:
    """This process's groups, while they are used."""
    if rank_of_environment() is None:
        yield Groups.single()
        return
    device = options.device
    with join_world(backend="gloo" if device == "cpu" else f"cpu:gloo,{device}:{device}"):
        yield Groups.build(options.ranks.degrees())
