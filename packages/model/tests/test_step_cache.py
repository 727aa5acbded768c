"""Runs that reuse what the blocks have added in earlier steps, on one rank."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from wantrn.model.cached_steps import CachedSteps
from wantrn.model.denoising import Denoising, DenoisingError
from wantrn.model.errors import RequestError
from wantrn.model.execution import Execution
from wantrn.model.info import ModelKind
from wantrn.model.pipeline import WanPipeline
from wantrn.model.settings import Settings, VideoRequest, resolve
from wantrn.model.step_cache import StepCache
from wantrn.model.transformer import Block, WanTransformer

NEVER = 1e-9
ALWAYS = StepCache(1.0, most_reused=2, drift_limit=100.0)
"""Of a model with random weights, whose steps have little to do with each other."""


@pytest.fixture(scope="module")
def t2v(checkpoints: dict[ModelKind, Path]) -> WanPipeline:
    return WanPipeline.load(checkpoints[ModelKind.T2V], torch.float32)


def settings_of(pipeline: WanPipeline, **changes: Any) -> Settings:
    """Many steps at little distance from each other: 12 of the high-noise expert, then 4."""
    values: dict[str, Any] = {
        "prompt": "a red ball",
        "size": (48, 48),
        "frames": 5,
        "steps": 16,
        "shift": 20.0,
        "seed": 3,
        **changes,
    }
    return resolve(VideoRequest(**values), pipeline.info)


def begun(pipeline: WanPipeline, cache: StepCache | None = ALWAYS, **changes: Any) -> Denoising:
    """A run before its first step."""
    run = pipeline.prepare(settings_of(pipeline, **changes))
    if cache is not None:
        run.cached = CachedSteps.of(cache, len(pipeline.info.experts))
    return run


def finish(pipeline: WanPipeline, run: Denoising) -> str:
    """What the remaining steps did: F in full, r reuse; in small letters the low-noise expert's."""
    made = ""
    while not run.done:
        expert = pipeline.expert_of(run, run.step_index)
        pipeline.step(run)
        assert run.cached is not None
        made += ("Rr" if run.cached.reused else "Ff")[expert]
    return made


def latents(pipeline: WanPipeline, run: Denoising) -> Tensor:
    while not run.done:
        pipeline.step(run)
    return run.latents


def test_a_run_without_one_knows_of_none_and_one_that_never_reuses_has_its_bits(
    t2v: WanPipeline,
) -> None:
    plain = t2v.prepare(settings_of(t2v))
    assert plain.cached is None
    cautious = t2v.prepare(settings_of(t2v, step_cache=NEVER))
    assert cautious.cached is not None
    assert finish(t2v, cautious) == "F" * 12 + "f" * 4
    assert torch.equal(cautious.latents, latents(t2v, plain))
    assert plain.cached is None
    assert cautious.cached.steps_reused == 0


def test_each_expert_begins_in_full_and_no_more_are_reused_than_may(t2v: WanPipeline) -> None:
    run = begun(t2v)
    made = finish(t2v, run)
    high, low = made[:12], made[12:]
    assert high.startswith("FFR") and low.startswith("ff") and made.endswith("f")
    assert "RRR" not in made and "R" in high[3:]
    assert run.cached is not None
    assert run.cached.steps_reused == made.count("R") + made.count("r")
    for expert, steps in zip(run.cached.experts, (high, low), strict=True):
        assert expert.full == steps.lower().count("f")
        assert expert.reused == steps.lower().count("r")


def test_blocks_after_the_first_are_not_run(
    t2v: WanPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    number = {
        id(block): place
        for expert in t2v.experts
        for place, block in enumerate(expert.blocks)
        if isinstance(block, Block)
    }
    forward = Block.forward

    def counted(self: Block, *args: Any, **kwargs: Any) -> Tensor:
        called.append(number[id(self)])
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Block, "forward", counted)
    run = begun(t2v)
    made = finish(t2v, run)
    branches = 2
    assert called.count(0) == branches * 16
    assert called.count(1) == branches * made.lower().count("f")


def test_what_is_added_follows_a_line_through_the_last_two_in_full(
    t2v: WanPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against residuals that are seen from outside, at the first step that reuses."""
    streams: list[list[Tensor]] = []
    outputs: list[Tensor] = []
    forward, project = Block.forward, WanTransformer._project_out

    def seen(self: Block, *args: Any, **kwargs: Any) -> Tensor:
        stream = forward(self, *args, **kwargs)
        streams[-1].append(stream)
        return stream

    def told(self: WanTransformer, stream: Tensor, *args: Any) -> Tensor:
        outputs.append(stream)
        return project(self, stream, *args)

    monkeypatch.setattr(Block, "forward", seen)
    monkeypatch.setattr(WanTransformer, "_project_out", told)
    run = begun(t2v, guidance=1.0)
    for _ in range(3):
        streams.append([])
        t2v.step(run)
    (one, other), (first, last), (only,) = streams
    assert run.cached is not None and run.cached.reused
    levels = run.scheduler.sigmas.double()
    slope = ((last - first) - (other - one)).double() / (levels[1] - levels[0])
    wanted = only.double() + (last - first).double() + slope * (levels[2] - levels[1])
    assert (outputs[-1].double() - wanted).abs().max() <= 1e-4 * wanted.abs().max()


def test_runs_take_turns(t2v: WanPipeline) -> None:
    alone = [latents(t2v, begun(t2v, seed=seed)) for seed in (3, 4)]
    runs = [begun(t2v, seed=seed) for seed in (3, 4)]
    while not all(run.done for run in runs):
        for run in runs:
            t2v.step(run)
    for run, wanted in zip(runs, alone, strict=True):
        assert torch.equal(run.latents, wanted)


def test_nothing_is_left_for_the_next_run(
    checkpoints: dict[ModelKind, Path], t2v: WanPipeline
) -> None:
    latents(t2v, begun(t2v, seed=9))
    abandoned = begun(t2v, seed=10)
    t2v.step(abandoned)
    fresh = WanPipeline.load(checkpoints[ModelKind.T2V], torch.float32)
    assert torch.equal(latents(t2v, begun(t2v)), latents(fresh, begun(fresh)))


def test_a_step_that_failed_can_be_made_again(
    t2v: WanPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = begun(t2v)
    plan = finish(t2v, wanted)
    forward = Block.forward
    failing = False

    def interrupted(self: Block, *args: Any, **kwargs: Any) -> Tensor:
        if failing and self is not t2v.experts[0].blocks[0]:
            raise KeyboardInterrupt
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Block, "forward", interrupted)
    run = begun(t2v)
    again = ""
    for at in range(16):
        before = run.cached
        failing = plan[at] in "Ff"  # what reuses runs no such block
        if failing:
            with pytest.raises(KeyboardInterrupt):
                t2v.step(run)
            assert run.cached is before and run.step_index == at
        failing = False
        t2v.step(run)
        assert run.cached is not None
        again += "r" if run.cached.reused else "f"
    assert again == plan.lower()
    assert torch.equal(run.latents, wanted.latents)


def test_latents_that_are_no_numbers_leave_the_run_as_it_was(
    t2v: WanPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(t2v)
    for _ in range(3):
        t2v.step(run)
    before, good = run.cached, run.latents
    run.latents = torch.full_like(good, float("nan"))
    with pytest.raises(DenoisingError):
        t2v.step(run)
    assert run.cached is before
    run.latents = good
    assert torch.equal(latents(t2v, run), latents(t2v, begun(t2v)))


def test_a_run_that_stands_elsewhere_knows_nothing_of_its_steps(t2v: WanPipeline) -> None:
    ahead = begun(t2v)
    for _ in range(4):
        t2v.step(ahead)
    run = begun(t2v)
    for _ in range(3):
        t2v.step(run)
    run.stand_at(ahead.latents, ahead.solver_state)
    assert finish(t2v, run).startswith("FFR")


def test_the_drift_is_measured_and_ends_it(
    t2v: WanPipeline, caplog: pytest.LogCaptureFixture
) -> None:
    loose = begun(t2v)
    finish(t2v, loose)
    assert loose.cached is not None
    high = loose.cached.experts[0]
    assert high.drift > 0.1 and not high.stopped
    assert caplog.records == []
    strict = begun(t2v, replace(ALWAYS, drift_limit=0.1))
    with caplog.at_level(logging.WARNING, logger="wantrn.model.cached_steps"):
        made = finish(t2v, strict)
    assert strict.cached is not None
    # reused, then in full, then one more before it is known
    assert made[:12].count("R") <= 4 and made[:12].endswith("F" * 5)
    assert strict.cached.experts[0].stopped
    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith("the step cache of expert 0 stops: what was reused is ")
    unguarded = begun(t2v, replace(ALWAYS, drift_limit=0.1, guard=False))
    assert finish(t2v, unguarded).count("R") > made.count("R")
    assert unguarded.cached is not None
    assert unguarded.cached.experts[0].drift > 0.1 and not unguarded.cached.experts[0].stopped


def test_drift_is_the_error_of_what_was_reused(
    t2v: WanPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against residuals that are seen from outside: two in full, one reused, one in full."""
    residuals: dict[int, Tensor] = {}
    firsts: list[Tensor] = []
    forward = Block.forward

    def seen(self: Block, *args: Any, **kwargs: Any) -> Tensor:
        stream = forward(self, *args, **kwargs)
        if self is t2v.experts[0].blocks[0]:
            firsts.append(stream)
        else:
            residuals[len(firsts) - 1] = stream - firsts[-1]
        return stream

    monkeypatch.setattr(Block, "forward", seen)
    run = begun(t2v, StepCache(1.0, 1, 100.0), guidance=1.0)
    for _ in range(5):
        t2v.step(run)
    assert set(residuals) == {0, 1, 3, 4} or set(residuals) == {0, 1, 3}
    levels = run.scheduler.sigmas.double()
    slope = (residuals[1] - residuals[0]).double() / (levels[1] - levels[0])
    guess = residuals[1].double() + slope * (levels[3] - levels[1])
    true = residuals[3].double()
    t2v.step(run)
    assert run.cached is not None
    wanted = float((guess - true).abs().sum() / true.abs().sum())
    assert run.cached.experts[0].drift == pytest.approx(wanted, rel=1e-4)


def test_both_branches_in_one_pass_decide_as_one_after_the_other(
    checkpoints: dict[ModelKind, Path], t2v: WanPipeline
) -> None:
    batched = WanPipeline.load(
        checkpoints[ModelKind.T2V], torch.float32, Execution(batched_guidance=True)
    )
    one, other = begun(t2v), begun(batched)
    assert finish(t2v, one) == finish(batched, other)
    assert (one.latents - other.latents).abs().max() <= 1e-5 * one.latents.abs().max()


@pytest.mark.parametrize("value", [0.0, -0.1, 1.5, float("nan"), float("inf")])
def test_a_threshold_out_of_range_is_refused(t2v: WanPipeline, value: float) -> None:
    with pytest.raises(RequestError) as caught:
        settings_of(t2v, step_cache=value)
    assert caught.value.field == "step_cache"
    told = f"step_cache: threshold must be above 0 and at most 1, got {value}"
    assert str(caught.value) == told


def test_the_threshold_is_told_among_the_settings(t2v: WanPipeline) -> None:
    assert settings_of(t2v, step_cache=0.2).describe()["step_cache"] == 0.2
    assert "step_cache" not in settings_of(t2v).describe()
