"""A capture as it is read: as it was written, or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from capture_runs import captured, prepared

from wantrn.model.capture import Branch, Capture, CaptureError, CapturePlan, Point, Selection
from wantrn.model.info import ModelKind
from wantrn.model.pipeline import WanPipeline


@pytest.fixture(scope="module")
def small(checkpoints: dict[ModelKind, Path], tmp_path_factory: pytest.TempPathFactory) -> Capture:
    pipeline = WanPipeline.load(checkpoints[ModelKind.T2V], torch.float32)
    plan = CapturePlan.of(pipeline, prepared(pipeline), Selection(("latents",)))
    return captured(plan, tmp_path_factory.mktemp("small") / "c")


def copied(capture: Capture, folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    for file in capture.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    described = json.loads((folder / "capture.json").read_text())
    (folder / "capture.json").write_text(json.dumps({**described, **changes}))
    return folder


def test_read_as_written(small: Capture, tmp_path: Path) -> None:
    assert Capture.open(copied(small, tmp_path / "c")).description == small.description
    step = small.description.steps[0]
    with small.step(step) as file:
        assert file.points() == {"latents@both"}
        with pytest.raises(CaptureError, match="velocity@both"):
            file.read(Point("velocity", Branch.BOTH))
    with pytest.raises(CaptureError, match="step 7 is not captured"):
        small.start(7)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"steps": []},
        {"steps": [{"index": 0}]},
        {"modules": []},
        {"every_token": 0},
        {"unknown": 1},
    ],
)
def test_a_wrong_description_is_named(
    small: Capture, tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(CaptureError, match=r"c/capture.json: "):
        Capture.open(copied(small, tmp_path / "c", **changes))


def test_a_damaged_capture_is_named(small: Capture, tmp_path: Path) -> None:
    folder = copied(small, tmp_path / "c")
    file = folder / small.description.steps[1].file
    file.write_bytes(file.read_bytes()[:-1])
    capture = Capture.open(folder)
    with pytest.raises(CaptureError, match=r"step-0001.safetensors: cannot be read"):
        capture.start(1)
    file.unlink()
    with pytest.raises(CaptureError, match=r"step-0001.safetensors: file not found"):
        Capture.open(folder)
    (folder / "capture.json").write_text("{")
    with pytest.raises(CaptureError, match=r"capture.json: cannot be read as JSON"):
        Capture.open(folder)
    with pytest.raises(CaptureError, match=r"capture.json: file not found"):
        Capture.open(tmp_path)
