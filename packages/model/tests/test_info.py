from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from wantrn.model.errors import CheckpointError
from wantrn.model.info import DEFAULTS_FILE, ModelKind, read_model_info


@pytest.fixture
def folder(checkpoints: dict[ModelKind, Path], tmp_path: Path) -> Path:
    """A T2V checkpoint to damage."""
    target = tmp_path / "model"
    shutil.copytree(checkpoints[ModelKind.T2V], target)
    return target


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def test_official_values_without_a_defaults_file(
    checkpoints: dict[ModelKind, Path], tmp_path: Path
) -> None:
    expected = {
        ModelKind.T2V: (81, 16, 40, 4.0, 3.0),
        ModelKind.I2V: (81, 16, 40, 3.5, 3.5),
        ModelKind.TI2V: (121, 24, 50, 5.0, None),
    }
    for kind, values in expected.items():
        target = tmp_path / kind.value
        shutil.copytree(checkpoints[kind], target)
        (target / DEFAULTS_FILE).unlink()
        d = read_model_info(target).defaults
        assert (d.frames, d.fps, d.steps, d.guidance, d.guidance_2) == values
        assert d.dtype == torch.bfloat16


def test_strides_and_channels(checkpoints: dict[ModelKind, Path]) -> None:
    for kind, stride, channels in (
        (ModelKind.T2V, 8, 16),
        (ModelKind.I2V, 8, 16),
        (ModelKind.TI2V, 16, 48),
    ):
        info = read_model_info(checkpoints[kind])
        assert (info.spatial_stride, info.temporal_stride) == (stride, 4)
        assert info.latent_channels == channels
        assert info.size_multiple == 2 * stride


def test_original_and_absent_configs_are_read_from_shapes(folder: Path) -> None:
    with_config = read_model_info(folder).config
    (folder / "transformer" / "config.json").unlink()
    (folder / "transformer_2" / "config.json").write_text(
        json.dumps({"_class_name": "WanModel", "model_type": "t2v", "dim": 256})
    )
    assert read_model_info(folder).config == with_config


DAMAGES: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("model_index.json", lambda v: v.pop("transformer"), "names no transformer"),
    ("model_index.json", lambda v: v.pop("boundary_ratio"), "boundary_ratio must be"),
    ("model_index.json", lambda v: v.update(boundary_ratio=2), "boundary_ratio must be"),
    ("model_index.json", lambda v: v.update(transformer_2=[None, None]), "single transformer"),
    ("transformer/config.json", lambda v: v.update(num_layers=3), "config differs"),
    ("transformer/config.json", lambda v: v.update(image_dim=1280), "image_dim is 1280"),
    ("transformer/config.json", lambda v: v.update(extra=1), "unknown key 'extra'"),
    ("transformer/config.json", lambda v: v.update(num_layers=0), "num_layers must be positive"),
    ("vae/config.json", lambda v: v.update(z_dim=8), "z_dim is 8"),
    (DEFAULTS_FILE, lambda v: v.update(stpes=3), "unknown key 'stpes'"),
    (DEFAULTS_FILE, lambda v: v.update(dtype="float12"), "float12"),
    (DEFAULTS_FILE, lambda v: v.update(size=[1]), DEFAULTS_FILE),
]


@pytest.mark.parametrize(("file", "change", "message"), DAMAGES)
def test_damage_is_named(
    folder: Path, file: str, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    edit(folder / file, change)
    with pytest.raises(CheckpointError, match=message):
        read_model_info(folder)


def test_other_channels_are_no_wan(folder: Path) -> None:
    for expert in ("transformer", "transformer_2"):
        edit(folder / expert / "config.json", lambda v: v.update(in_channels=20))
    with pytest.raises(CheckpointError, match="20 input and 16 output"):
        read_model_info(folder)


@pytest.mark.parametrize(
    "file",
    [
        "model_index.json",
        "transformer/config.json",
        "vae/config.json",
        "scheduler/scheduler_config.json",
    ],
)
@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_broken_json_names_the_file(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=file):
        read_model_info(folder)


def test_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model_index\.json: file not found"):
        read_model_info(tmp_path)
