"""Whole videos against diffusers' pipelines, and the rules of prepare, step and decode."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline
from diffusers import WanPipeline as DiffusersWanPipeline
from PIL import Image
from torch import Tensor

from wantrn.model.denoising import DenoisingError
from wantrn.model.info import ModelKind
from wantrn.model.pipeline import WanPipeline
from wantrn.model.settings import Settings, VideoRequest, resolve

SIZE = (96, 64)  # width, height
FRAMES = 9


def picture() -> Image.Image:
    """A smooth picture that is not symmetric, larger than the video, of the same aspect."""
    y, x = np.mgrid[0:128, 0:192] / 128
    pixels = np.stack([x / 2, y, (x * y) ** 0.5 / 2], axis=-1)
    return Image.fromarray((pixels * 255).astype(np.uint8))


def make_settings(pipeline: WanPipeline, with_image: bool, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "prompt": "a red ball  rolls to the right &amp; stops",
        "negative_prompt": "blurry",
        "image": picture() if with_image else None,
        "size": SIZE,
        "frames": FRAMES,
        "steps": 5,
        "guidance": 3.0,
        "seed": 7,
        **changes,
    }
    return resolve(VideoRequest(**values), pipeline.info)


def run(pipeline: WanPipeline, settings: Settings) -> Tensor:
    job = pipeline.prepare(settings)
    while not job.done:
        pipeline.step(job)
    return pipeline.decode(job)


def diffusers_video(folder: Path, kind: ModelKind, settings: Settings, noise: Tensor) -> Tensor:
    """The same settings and noise through diffusers' own pipeline."""
    options: dict[str, Any] = {
        "prompt": settings.prompt,
        "negative_prompt": settings.negative_prompt,
        "height": settings.height,
        "width": settings.width,
        "num_frames": settings.frames,
        "num_inference_steps": settings.steps,
        "guidance_scale": settings.guidance,
        "guidance_scale_2": settings.guidance_2,
        "latents": noise,
        "output_type": "pt",
    }
    if settings.image is None:
        pipeline = DiffusersWanPipeline.from_pretrained(folder)
    else:
        extra: dict[str, Any] = {"image_encoder": None, "image_processor": None}
        if kind is ModelKind.TI2V:
            extra |= {"transformer_2": None, "expand_timesteps": True}
        pipeline = WanImageToVideoPipeline.from_pretrained(folder, **extra)
        options["image"] = settings.image
    pipeline.set_progress_bar_config(disable=True)
    video: Tensor = pipeline(**options).frames[0]
    return video.permute(0, 2, 3, 1)


CASES = [
    pytest.param(ModelKind.T2V, False, id="T2V"),
    pytest.param(ModelKind.I2V, True, id="I2V"),
    pytest.param(ModelKind.TI2V, False, id="TI2V-text"),
    pytest.param(ModelKind.TI2V, True, id="TI2V-image"),
]


@pytest.mark.parametrize(("kind", "with_image"), CASES)
def test_same_video_as_diffusers(
    checkpoints: dict[ModelKind, Path],
    kind: ModelKind,
    with_image: bool,
    record_property: Callable[[str, object], None],
) -> None:
    pipeline = WanPipeline.load(checkpoints[kind], torch.float32)
    settings = make_settings(pipeline, with_image)
    noise = pipeline.prepare(settings).latents.clone()
    ours = run(pipeline, settings)
    theirs = diffusers_video(checkpoints[kind], kind, settings, noise)
    assert ours.shape == theirs.shape == (FRAMES, SIZE[1], SIZE[0], 3)
    assert ours.std() > 0.01  # a flat picture would agree with anything
    difference = float((ours - theirs).abs().max())
    record_property("difference", difference)
    assert difference <= 1e-4


@pytest.fixture(scope="module")
def t2v(checkpoints: dict[ModelKind, Path]) -> WanPipeline:
    return WanPipeline.load(checkpoints[ModelKind.T2V], torch.float32)


def test_same_seed_same_bits(t2v: WanPipeline) -> None:
    settings = make_settings(t2v, False, steps=3)
    first = run(t2v, settings)
    assert torch.equal(first, run(t2v, settings))
    assert not torch.equal(first, run(t2v, make_settings(t2v, False, steps=3, seed=8)))


def test_number_of_threads_changes_only_the_last_bits(
    t2v: WanPipeline, record_property: Callable[[str, object], None]
) -> None:
    settings = make_settings(t2v, False, steps=3)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run(t2v, settings)
        torch.set_num_threads(2)
        two = run(t2v, settings)
    finally:
        torch.set_num_threads(threads)
    difference = float((one - two).abs().max())
    record_property("difference", difference)
    assert difference <= 1e-6


def test_runs_may_take_turns(t2v: WanPipeline) -> None:
    """Two runs of different shapes, step by step in turn, do not touch each other."""
    one = make_settings(t2v, False, steps=3)
    other = make_settings(t2v, False, steps=2, size=(64, 64), frames=5, seed=3)
    alone = run(t2v, one), run(t2v, other)
    jobs = [t2v.prepare(one), t2v.prepare(other)]
    while not all(job.done for job in jobs):
        for job in jobs:
            if not job.done:
                t2v.step(job)
    for job, video in zip(jobs, alone, strict=True):
        assert torch.equal(t2v.decode(job), video)


class InterruptionError(Exception):
    pass


def test_an_interrupted_step_can_be_made_again(
    t2v: WanPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(t2v, False, steps=3)
    whole = run(t2v, settings)
    job = t2v.prepare(settings)
    t2v.step(job)
    # the low-noise expert makes the second step; its last block runs once for each prompt
    blocks = t2v._experts[1].blocks
    assert isinstance(blocks, torch.nn.ModuleList)
    last = blocks[-1]
    calls = 0

    def stop_in_the_second_pass(*arguments: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise InterruptionError
        stream: Tensor = type(last).forward(last, *arguments)
        return stream

    monkeypatch.setattr(last, "forward", stop_in_the_second_pass)
    with pytest.raises(InterruptionError):
        t2v.step(job)
    monkeypatch.undo()
    assert job.step_index == 1
    while not job.done:
        t2v.step(job)
    assert torch.equal(t2v.decode(job), whole)


def count_passes(pipeline: WanPipeline, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many passes each expert makes from now on; the list is kept up to date."""
    passes = [0, 0]
    for index, expert in enumerate(pipeline._experts):

        def counted(
            x: Tensor,
            t: Tensor,
            texts: list[Any],
            *rest: Any,
            i: int = index,
            f: Any = expert.velocities,
            **options: Any,
        ) -> Any:
            passes[i] += len(texts)
            return f(x, t, texts, *rest, **options)

        monkeypatch.setattr(expert, "velocities", counted)
    return passes


def test_text_is_projected_once_a_prompt_and_expert(
    t2v: WanPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [0, 0]
    passes = count_passes(t2v, monkeypatch)
    for index, expert in enumerate(t2v._experts):

        def counted(*given: Any, i: int = index, f: Any = expert.text_context) -> Any:
            counts[i] += 1
            return f(*given)

        monkeypatch.setattr(expert, "text_context", counted)
    run(t2v, make_settings(t2v, False, steps=10))
    assert counts == [2, 2]
    # shift 3, boundary 0.875: 3x / (1 + 2x) >= 0.875 from x = 0.7 up, the first 4 of 10 levels
    assert passes == [2 * 4, 2 * 6]


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, [8, 0]), (1.0, [0, 8])])
def test_boundary_chooses_the_expert(
    checkpoints: dict[ModelKind, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ratio: float,
    expected: list[int],
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoints[ModelKind.T2V], folder)
    index = json.loads((folder / "model_index.json").read_text())
    (folder / "model_index.json").write_text(json.dumps(index | {"boundary_ratio": ratio}))
    pipeline = WanPipeline.load(folder, torch.float32)
    passes = count_passes(pipeline, monkeypatch)
    run(pipeline, make_settings(pipeline, False, steps=4))
    assert passes == expected


def test_guidance_of_one_needs_no_second_pass(
    t2v: WanPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(t2v, False, steps=2, guidance=1.0, guidance_2=1.0)
    job = t2v.prepare(settings)
    assert job.negative_prompt is None
    video = run(t2v, settings)
    other = run(t2v, replace(settings, negative_prompt="something else"))
    assert torch.equal(video, other)


def test_guidance_belongs_to_its_expert(t2v: WanPipeline) -> None:
    """The first step is the high-noise expert's; the last is the low-noise expert's."""
    base = make_settings(t2v, False, steps=4, guidance=3.0, guidance_2=3.0)
    high, low = replace(base, guidance=5.0), replace(base, guidance_2=5.0)
    after_first = []
    for settings in (base, high, low):
        job = t2v.prepare(settings)
        t2v.step(job)
        after_first.append(job.latents)
    assert torch.equal(after_first[0], after_first[2])
    assert not torch.equal(after_first[0], after_first[1])
    assert not torch.equal(run(t2v, base), run(t2v, low))


def test_steps_end(t2v: WanPipeline) -> None:
    job = t2v.prepare(make_settings(t2v, False, steps=1))
    with pytest.raises(ValueError, match="made 0 of its 1 steps"):
        t2v.decode(job)
    t2v.step(job)
    with pytest.raises(ValueError, match="all of its 1 steps"):
        t2v.step(job)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_name_their_step(t2v: WanPipeline, bad: float) -> None:
    job = t2v.prepare(make_settings(t2v, False, steps=3))
    t2v.step(job)
    job.latents = job.latents.clone()
    job.latents[0, 0, 0, 0, 0] = bad
    with pytest.raises(DenoisingError, match="after step 2 of 3"):
        t2v.step(job)
    assert job.step_index == 1


def test_misfit_noise_is_refused(t2v: WanPipeline) -> None:
    settings = make_settings(t2v, False)
    with pytest.raises(ValueError, match=r"noise must be \[1, 16, 3, 8, 12\]"):
        t2v.prepare(settings, torch.zeros(1, 16, 3, 8, 8))
    with pytest.raises(ValueError, match="float32"):
        t2v.prepare(settings, torch.zeros(1, 16, 3, 8, 12, dtype=torch.float64))


def test_bf16_model_makes_nearly_the_same_video(
    t2v: WanPipeline, checkpoints: dict[ModelKind, Path]
) -> None:
    half = WanPipeline.load(checkpoints[ModelKind.T2V], torch.bfloat16)
    settings = make_settings(t2v, False, steps=3)
    job = half.prepare(settings)
    half.step(job)
    assert job.latents.dtype == torch.float32
    difference = (run(t2v, settings) - run(half, settings)).abs()
    assert 0 < float(difference.mean()) < 0.02
