"""Our pipelines in vLLM-Omni's own server, as ``docs/vllm-omni-plugin.md`` starts it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import torch
from omni_environment import VARIABLE, needs_omni
from safetensors.torch import save_file
from server_process import wait

from wantrn.model.info import ModelKind
from wantrn.model.media import read_frames
from wantrn.model.tiny import tiny_config, write_tiny_checkpoint
from wantrn.serving.cli import main
from wantrn.serving.modules import source_roots

pytestmark = needs_omni

Frames = npt.NDArray[np.int_]
OURS = {"threads": 1, "warm_up": [{"width": 64, "height": 64, "frames": 5}]}
FIELDS = {"prompt": "a red ball", "size": "64x64", "num_frames": "5", "num_inference_steps": "4"}


@contextmanager
def own_server(model: Path, folder: Path) -> Iterator[httpx.Client]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [os.environ[VARIABLE], "-m", "vllm_omni.entrypoints.cli.main", "serve", str(model)]
    command += ["--omni", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--step-execution", "--ring-degree", "2"]
    command += ["--distributed-executor-backend"]
    command += ["wantrn.serving.engines.omni.executor.RankExecutor"]
    command += ["--custom-pipeline-args", json.dumps({"wantrn": OURS})]
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "PYTHONPATH": source_roots(),
                "HOME": str(folder),
                "HF_HUB_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
                "VLLM_NO_USAGE_STATS": "1",
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            wait(lambda: is_up(client, process), lambda: log.read_text()[-4000:])
            assert "warmed up 64x64x5" in log.read_text()
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def is_up(client: httpx.Client, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def ask(client: httpx.Client, **more: str) -> dict[str, Any]:
    """What a video came to."""
    reply = client.post("/v1/videos", files={k: (None, v) for k, v in {**FIELDS, **more}.items()})
    assert reply.status_code == 200, reply.text
    address = f"/v1/videos/{reply.json()['id']}"
    # it answers for a video that failed with the status of its error
    wait(lambda: client.get(address).json().get("status") in (None, "completed", "failed"))
    found: dict[str, Any] = client.get(address).json()
    return found


def frames(client: httpx.Client, video: dict[str, Any], file: Path) -> Frames:
    file.write_bytes(client.get(f"/v1/videos/{video['id']}/content").content)
    return read_frames(file).astype(int)


def test_videos_of_its_own_server(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "model", ModelKind.T2V)
    hidden = tiny_config(ModelKind.T2V).hidden_size
    layer = "transformer.blocks.1.attn1.to_v"
    lora, unknown = tmp_path / "lora.safetensors", tmp_path / "unknown.safetensors"
    generator = torch.Generator().manual_seed(3)
    pair = {
        "lora_A.weight": torch.randn(8, hidden, generator=generator) * 2,
        "lora_B.weight": torch.randn(hidden, 8, generator=generator),
    }
    save_file({f"{layer}.{name}": tensor for name, tensor in pair.items()}, lora)
    save_file({f"blocks.1.nothing.{name}": tensor for name, tensor in pair.items()}, unknown)

    def use(path: Path) -> str:
        return json.dumps({"name": "x", "path": str(path), "scale": 0.5})

    with own_server(model, tmp_path) as client:
        plain = ask(client, seed="7")
        assert plain["status"] == "completed" and plain["stage_durations"]["denoise"] > 0
        made = frames(client, plain, tmp_path / "plain.mp4")
        styled = frames(client, ask(client, seed="7", lora=use(lora)), tmp_path / "styled.mp4")
        for more, wanted in (
            ({"size": "50x64"}, "size: 50x64 cannot be made"),
            ({"lora": use(unknown)}, "2 of 2 keys are unknown"),
        ):
            assert wanted in json.dumps(ask(client, **more)["error"])
    plain_by_command = by_command(model, tmp_path / "plain")
    styled_by_command = by_command(model, tmp_path / "styled", "--lora", f"{lora}=0.5")
    # noise loses much in a file: at 24 dB it is the same video, at 19 the other one
    assert psnr(made, plain_by_command) > 22 > 20 > psnr(made, styled_by_command)
    assert psnr(styled, styled_by_command) > 22 > 20 > psnr(styled, plain_by_command)


def by_command(model: Path, output: Path, *more: str) -> Frames:
    arguments = ["generate", "a red ball", "--model", str(model), "--output", str(output)]
    arguments += ["--size", "64x64", "--frames", "5", "--steps", "4", "--seed", "7"]
    assert main([*arguments, "--threads", "1", *more]) == 0
    return read_frames(output).astype(int)


def psnr(one: Frames, other: Frames) -> float:
    assert one.shape == other.shape
    return float(10 * np.log10(255**2 / np.square(one - other).mean()))
