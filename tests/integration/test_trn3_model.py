"""The transformer on a Trainium 3: a forward, ranks of a ring, and a short video."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from wantrn.model.config import WanConfig
from wantrn.model.info import ModelKind
from wantrn.model.media import read_video
from wantrn.model.tiny import random_state, tiny_config, write_tiny_checkpoint
from wantrn.model.transformer import WanTransformer

pytestmark = pytest.mark.trn3

DEVICE = "neuron"
SHORT = ["--size", "128x128", "--frames", "17", "--steps", "4", "--seed", "7"]
SECONDS = 3600  # the first step compiles


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    """Importing torch-neuronx makes torch know the device; without it, these tests fail."""
    importlib.import_module("torch_neuronx")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"), ModelKind.T2V)


def model_of(config: WanConfig, dtype: torch.dtype) -> WanTransformer:
    with torch.device("meta"):
        model = WanTransformer(config)
    state = {
        name: tensor.to(model.parameter_dtype(name, dtype))
        for name, tensor in random_state(config, 0).items()
    }
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


def velocity(model: WanTransformer, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(1, model.config.in_channels, 3, 18, 26, generator=generator)
    text = torch.randn(1, 512, model.config.text_dim, generator=generator)
    model = model.to(device)
    latents, text, t = (x.to(device) for x in (latents, text, torch.tensor([731.0])))
    with torch.inference_mode():
        found: Tensor = model(latents, t, model.text_context(text), model.rotary(latents))
    return found.cpu()


def error(found: Tensor, exact: Tensor) -> float:
    """Root mean square, relative."""
    return float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def test_a_block_has_the_error_of_torch() -> None:
    config = replace(tiny_config(ModelKind.T2V), num_layers=1, text_dim=128)
    exact = velocity(model_of(config, torch.float32), "cpu")
    by_torch = velocity(model_of(config, torch.bfloat16), "cpu")
    on_device = velocity(model_of(config, torch.bfloat16), DEVICE)
    assert error(on_device, exact) <= 1.5 * error(by_torch, exact)


def generate(folder: Path, output: Path, *options: str) -> NDArray[np.uint8]:
    command = [sys.executable, "-m", "wantrn.serving.cli", "generate", "a red ball rolls"]
    arguments = ["--model", str(folder), "--dtype", "bfloat16", *SHORT, "--output", str(output)]
    done = subprocess.run(
        [*command, *arguments, *options], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    return read_video(output)[0]


def psnr(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    return float(10 * np.log10(255**2 / np.square(a.astype(float) - b).mean()))


@pytest.mark.parametrize("ranks", [[], ["--ring", "2"], ["--tp", "2", "--ring", "2"]], ids=str)
def test_a_short_video_is_that_of_the_cpu(
    checkpoint: Path, tmp_path: Path, ranks: list[str]
) -> None:
    by_torch = generate(checkpoint, tmp_path / "torch")
    on_device = generate(checkpoint, tmp_path / "device", "--device", DEVICE, *ranks)
    assert psnr(by_torch, on_device) > 35
