"""Ranks that share a run make the capture that one rank would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import run_ranks
from safetensors.torch import load_file

from wantrn.model.capture import (
    Capture,
    CaptureError,
    CapturePlan,
    Limits,
    Selection,
    compare,
    judge,
    recording,
)
from wantrn.model.execution import Execution
from wantrn.model.info import ModelKind
from wantrn.model.parallelism import Parallelism
from wantrn.model.pipeline import WanPipeline
from wantrn.model.settings import VideoRequest, resolve
from wantrn.parallel import Degrees, Groups

MODULES = ("patch_embedding", "blocks.*", "blocks.*.*", "velocity", "latents")
LAYOUTS = {
    "tp": Degrees(tp=2, cfg=2),
    "shards": Degrees(tp=2, ring=2, sequence_sharding=True),
    "ring": Degrees(ring=2, cfg=2),
    "ring4": Degrees(ring=4),
    "ulysses": Degrees(ulysses=2, ring=2),
}
WORLD = 4
# 2 latent frames of 3 x 5 tokens: 30, which four ranks cannot share evenly
SIZE, FRAMES = (80, 48), 5


def capture(
    folder: Path, model: Path, execution: Execution, inputs: Capture | None = None
) -> Capture | None:
    """On the rank that writes it."""
    pipeline = WanPipeline.load(model, torch.float32, execution)
    request = VideoRequest("a red ball", size=SIZE, frames=FRAMES, steps=2, seed=1, guidance_2=1)
    run = pipeline.prepare(resolve(request, pipeline.info))
    plan = CapturePlan.of(pipeline, run, Selection(MODULES), inputs)
    with recording(plan, folder) as recorder:
        for _ in plan.steps_to_make:
            recorder.make()
    return Capture.open(folder) if plan.writes else None


def on_a_rank(model: Path, root: Path, alone: Path) -> dict[str, Any]:
    inputs = Capture.open(alone)
    found: dict[str, Any] = {}
    for name, degrees in LAYOUTS.items():
        execution = Execution(Parallelism(Groups.build(degrees)))
        found[name] = capture(root / name, model, execution, inputs) is not None
    try:
        capture(root / "dp", model, Execution(Parallelism(Groups.build(Degrees(dp=WORLD)))))
    except CaptureError as error:
        found["dp"] = str(error)
    return found


@pytest.fixture(scope="module")
def folder(checkpoints: dict[ModelKind, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a capture by one rank, ``alone``, and one for each layout."""
    root = tmp_path_factory.mktemp("captures")
    model = checkpoints[ModelKind.T2V]
    capture(root / "alone", model, Execution())
    first, *others = run_ranks(WORLD, on_a_rank, model, root, root / "alone")
    assert first == {**dict.fromkeys(LAYOUTS, True), "dp": first["dp"]}
    assert all(other == {**dict.fromkeys(LAYOUTS, False), "dp": first["dp"]} for other in others)
    assert first["dp"] == "dp must be 1: one run is captured, not 4"
    return root


@pytest.mark.parametrize("name", LAYOUTS)
def test_as_one_rank(folder: Path, name: str) -> None:
    alone, shared = Capture.open(folder / "alone"), Capture.open(folder / name)
    for step in alone.description.steps:
        one, other = (load_file(each.folder / step.file) for each in (alone, shared))
        assert {key: x.shape for key, x in one.items()} == {k: x.shape for k, x in other.items()}
        assert ("blocks.1@negative" in one) == (step.index == 0)
        for key, tensor in one.items():
            assert (other[key] - tensor).abs().max() <= 1e-4 * tensor.abs().max(), key
    assert judge(compare(alone, shared), Limits(relative=1e-5)).passed
    assert set(folder.iterdir()) == {folder / "alone", *(folder / each for each in LAYOUTS)}


def test_ranks_are_described(folder: Path) -> None:
    what = {name: Capture.open(folder / name).description.what() for name in LAYOUTS}
    assert what["tp"] == "float32, torch, tp 2 cfg 2"
    assert what["shards"] == "float32, torch, tp 2 ring 2 sequence sharding"
    assert what["ulysses"] == "float32, torch, ulysses 2 ring 2"
