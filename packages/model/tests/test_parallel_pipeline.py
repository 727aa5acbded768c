"""The pipeline on eight ranks against the one on a single rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rank_processes import run_ranks
from test_parallel_transformer import Case, velocities
from torch import Tensor

from wantrn.model.execution import Execution
from wantrn.model.info import ModelKind
from wantrn.model.parallelism import Parallelism
from wantrn.model.pipeline import WanPipeline
from wantrn.model.settings import VideoRequest, resolve
from wantrn.model.vae_tiles import Tiling
from wantrn.parallel import Degrees, Groups
from wantrn.parallel.attention import Strategy

WORLD = 8
ALL_AXES = Degrees(tp=2, ring=2, cfg=2)
BRANCHES = Degrees(cfg=2, dp=4)
# 240 x 432 pixels, 33 frames: 3645 tokens, which 8 ranks cannot share evenly
ODD = Case(16, 16, (9, 30, 54))
STEPS = 3


def video(folder: Path, kind: ModelKind, execution: Execution) -> tuple[Tensor, Tensor]:
    """Latents and frames."""
    pipeline = WanPipeline.load(folder, torch.float32, execution)
    image = Image.new("RGB", (64, 64), "red") if kind is ModelKind.I2V else None
    request = VideoRequest(
        prompt="a red ball", image=image, size=(64, 64), frames=5, steps=STEPS, seed=3
    )
    run = pipeline.prepare(resolve(request, pipeline.info))
    while not run.done:
        pipeline.step(run)
    return run.latents, pipeline.decode(run)


def executions(groups: Groups) -> Execution:
    """Tiles are shared by all ranks, and smaller than the picture."""
    return Execution(Parallelism(groups), tiling=Tiling(3, 1), vae_group=groups.world)


def on_a_rank(folders: dict[ModelKind, Path]) -> dict[str, Any]:
    all_axes, branches = Groups.build(ALL_AXES), Groups.build(BRANCHES)
    ring = Groups.build(Degrees(ring=WORLD))
    found: dict[str, Any] = {
        strategy.value: velocities(ODD, Parallelism(ring, strategy)) for strategy in Strategy
    }
    for kind, folder in folders.items():
        found[f"{kind.value}, all axes"] = video(folder, kind, executions(all_axes))
        found[f"{kind.value}, branches"] = video(folder, kind, executions(branches))
    try:
        velocities(ODD, Parallelism(ring, strict=True))
    except ValueError as error:
        found["strict"] = str(error)
    return found


def test_eight_ranks(checkpoints: dict[ModelKind, Path]) -> None:
    alone = Execution(tiling=Tiling(3, 1))
    odd = velocities(ODD, Parallelism())
    videos = {kind: video(folder, kind, alone) for kind, folder in checkpoints.items()}
    for found in run_ranks(WORLD, on_a_rank, checkpoints):
        assert found["strict"] == (
            "Sequence length 3645 is not divisible by cp_size 8.\n"
            "Choose a resolution/frame count that yields a divisible patch sequence length."
        )
        for strategy in Strategy:
            for ours, one in zip(found[strategy.value], odd, strict=True):
                assert (ours - one).abs().max() <= 1e-5 * one.abs().max()
        for kind, (latents, frames) in videos.items():
            ours, picture = found[f"{kind.value}, all axes"]
            assert (ours - latents).abs().max() <= 1e-5 * latents.abs().max()
            assert (picture - frames).abs().max() <= 1e-4
            ours, picture = found[f"{kind.value}, branches"]
            assert torch.equal(ours, latents)
            assert torch.equal(picture, frames)
