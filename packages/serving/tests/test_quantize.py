"""``wantrn quantize`` as a user meets it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from wantrn.model.info import ModelKind
from wantrn.model.quantization import load_quantized
from wantrn.model.tiny import write_tiny_checkpoint
from wantrn.serving.cli import main


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    write_tiny_checkpoint(folder, ModelKind.T2V)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def quantize(*arguments: object) -> int:
    return main(["quantize", *map(str, arguments)])


def test_both_experts_and_the_report(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    destination = tmp_path / "fp8"
    assert quantize(checkpoint, destination) == 0
    shown = capsys.readouterr()
    assert "quantizing" in shown.err
    assert "100%" in shown.err
    lines = re.findall(r"^blocks\.(\S+) +(\d\.\d+)% +(\d\.\d+)%$", shown.out, re.MULTILINE)
    assert len(lines) == 2 * 2 * 8
    before = contents(destination)
    for expert in ("transformer", "transformer_2"):
        _, state = load_quantized(destination / expert, lambda name: torch.bfloat16)
        assert len(state.layers) == 16
    assert quantize(checkpoint, destination) == 0
    again = capsys.readouterr()
    assert again.out == shown.out
    assert "finished already" in again.err
    assert contents(destination) == before


def test_options(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ("--groups", "feed_forward,self_attention", "--limit", "240", "--threads", "1")
    assert quantize(checkpoint / "transformer", tmp_path / "fp8", *arguments) == 0
    _, state = load_quantized(tmp_path / "fp8", lambda name: torch.float32)
    assert {layer.split(".")[2] for layer in state.layers} == {"feed_forward", "self_attention"}
    assert max(weight.codes.float().abs().max() for weight in state.layers.values()) == 240


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["SRC"], ["required: DST"]),
        (["SRC", "DST", "--groups", "ffn"], ["--groups", "unknown group 'ffn'", "feed_forward"]),
        (["SRC", "DST", "--groups", ""], ["--groups", "unknown group ''"]),
        (["SRC", "DST", "--limit", "300"], ["--limit", "300"]),
        (["SRC", "DST", "--threads", "0"], ["--threads", "'0'"]),
        (["SRC", "DST", "--fast"], ["--fast"]),
    ],
)
def test_bad_arguments_are_named(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["quantize", *arguments])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("wantrn quantize: error: ")
    assert all(word in line for word in words)


def test_bad_places_are_named(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(source: Path, destination: Path, *words: str) -> None:
        assert quantize(source, destination) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        (line,) = shown.err.splitlines()[-1:]
        assert line.startswith("wantrn quantize: error: ")
        assert all(word in line for word in words), line

    refused(tmp_path / "absent", tmp_path / "fp8", "source: ", "absent")
    refused(checkpoint / "vae", tmp_path / "fp8", str(checkpoint / "vae"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    refused(checkpoint, tmp_path / "full", "destination: ", "full")
    refused(checkpoint, tmp_path / "full" / "note.txt" / "fp8", "fp8", "cannot be written")
    file = tmp_path / "bad.safetensors"
    tensors = load_file(next((checkpoint / "transformer").glob("*.safetensors")))
    name = "blocks.1.ffn.net.2.weight"
    save_file({**tensors, name: tensors[name].to(torch.float8_e4m3fn)}, file)
    refused(file, tmp_path / "fp8", str(file), name, "no scales")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.safetensors", "full"]
    assert contents(tmp_path / "full") == {"note.txt": b"mine"}


# The bar's 44th step is in the third file of the first expert.
_DYING = """
import os, sys
from tqdm import tqdm
from wantrn.serving import quantize_command
from wantrn.serving.cli import main
class DyingBar(tqdm):
    steps = iter(range(43))
    def update(self, done):
        if next(self.steps, None) is None:
            os.kill(os.getpid(), int(sys.argv[3]))
        return super().update(done)
quantize_command.tqdm = DyingBar
sys.exit(main(["quantize", *sys.argv[1:3]]))
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 143)]
)
def test_a_killed_run_is_taken_up(
    checkpoint: Path, tmp_path: Path, number: int, status: int
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _DYING, str(checkpoint), str(tmp_path / "fp8"), str(int(number))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == status, run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["fp8.partial"]
    kept = {
        path.name: path.stat().st_ino
        for path in (tmp_path / "fp8.partial" / "transformer").glob("*.safetensors")
    }
    assert len(kept) == 2
    assert quantize(checkpoint, tmp_path / "fp8") == 0
    for name, inode in kept.items():
        assert (tmp_path / "fp8" / "transformer" / name).stat().st_ino == inode
    assert quantize(checkpoint, tmp_path / "whole") == 0
    assert contents(tmp_path / "fp8") == contents(tmp_path / "whole")
