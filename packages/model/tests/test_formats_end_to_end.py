"""One model in every checkpoint format: the same video."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_files import comfyui_tensors, write_file
from torch import Tensor

from wantrn.model.checkpoints import CheckpointFormat, TensorStore, export_state, save_sharded
from wantrn.model.checkpoints.native import to_native
from wantrn.model.config import WanConfig
from wantrn.model.info import ModelKind, read_model_info
from wantrn.model.pipeline import WanPipeline
from wantrn.model.settings import VideoRequest, resolve

EXPERTS = ("transformer", "transformer_2")
Writer = Callable[[Path, dict[str, Tensor], WanConfig], None]


def diffusers_shards(folder: Path, tensors: dict[str, Tensor], config: WanConfig) -> None:
    save_sharded(tensors, folder, max_shard_bytes=2_000_000)
    assert len(list(folder.glob("*.safetensors"))) > 3
    assert len(list(folder.glob("*.safetensors.index.json"))) == 1


def original(folder: Path, tensors: dict[str, Tensor], config: WanConfig) -> None:
    state = to_native(tensors, config)
    write_file(
        folder / "wan2.2.safetensors", export_state(state, config, CheckpointFormat.ORIGINAL)
    )


def comfyui(spelling: tuple[str, str], prefix: str) -> Writer:
    def write(folder: Path, tensors: dict[str, Tensor], config: WanConfig) -> None:
        stored, _ = comfyui_tensors(tensors, config, spelling, prefix)
        write_file(folder / "wan2.2_fp8_scaled.safetensors", stored)

    return write


def dequantized(folder: Path, tensors: dict[str, Tensor], config: WanConfig) -> None:
    """diffusers' format with the values that the FP8 files stand for."""
    _, values = comfyui_tensors(tensors, config)
    save_sharded(values, folder)


def rewrite(source: Path, target: Path, writer: Writer) -> Path:
    """A copy of a checkpoint whose transformers are in another format, without a config."""
    shutil.copytree(source, target)
    config = read_model_info(source).config
    for name in EXPERTS:
        store = TensorStore.open(source / name)
        tensors = {key: store.read(key).clone() for key in store.names}
        shutil.rmtree(target / name)
        (target / name).mkdir()
        writer(target / name, tensors, config)
    assert read_model_info(target).config == config  # from shapes
    return target


def video(folder: Path) -> Tensor:
    pipeline = WanPipeline.load(folder, torch.float32)
    request = VideoRequest("a red ball", size=(64, 64), frames=5, steps=3, seed=1)
    job = pipeline.prepare(resolve(request, pipeline.info))
    while not job.done:
        pipeline.step(job)
    return pipeline.decode(job)


@pytest.fixture(scope="module")
def source(checkpoints: dict[ModelKind, Path]) -> Path:
    return checkpoints[ModelKind.T2V]


@pytest.mark.parametrize("writer", [diffusers_shards, original])
def test_full_precision_formats_give_the_same_bits(
    source: Path, tmp_path: Path, writer: Writer
) -> None:
    assert torch.equal(video(rewrite(source, tmp_path / "model", writer)), video(source))


@pytest.mark.parametrize(
    ("spelling", "prefix"),
    [
        (("scale_weight", "scale_input"), ""),
        (("weight_scale", "input_scale"), "model.diffusion_model."),
    ],
)
def test_fp8_gives_the_bits_of_its_values(
    source: Path, tmp_path: Path, spelling: tuple[str, str], prefix: str
) -> None:
    fp8 = video(rewrite(source, tmp_path / "fp8", comfyui(spelling, prefix)))
    assert torch.equal(fp8, video(rewrite(source, tmp_path / "values", dequantized)))
    # e4m3 rounds a weight by at most 2**-4 of itself; the errors of many weights average out
    assert 0 < float((fp8 - video(source)).abs().mean()) < 2.0**-4
