"""A step cache on ranks that share a video: they decide alike, and as one rank does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rank_processes import run_ranks
from test_step_cache import ALWAYS, settings_of
from torch import Tensor

from wantrn.model.cached_steps import CachedSteps
from wantrn.model.denoising import Denoising
from wantrn.model.execution import Execution
from wantrn.model.info import ModelKind
from wantrn.model.parallelism import Parallelism
from wantrn.model.pipeline import WanPipeline
from wantrn.parallel import Degrees, Groups

DEGREES = {
    "tp": Degrees(tp=2),
    "tp with its tokens": Degrees(tp=2, sequence_sharding=True),
    "ring": Degrees(ring=2),
    "cfg": Degrees(cfg=2),
    "two videos": Degrees(dp=2),
}
SEEDS = (3, 4)
# 15 tokens: one of two ranks has padding, which must not count
ODD = {"size": (80, 48), "frames": 1}
Made = tuple[str, list[float], Tensor]
"""What the steps did, the drifts, and the latents."""


def videos(folder: Path, groups: Groups) -> list[Made]:
    """Two that take turns. Of ranks that make different videos, the second does not know of the
    first's."""
    pipeline = WanPipeline.load(folder, torch.float32, Execution(Parallelism(groups)))
    runs = []
    for seed in SEEDS[groups.dp.position :]:
        run = pipeline.prepare(settings_of(pipeline, seed=seed, **ODD))
        run.cached = CachedSteps.of(ALWAYS, 2)
        runs.append(run)
    plans = [""] * len(runs)
    while not runs[0].done:
        for place, run in enumerate(runs):
            pipeline.step(run)
            assert run.cached is not None
            plans[place] += "r" if run.cached.reused else "F"
    return [(plan, _drifts(run), run.latents) for plan, run in zip(plans, runs, strict=True)]


def _drifts(run: Denoising) -> list[float]:
    assert run.cached is not None
    return [expert.drift for expert in run.cached.experts]


def on_a_rank(folder: Path) -> dict[str, list[Made]]:
    return {name: videos(folder, Groups.build(degrees)) for name, degrees in DEGREES.items()}


def test_ranks_decide_as_one_does(checkpoints: dict[ModelKind, Path]) -> None:
    folder = checkpoints[ModelKind.T2V]
    alone = videos(folder, Groups.single())
    assert all("r" in plan and drifts[0] > 0 for plan, drifts, _ in alone)
    for rank, found in enumerate(run_ranks(2, on_a_rank, folder)):
        for name, made in found.items():
            wanted = alone[rank:] if name == "two videos" else alone
            assert len(made) == len(wanted)
            for (plan, drifts, ours), (wanted_plan, true, one) in zip(made, wanted, strict=True):
                assert plan == wanted_plan, name
                assert drifts == pytest.approx(true, rel=1e-4), name
                if name in ("cfg", "two videos"):
                    assert torch.equal(ours, one), name
                else:
                    assert (ours - one).abs().max() <= 1e-5 * one.abs().max(), name
