"""``wantrn inspect`` on whole and on damaged checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from wantrn.model.info import ModelKind
from wantrn.model.tiny import write_tiny_checkpoint
from wantrn.serving.cli import main


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_tiny_checkpoint(tmp_path, ModelKind.T2V)
    return tmp_path


def weights(folder: Path) -> Path:
    (file,) = folder.glob("*.safetensors")
    return file


def parameters(folder: Path) -> int:
    return sum(tensor.numel() for tensor in load_file(weights(folder)).values())


def rows(text: str) -> dict[str, str]:
    return {
        line.split("  ")[0]: line.split("  ", maxsplit=1)[1].strip()
        for line in text.splitlines()
        if "  " in line.strip()
    }


def problems(text: str) -> list[str]:
    """The lines after the verdict."""
    return text.partition("problems: ")[2].splitlines()[1:]


def test_a_whole_checkpoint(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(checkpoint)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"checkpoint: {checkpoint}\nkind: t2v\n")
    shown = rows(text)
    assert shown["experts"] == "two, the first for timesteps from 875 up"
    assert "2 heads of 128" in shown["transformer shape"]
    assert shown["scheduler"].startswith("unipc, shift 3")
    for name in ("transformer", "transformer_2", "text_encoder", "vae"):
        assert f"{parameters(checkpoint / name):,} float32" in " ".join(shown[name].split())
    assert shown["transformer"].split()[:2] == ["WanTransformer3DModel", "diffusers"]
    assert "complete: nothing is missing\n" in text


@pytest.mark.parametrize("kind", [ModelKind.I2V, ModelKind.TI2V])
def test_the_other_kinds(
    tmp_path: Path, kind: ModelKind, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_checkpoint(tmp_path, kind)
    assert main(["inspect", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert f"kind: {kind.value}\n" in text
    assert ("transformer_2" in rows(text)) == (kind is ModelKind.I2V)


def test_a_transformer_by_itself(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (checkpoint / "transformer", weights(checkpoint / "transformer")):
        assert main(["inspect", str(path)]) == 0
        text = capsys.readouterr().out
        assert "kind: t2v\n" in text
        assert f"{parameters(checkpoint / 'transformer'):,}" in rows(text)["transformer"]


@pytest.mark.parametrize("component", ["transformer_2", "text_encoder", "vae"])
def test_tensors_that_do_not_fit_are_named(
    checkpoint: Path, component: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = weights(checkpoint / component)
    tensors = load_file(file)
    gone, bent = [name for name, tensor in tensors.items() if tensor.dim() > 1][-2:]
    tensors["foreign.weight"] = torch.zeros(1)
    tensors[bent] = torch.zeros(3, 3, 3)
    del tensors[gone]
    save_file(tensors, file)
    assert main(["inspect", str(checkpoint)]) == 1
    text = capsys.readouterr().out
    lines = problems(text)
    assert len(lines) == 3
    assert all(str(checkpoint / component) in line for line in lines)
    assert any("1 missing" in line and gone in line for line in lines)
    assert any("1 unexpected" in line and "foreign.weight" in line for line in lines)
    assert any("1 misshaped" in line and f"{bent} [3, 3, 3]" in line for line in lines)
    assert "nothing is missing" not in text


@pytest.mark.parametrize(
    "part",
    [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "transformer",
        "text_encoder/config.json",
        "tokenizer",
        "vae",
    ],
)
def test_a_missing_part_is_named(
    checkpoint: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / part).rename(checkpoint / "elsewhere")
    assert main(["inspect", str(checkpoint)]) == 1
    assert any(part in line for line in problems(capsys.readouterr().out))


def test_a_truncated_file_is_named(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = weights(checkpoint / "transformer")
    file.write_bytes(file.read_bytes()[:-10])
    assert main(["inspect", str(checkpoint)]) == 1
    assert str(file) in capsys.readouterr().out


def test_a_scheduler_that_is_not_implemented_is_named(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = checkpoint / "scheduler" / "scheduler_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "use_karras_sigmas": True}))
    assert main(["inspect", str(checkpoint)]) == 1
    assert "use_karras_sigmas is True" in capsys.readouterr().out


def test_what_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / "absent")]) == 2
    assert "wantrn inspect: error: directory: there is no folder" in capsys.readouterr().err
