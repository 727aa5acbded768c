"""``wantrn generate --lora``: what reaches the picture, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from wantrn.model.info import ModelKind
from wantrn.model.media import read_video
from wantrn.model.tiny import tiny_config, write_tiny_checkpoint
from wantrn.serving.cli import main

SHORT = ["--size", "32x32", "--frames", "1", "--steps", "3", "--seed", "7"]
CONFIG = tiny_config(ModelKind.T2V)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"), ModelKind.T2V)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two LoRAs, of each layer of attention one."""
    folder = tmp_path_factory.mktemp("loras")
    width = CONFIG.hidden_size
    for seed, name in enumerate(("a", "b")):
        generator = torch.Generator().manual_seed(seed)
        tensors = {}
        for block in range(CONFIG.num_layers):
            for layer in ("self_attn.v", "cross_attn.v"):
                stem = f"diffusion_model.blocks.{block}.{layer}"
                tensors[f"{stem}.lora_A.weight"] = torch.randn(4, width, generator=generator)
                tensors[f"{stem}.lora_B.weight"] = torch.randn(width, 4, generator=generator) / 16
        save_file(tensors, folder / f"{name}.safetensors")
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own for every test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def video(model: Path, *options: str) -> tuple[NDArray[np.uint8], dict[str, object]]:
    name = f"video{len(list(Path().iterdir()))}"
    command = ["generate", "x", "--model", str(model), *SHORT, *options, "--output", name]
    assert main(command) == 0
    frames, _, metadata = read_video(Path(name))
    return frames, dict(metadata)


def test_options_reach_the_experts(
    model: Path, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = files / "a.safetensors", files / "b.safetensors"
    plain, described = video(model)
    assert "lora" not in described
    both, described = video(model, "--lora", f"{a}=0.5")
    assert described["lora"] == "a.safetensors=0.5"
    assert "a.safetensors=0.5" in capsys.readouterr().err
    apart, described = video(model, "--lora-high", f"{a}=0.5", "--lora-low", f"{a}=0.5")
    assert described["lora"] == "a.safetensors (high=0.5), a.safetensors (low=0.5)"
    assert np.array_equal(both, apart)
    high, _ = video(model, "--lora-high", f"{a}=0.5")
    low, _ = video(model, "--lora-low", f"{a}=0.5")
    several, _ = video(model, "--lora", f"{a}=0.5", "--lora", str(b), "--lora-high", f"{b}=-2e-1")
    found = [plain, both, high, low, several]
    for index, one in enumerate(found):
        assert all(not np.array_equal(one, other) for other in found[index + 1 :])
    zero, _ = video(model, "--lora", f"{a}=0")
    assert np.array_equal(zero, plain)


def test_ranks_make_the_video_of_one(model: Path, files: Path) -> None:
    chosen = [
        "--lora",
        f"{files / 'a.safetensors'}=0.5",
        "--lora-low",
        str(files / "b.safetensors"),
    ]
    alone, _ = video(model, *chosen)
    ranks, described = video(model, *chosen, "--tp", "2")
    assert described["lora"] == "a.safetensors=0.5, b.safetensors (low=1)"
    assert np.abs(ranks.astype(int) - alone).max() <= 1


def refusal(model: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    try:
        status = main(["generate", "x", "--model", str(model), *SHORT, *options])
    except SystemExit as exit:
        status = int(exit.code or 0)
    assert status == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert not list(Path().glob("video*"))
    return told.err


def test_what_cannot_be_is_refused(
    model: Path, files: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = files / "a.safetensors"
    for options, fault in {
        ("--lora", "none.safetensors"): "--lora: none.safetensors: no such file or folder\n",
        ("--lora", f"{a}=nan"): "--lora: a.safetensors: the scale must be finite, got nan\n",
        ("--lora", f"{a}=strong"): "argument --lora: 'strong', after =, is no number\n",
        ("--lora-low", f"{a}=inf"): "--lora: a.safetensors: the scale must be finite, got inf\n",
    }.items():
        assert refusal(model, capsys, *options).endswith(f"error: {fault}")
    save_file({"blocks.0.self_attn.k_img.lora_A.weight": torch.zeros(1)}, place / "x.safetensors")
    assert (
        "--lora: x.safetensors: 1 of 1 keys are unknown: blocks.0.self_attn.k_img.lora_A.weight"
        in refusal(model, capsys, "--lora", "x.safetensors")
    )
    (place / "y.bin").write_bytes(b"x")
    assert "is a pickle" in refusal(model, capsys, "--lora", "y.bin")
    ti2v = write_tiny_checkpoint(place / "ti2v", ModelKind.TI2V)
    for name in ("--lora-high", "--lora-low"):
        assert f"{name}: got {a}, but the model has one expert: give --lora\n" in refusal(
            ti2v, capsys, name, str(a)
        )


def test_a_name_may_hold_a_sign_of_equality(model: Path, files: Path, place: Path) -> None:
    named = place / "rank=4.safetensors"
    named.write_bytes((files / "a.safetensors").read_bytes())
    _, described = video(model, "--lora", "rank=4.safetensors", "--lora", "rank=4.safetensors=0.5")
    assert described["lora"] == "rank=4.safetensors=1, rank=4.safetensors=0.5"
