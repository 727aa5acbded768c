"""Two runs beside the exact one: what passes, and where what is wrong is found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from wantrn.kernels.backend import Backend, use_backend
from wantrn.model.capture import (
    Capture,
    CaptureError,
    CapturePlan,
    Comparison,
    Limits,
    Selection,
    Trend,
    TrendRules,
    compare,
    judge,
    overlap,
    recording,
)
from wantrn.model.info import ModelKind
from wantrn.model.pipeline import WanPipeline
from wantrn.model.settings import VideoRequest, resolve

BF16, FP32 = torch.bfloat16, torch.float32
Change = Callable[[WanPipeline], object]


class Runs:
    """Captures of a tiny model, which are made once."""

    def __init__(self, model: Path, folder: Path) -> None:
        self._model, self._folder, self._made = model, folder, 0
        self.exact = self.run(FP32)
        self.bf16 = self.run(BF16, inputs=self.exact)

    def run(
        self,
        dtype: torch.dtype,
        inputs: Capture | None = None,
        change: Change | None = None,
        selection: Selection | None = None,
        seed: int = 1,
    ) -> Capture:
        pipeline = WanPipeline.load(self._model, dtype)
        if change is not None:
            change(pipeline)
        request = VideoRequest("a red ball", size=(64, 64), frames=5, steps=3, seed=seed)
        run = pipeline.prepare(resolve(request, pipeline.info))
        plan = CapturePlan.of(pipeline, run, selection, inputs)
        self._made += 1
        with recording(plan, self._folder / str(self._made)) as recorder:
            for _ in plan.steps_to_make:
                recorder.make()
        return Capture.open(self._folder / str(self._made))

    def broken(self, change: Change) -> Comparison:
        return compare(self.exact, self.run(BF16, self.exact, change), self.bf16)


@pytest.fixture(scope="module")
def runs(checkpoints: dict[ModelKind, Path], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(checkpoints[ModelKind.T2V], tmp_path_factory.mktemp("runs"))


def module(pipeline: WanPipeline, name: str, expert: int) -> Any:
    return pipeline.experts[expert].get_submodule(name)


def scaled(name: str, factor: float, expert: int = 0) -> Change:
    """Multiplies the weight of a layer."""
    return lambda pipeline: module(pipeline, name, expert).weight.mul_(factor)


# What it is for


def test_the_kernels_pass(runs: Runs) -> None:
    """In the simulator, beside torch in the same dtype."""
    with use_backend(Backend.SIM):
        target = runs.run(BF16, runs.exact)
    assert target.description.computation["backend"] == "sim"
    comparison = compare(runs.exact, target, runs.bf16)
    verdict = judge(comparison, Limits(same_trends=True))
    assert verdict.passed, (verdict.first, verdict.trends)
    ratios = [one.rms_ratio for one in comparison.measurements if one.rms_ratio is not None]
    assert min(ratios) < 1 < max(ratios)  # they do differ


def test_bf16_passes_without_a_reference(runs: Runs) -> None:
    comparison = compare(runs.exact, runs.bf16)
    assert judge(comparison, Limits(relative=0.03)).passed
    failed = judge(comparison, Limits(relative=0.003))
    assert failed.first is not None
    assert str(failed.first).startswith("step 0, blocks.0.self_attention@both: relative error 0.00")


def swapped_rotary(pipeline: WanPipeline) -> None:
    def swap(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        x, rotary, *rest = inputs
        return (x, type(rotary)(rotary.sin, rotary.cos), *rest)

    module(pipeline, "blocks.1.self_attention", 0).register_forward_pre_hook(swap)


def norm_of_another_channel(pipeline: WanPipeline) -> None:
    weight = module(pipeline, "blocks.1.cross_attention.q_norm", 0).weight
    weight.copy_(weight.roll(1))


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (scaled("blocks.0.self_attention.out", 1.05), "step 0, blocks.0.self_attention@both"),
        (scaled("blocks.0.feed_forward.down", 1.05), "step 0, blocks.0.feed_forward@prompt"),
        (scaled("blocks.1.cross_attention.v", 0.95), "step 0, blocks.1.cross_attention@prompt"),
        (scaled("blocks.1.feed_forward.up", 1.05, 1), "step 1, blocks.1.feed_forward@prompt"),
        (swapped_rotary, "step 0, blocks.1.self_attention@prompt"),
        (norm_of_another_channel, "step 0, blocks.1.cross_attention@prompt"),
    ],
    ids=["self", "feed-forward", "cross", "low-noise expert", "rotary", "norm"],
)
def test_what_is_broken_is_named(runs: Runs, change: Change, first: str) -> None:
    verdict = judge(runs.broken(change))
    assert not verdict.passed
    assert str(verdict.first).startswith(f"{first}: ")


def test_the_velocity_alone_would_not_show_it(runs: Runs) -> None:
    """Why modules are looked at: five percent of one of them is lost in what bf16 does to all."""
    comparison = runs.broken(scaled("blocks.1.self_attention.out", 1.05))
    for failure in judge(comparison).failures:
        assert failure.measurement.point.module == "blocks.1.self_attention"
    assert len(judge(comparison).failures) == 2  # the steps of this expert, by branch


# Inputs


def test_inputs_of_its_own_carry_errors_on(runs: Runs) -> None:
    """Into modules that are right."""
    wrong = scaled("blocks.1.feed_forward.down", 1.5)
    first = "blocks.0.self_attention"

    def ratios(comparison: Comparison) -> list[float | None]:
        return [one.rms_ratio for one in comparison.measurements if one.point.module == first]

    same = runs.broken(wrong)
    own = compare(runs.exact, runs.run(BF16, change=wrong), runs.run(BF16))
    assert (same.same_inputs, own.same_inputs) == (True, False)
    assert ratios(same) == [1, 1, 1]
    start, *later = ratios(own)
    assert start == 1
    assert all(one is not None and one > 1.5 for one in later)


# Numbers


def arrays(*captures: Capture, step: int, name: str) -> Iterator[np.ndarray[Any, Any]]:
    for capture in captures:
        file = capture.folder / f"step-{step:04d}.safetensors"
        yield load_file(file)[name].double().numpy().ravel()


def test_measurements_by_numpy(runs: Runs) -> None:
    target = runs.run(BF16, runs.exact, scaled("blocks.0.self_attention.out", 1.01))
    comparison = compare(runs.exact, target, runs.bf16)
    order = [str(one.point) for one in comparison.measurements if one.step.index == 1]
    assert order[:4] == [
        "blocks.0.self_attention@both",
        "blocks.0.cross_attention@prompt",
        "blocks.0.cross_attention@negative",
        "blocks.0.feed_forward@prompt",
    ]
    assert order[-3:] == ["blocks.1@negative", "velocity@both", "latents@both"]
    for one in comparison.measurements:
        name, step = str(one.point), one.step.index
        exact, found, known = arrays(runs.exact, target, runs.bf16, step=step, name=name)
        wrong, right = found - exact, known - exact
        size = np.sqrt(np.mean(wrong**2))
        assert one.target.largest == pytest.approx(np.max(np.abs(wrong)), rel=1e-5)
        assert one.target.rms == pytest.approx(size, rel=1e-5)
        assert one.target.relative == pytest.approx(size / np.sqrt(np.mean(exact**2)), rel=1e-5)
        assert one.rms_ratio == pytest.approx(size / np.sqrt(np.mean(right**2)), rel=1e-4)
        largest = np.max(np.abs(wrong)) / np.max(np.abs(right))
        assert one.largest_ratio == pytest.approx(largest, rel=1e-4)
        assert one.overlap == pytest.approx(
            overlap(torch.from_numpy(wrong), torch.from_numpy(right)), abs=2e-3
        )


def test_series_are_of_one_expert(runs: Runs) -> None:
    comparison = compare(runs.exact, runs.bf16)
    lengths = {(one.expert, str(one.point)): len(one.measurements) for one in comparison.series()}
    assert lengths[0, "blocks.1@negative"] == 1
    assert lengths[1, "blocks.1@negative"] == 2
    assert sum(lengths.values()) == len(comparison.measurements) == 3 * 17
    assert {one.trend() for one in comparison.series()} == {Trend.STABLE}
    assert {one.reference_trend() for one in comparison.series()} == {None}


def rewritten(capture: Capture, folder: Path, name: str, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy in which a tensor of the last step is another."""
    folder.mkdir()
    for file in capture.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    last = folder / capture.description.steps[-1].file
    tensors = load_file(last)
    tensors[name] = change(tensors[name])
    save_file(tensors, last)
    return Capture.open(folder)


def test_a_step_that_stands_out(runs: Runs, tmp_path: Path) -> None:
    target = rewritten(
        runs.bf16, tmp_path / "t", "latents@both", lambda x: x + 0.01 * torch.ones_like(x)
    )
    rules = TrendRules(spike=1.2)  # two steps of an expert cannot be three times their median
    comparison = compare(runs.exact, target, runs.bf16)
    verdict = judge(comparison, Limits(None, None, same_trends=True, rules=rules))
    assert verdict.trends == ("latents@both of expert 1: accumulating, the reference stable",)
    assert not verdict.passed and verdict.first is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite(runs: Runs, tmp_path: Path, value: float) -> None:
    def spoil(x: Tensor) -> Tensor:
        x.view(-1)[3] = value
        return x

    spoilt = rewritten(runs.bf16, tmp_path / "t", "blocks.1@prompt", spoil)
    comparison = compare(runs.exact, spoilt, runs.bf16)
    (failure,) = judge(comparison).failures
    assert str(failure).startswith("step 2, blocks.1@prompt: largest error inf times")
    assert not judge(compare(runs.exact, spoilt), Limits(relative=1e9)).passed
    with pytest.raises(CaptureError, match=r"t/step-0002.*blocks.1@prompt is not finite"):
        compare(runs.exact, runs.bf16, spoilt)
    wrong = rewritten(runs.exact, tmp_path / "e", "blocks.1@prompt", spoil)
    with pytest.raises(CaptureError, match=r"e/step-0002.*blocks.1@prompt is not finite"):
        compare(wrong, runs.bf16)


def test_a_smaller_error_may_have_another_shape(runs: Runs, tmp_path: Path) -> None:
    exact = load_file(runs.exact.folder / "step-0002.safetensors")["latents@both"]
    better = rewritten(runs.bf16, tmp_path / "t", "latents@both", lambda x: exact.clone())
    comparison = compare(runs.exact, better, runs.bf16)
    one = comparison.measurements[-1]
    assert one.overlap is not None
    assert (one.target.rms, one.rms_ratio, one.overlap < 0.5) == (0, 0, True)
    assert judge(comparison).passed


# What is refused


def test_captures_that_do_not_belong_together(runs: Runs, tmp_path: Path) -> None:
    free = runs.run(BF16)
    with pytest.raises(CaptureError, match="one has taken the inputs of"):
        compare(runs.exact, runs.bf16, free)
    with pytest.raises(CaptureError, match="has itself taken the inputs"):
        compare(runs.bf16, free)
    with pytest.raises(CaptureError, match="other settings: seed is 1 and 2"):
        compare(runs.exact, runs.run(BF16, seed=2))
    another = runs.run(FP32)
    with pytest.raises(CaptureError, match="inputs of another than"):
        compare(another, runs.bf16)
    for selection, what in (
        (Selection(("blocks.*",)), "modules"),
        (Selection(steps=(0, 1)), "steps"),
        (Selection(every_token=2), "every_token"),
    ):
        with pytest.raises(CaptureError, match=f"not the same {what}"):
            compare(runs.exact, runs.run(FP32, selection=selection))
    short = rewritten(runs.bf16, tmp_path / "t", "blocks.1@prompt", lambda x: x[:, 1:].clone())
    with pytest.raises(CaptureError, match=r"blocks.1@prompt is \[1, 31, 256\], and \[1, 32, 256"):
        compare(runs.exact, short)


@pytest.mark.parametrize(
    "wrong",
    [
        {"largest_ratio": 0.0},
        {"largest_ratio": math.nan},
        {"relative": math.inf},
        {"overlap": 1.1},
        {"largest_ratio": None, "overlap": None},
    ],
)
def test_wrong_limits(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)


def test_limits_that_have_nothing_to_go_by(runs: Runs) -> None:
    comparison = compare(runs.exact, runs.bf16)
    with pytest.raises(ValueError, match="limits.relative must be given"):
        judge(comparison)
    with pytest.raises(ValueError, match="same_trends must be False"):
        judge(comparison, Limits(relative=1, same_trends=True))
