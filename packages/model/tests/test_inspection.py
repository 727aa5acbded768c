"""inspect: what it says of whole, damaged and very large checkpoints."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import canonical_tensors, comfyui_tensors, write_file, write_raw
from safetensors.torch import load_file

from wantrn.model.checkpoints import original
from wantrn.model.checkpoints.diffusers import canonical_shapes
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.info import ModelKind
from wantrn.model.inspection import CheckpointReport, ComponentReport, inspect_checkpoint
from wantrn.model.tiny import write_tiny_checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("whole"), ModelKind.T2V)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A checkpoint of one's own, to damage."""
    return shutil.copytree(whole, tmp_path / "tiny")


def component(report: CheckpointReport, name: str) -> ComponentReport:
    (found,) = (part for part in report.components if part.name == name)
    return found


def edit_json(file: Path, **changes: Any) -> None:
    """Set keys, or remove those set to Ellipsis."""
    values = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))


def edit_tensors(file: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    write_file(file, tensors)


@pytest.mark.parametrize("kind", list(ModelKind))
def test_a_whole_checkpoint(tmp_path: Path, kind: ModelKind) -> None:
    report = inspect_checkpoint(write_tiny_checkpoint(tmp_path, kind))
    assert report.kind is kind
    assert report.problems == ()
    names = ["transformer", "transformer_2", "vae", "text_encoder", "tokenizer", "scheduler"]
    if kind is ModelKind.TI2V:
        names.remove("transformer_2")
    assert [part.name for part in report.components] == names
    for part in report.components:
        if part.name in ("tokenizer", "scheduler"):
            assert part.parameters == 0 < part.bytes
            continue
        tensors = [t for file in part.files for t in load_file(file).values()]
        assert part.parameters == sum(tensor.numel() for tensor in tensors)
        assert part.bytes == sum(file.stat().st_size for file in part.files)
        assert part.dtypes == {"float32": len(tensors)}
    lines = report.text().splitlines()
    assert f"kind: {kind.value}" in lines and lines[-1] == "complete: nothing is missing"
    table = [line for line in lines if line.startswith((*names, "component"))]
    column = table[0].index("class")
    for line, part in zip(table[1:], report.components, strict=True):
        assert part.class_name is not None
        assert line[column - 1] == " " and line[column:].startswith(part.class_name)


WEIGHTS = {
    "transformer": "diffusion_pytorch_model.safetensors",
    "transformer_2": "diffusion_pytorch_model.safetensors",
    "vae": "diffusion_pytorch_model.safetensors",
    "text_encoder": "model.safetensors",
}


@pytest.mark.parametrize("name", list(WEIGHTS))
def test_names_what_does_not_fit(folder: Path, name: str) -> None:
    file = folder / name / WEIGHTS[name]
    keys = sorted(key for key, tensor in load_file(file).items() if tensor.ndim > 1)

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[keys[0]]
        tensors[keys[1]] = tensors[keys[1]][:-1]
        tensors["foreign.weight"] = torch.zeros(1)

    edit_tensors(file, damage)
    report = inspect_checkpoint(folder)
    part = component(report, name)
    assert part.missing == (keys[0],)
    assert part.unexpected == ("foreign.weight",)
    assert len(part.misshaped) == 1 and part.misshaped[0].startswith(f"{keys[1]} [")
    assert len(report.problems) == 3
    for problem, key in zip(report.problems, (keys[0], "foreign.weight", keys[1]), strict=True):
        assert problem.startswith(f"{name}: {folder / name}") and key in problem
        assert problem in report.text()
    assert "problems: 3" in report.text()


@pytest.mark.parametrize("name", list(WEIGHTS))
@pytest.mark.parametrize("fault", ["truncated", "pickle", "no weights", "no folder", "no config"])
def test_names_broken_components(folder: Path, name: str, fault: str) -> None:
    file = folder / name / WEIGHTS[name]
    if fault == "truncated":
        file.write_bytes(file.read_bytes()[:-1])
        words = [str(file), "truncated"]
    elif fault == "pickle":
        file.rename(file.with_suffix(".bin"))
        words = [str(file.with_suffix(".bin")), "pickle"]
    elif fault == "no weights":
        file.unlink()
        words = [str(folder / name), "holds no .safetensors"]
    elif fault == "no folder":
        (folder / name).rename(folder / "elsewhere")
        words = [str(folder / name), "is missing"]
    else:
        (folder / name / "config.json").unlink()
        words = [str(folder / name / "config.json")]
    report = inspect_checkpoint(folder)
    if fault == "no config" and name.startswith("transformer"):
        # Its shapes tell as much, but the default for one field is not what the tiny config says.
        assert component(report, name).problems == ()
        return
    (problem,) = component(report, name).problems
    assert all(word in problem for word in words)
    intact = [part for part in report.components if part.name != name]
    assert all(part.problems == () for part in intact) and len(intact) == 5


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("model_index.json", {"transformer": ...}, ["transformer: ", "is not in model_index.json"]),
        ("model_index.json", {"vae": ["diffusers", "AutoencoderKL"]}, ["AutoencoderKLWan"]),
        ("model_index.json", {"image_encoder": ["x", "CLIP"]}, ["image_encoder is no component"]),
        ("model_index.json", {"boundary_ratio": None}, ["boundary_ratio"]),
        ("transformer/config.json", {"num_layers": 3}, ["transformer: ", "blocks.2.", "missing"]),
        ("transformer/config.json", {"image_dim": 1280}, ["transformer/config.json", "image_dim"]),
        ("vae/config.json", {"base_dim": 16}, ["vae: ", "misshaped"]),
        ("vae/config.json", {"dim_mult": "wide"}, ["vae/config.json"]),
        ("text_encoder/config.json", {"num_layers": 3}, ["text_encoder: ", "block.2", "missing"]),
        ("text_encoder/config.json", {"d_model": "wide"}, ["text_encoder/config.json"]),
        (
            "scheduler/scheduler_config.json",
            {"_class_name": "DDIMScheduler"},
            ["scheduler: ", "scheduler_config.json", "DDIMScheduler"],
        ),
    ],
)
def test_names_what_json_files_say_wrongly(
    folder: Path, file: str, changes: dict[str, Any], words: list[str]
) -> None:
    edit_json(folder / file, **changes)
    report = inspect_checkpoint(folder)
    assert any(all(word in problem for word in words) for problem in report.problems)


@pytest.mark.parametrize("file", ["model_index.json", "scheduler/scheduler_config.json"])
@pytest.mark.parametrize("text", [None, "", "[]", '{"a": '])
def test_names_json_files_that_cannot_be_read(folder: Path, file: str, text: str | None) -> None:
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(text)
    report = inspect_checkpoint(folder)
    assert any(str(folder / file) in problem for problem in report.problems)
    assert report.kind is None


def test_names_a_tokenizer_without_vocabulary(folder: Path) -> None:
    (folder / "tokenizer" / "tokenizer.json").unlink()
    (problem,) = inspect_checkpoint(folder).problems
    assert problem.startswith(f"tokenizer: {folder / 'tokenizer'}") and "tokenizer.json" in problem


@pytest.mark.parametrize("format", ["diffusers", "original", "comfyui-fp8"])
@pytest.mark.parametrize("as_folder", [False, True])
def test_a_transformer_by_itself(tmp_path: Path, format: str, as_folder: bool) -> None:
    tensors = canonical_tensors()
    if format == "original":
        tensors = {original.original_name(name): tensor for name, tensor in tensors.items()}
    elif format == "comfyui-fp8":
        tensors, _ = comfyui_tensors(tensors)
    file = write_file(tmp_path / "expert.safetensors", tensors)
    report = inspect_checkpoint(tmp_path if as_folder else file)
    (part,) = report.components
    assert (part.name, part.format, part.files) == ("transformer", format, (file,))
    assert part.parameters == sum(tensor.numel() for tensor in canonical_tensors().values())
    assert part.dtypes.get("float8_e4m3fn", 0) == (26 if format == "comfyui-fp8" else 0)
    assert report.kind is ModelKind.T2V
    assert report.problems == ()
    assert format in report.text()


def test_faults_of_a_transformer_by_itself(tmp_path: Path) -> None:
    stored, _ = comfyui_tensors(canonical_tensors())
    file = tmp_path / "expert.safetensors"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"blocks.0.ffn.2.scale_weight": None}, "blocks.0.ffn.2.weight: is FP8 without its scale"),
        ({"blocks.1.norm3.bias": None}, "1 missing tensor: blocks.1.norm3.bias"),
        (
            {"blocks.1.norm3.bias": torch.zeros(256, dtype=torch.int32)},
            "norm3.bias: is torch.int32",
        ),
        ({"patch_embedding.weight": None}, "patch_embedding.weight"),
        ({"img_emb.proj.0.bias": torch.zeros(4)}, "1 unexpected tensor: img_emb.proj.0.bias"),
    ]
    for changes, text in cases:
        tensors = stored | changes
        write_file(file, {name: t for name, t in tensors.items() if t is not None})
        (problem,) = inspect_checkpoint(file).problems
        assert text in problem and str(file) in problem
    file.write_bytes(b"PK")
    (problem,) = inspect_checkpoint(file).problems
    assert str(file) in problem
    file.unlink()
    (problem,) = inspect_checkpoint(tmp_path).problems
    assert "holds no .safetensors" in problem
    with pytest.raises(CheckpointError, match="no such"):
        inspect_checkpoint(file)


def test_reads_no_data(tmp_path: Path) -> None:
    """A file of the released size, 10 GB: all of it is a hole behind the header."""
    config = WanConfig(
        num_attention_heads=24, num_layers=30, ffn_dim=14336, in_channels=48, out_channels=48
    )
    header, position = {}, 0
    for name, shape in canonical_shapes(config).items():
        end = position + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, end]}
        position = end
    file = write_raw(tmp_path / "ti2v.safetensors", header)
    with open(file, "r+b") as stream:
        stream.truncate(file.stat().st_size + position)
    report = inspect_checkpoint(file)
    assert report.problems == () and report.kind is ModelKind.TI2V
    assert report.components[0].parameters == position // 2
    assert "4,999,787,712" in report.text()
