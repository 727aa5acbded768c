"""Runs of a tiny model, and captures of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from wantrn.model.capture import Capture, CapturePlan, recording
from wantrn.model.denoising import Denoising
from wantrn.model.info import ModelKind
from wantrn.model.pipeline import WanPipeline
from wantrn.model.settings import VideoRequest, resolve

STEPS = 3  # the first is the high-noise expert's


def prepared(pipeline: WanPipeline, **changes: Any) -> Denoising:
    """A run, three steps long unless changed."""
    request = VideoRequest("a red ball", size=(64, 64), frames=9, steps=STEPS, seed=1)
    if pipeline.info.kind is ModelKind.I2V:
        request = replace(request, image=Image.new("RGB", (64, 64), "red"))
    if pipeline.info.kind is ModelKind.TI2V:
        request = replace(request, size=(128, 128))
    return pipeline.prepare(resolve(replace(request, **changes), pipeline.info))


def captured(plan: CapturePlan, folder: Path) -> Capture:
    with recording(plan, folder) as recorder:
        assert [recorder.make() for _ in plan.steps_to_make] == list(plan.steps_to_make)
    return Capture.open(folder)


def files(capture: Capture) -> list[dict[str, Tensor]]:
    """What is in each step's file, read without our own reader."""
    return [load_file(capture.folder / step.file) for step in capture.description.steps]
