"""FP8, LoRAs and buckets through a real server, on both engines: what ``wantrn generate`` makes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from omni_environment import VARIABLE, needs_omni
from safetensors.torch import save_file
from server_process import PYTHON_PATH, SMALL, create, server_process, wait_status

from wantrn.model.info import ModelKind
from wantrn.model.media import read_video
from wantrn.model.tiny import tiny_config, write_tiny_checkpoint
from wantrn.serving.cli import main
from wantrn.serving.modules import source_roots

Frames = npt.NDArray[np.uint8]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in FP8, and a folder with a LoRA for its low-noise expert."""
    root = tmp_path_factory.mktemp("files")
    write_tiny_checkpoint(root / "plain", ModelKind.T2V)
    assert main(["quantize", str(root / "plain"), str(root / "fp8")]) == 0
    hidden = tiny_config(ModelKind.T2V).hidden_size
    generator = torch.Generator().manual_seed(3)
    layer = "transformer.blocks.1.attn1.to_v"
    tensors = {
        f"{layer}.lora_A.weight": torch.randn(4, hidden, generator=generator) * 0.3,
        f"{layer}.lora_B.weight": torch.randn(hidden, 4, generator=generator) * 0.3,
    }
    (root / "loras" / "style").mkdir(parents=True)
    save_file(tensors, root / "loras" / "style" / "low.safetensors")
    return root


def generated(files: Path, output: Path, *more: str) -> Frames:
    """By the command, what ``create`` asks for."""
    size, frames, seed = SMALL["size"], str(SMALL["num_frames"]), str(SMALL["seed"])
    arguments = ["generate", "a red ball", "--model", str(files / "fp8"), "--output", str(output)]
    arguments += ["--size", size, "--frames", frames, "--seed", seed, "--steps", "4"]
    assert main([*arguments, "--threads", "1", *more]) == 0
    return read_video(output)[0]


@pytest.mark.parametrize("engine", ["local", pytest.param("omni", marks=needs_omni)])
def test_the_video_is_that_of_the_command(engine: str, files: Path, tmp_path: Path) -> None:
    options = ["--engine", engine, "--model", str(files / "fp8"), "--threads", "1"]
    options += ["--loras", str(files / "loras"), "--bucket", "64x64x5"]
    where = {"path": PYTHON_PATH}
    if engine == "omni":
        where = {"python": os.environ[VARIABLE], "path": source_roots()}
    made: dict[str, Frames] = {}
    with server_process(tmp_path, *options, **where) as server, server.client() as client:
        assert "warmed up 64x64x5" in server.log.read_text()
        refused = client.post("/v1/videos", json={"prompt": "a", **SMALL, "size": "96x64"})
        assert refused.status_code == 400 and "allowed are 64x64x5" in refused.text
        uses: dict[str, list[dict[str, Any]]] = {
            "plain": [],
            "styled": [{"name": "style", "scale": 0.5}],
        }
        for name, used in uses.items():
            id = create(client, lora=used)
            wait_status(client, id, "completed")
            file = tmp_path / f"{name}.mp4"
            file.write_bytes(client.get(f"/v1/videos/{id}/content").content)
            made[name], _, metadata = read_video(file)
            assert "fp8" in metadata
    assert np.array_equal(made["plain"], generated(files, tmp_path / "plain by command.mp4"))
    lora = f"{files / 'loras' / 'style' / 'low.safetensors'}=0.5"
    styled = generated(files, tmp_path / "styled by command.mp4", "--lora-low", lora)
    assert np.array_equal(made["styled"], styled)
    assert not np.array_equal(made["styled"], made["plain"])
