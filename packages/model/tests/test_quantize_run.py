"""Quantizing from one place to another: streaming, stopped and taken up, the same bytes again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint_files import (
    SMALL,
    canonical_tensors,
    comfyui_tensors,
    write_file,
    write_raw,
    write_shards,
)
from quantize_files import peak_memory, write_synthetic

from wantrn.model.checkpoints.native import native_shapes
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError, RequestError
from wantrn.model.quantization import Group, QuantizationOptions, report_text
from wantrn.model.quantization.run import QuantizationJob

ALL = QuantizationOptions()
Tensors = dict[str, torch.Tensor]


class Killed(BaseException):
    pass


def nothing(done: int) -> None:
    """Progress that nobody watches."""


def stop_after(calls: int) -> Callable[[int], None]:
    """Progress that ends the run at its call number ``calls``, counted from 0."""
    left = iter(range(calls))

    def progress(done: int) -> None:
        if next(left, None) is None:
            raise Killed

    return progress


def write_source(folder: Path, tensors: Tensors, config: WanConfig = SMALL) -> Path:
    names = sorted(tensors)
    half = len(names) // 2
    write_shards(
        folder,
        {
            f"diffusion_pytorch_model-0000{number}-of-00002.safetensors": {
                name: tensors[name] for name in part
            }
            for number, part in enumerate((names[:half], names[half:]), start=1)
        },
    )
    (folder / "config.json").write_text(json.dumps(config.to_diffusers()))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source", canonical_tensors(SMALL))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def quantize(source: Path, destination: Path, options: QuantizationOptions = ALL) -> None:
    QuantizationJob.plan(source, destination, options).run(nothing)


def refused(source: Path, destination: Path, *words: str) -> None:
    """It fails, names all ``words``, and leaves the destination as it was."""
    before = contents(destination) if destination.is_dir() else None
    with pytest.raises((CheckpointError, RequestError)) as caught:
        quantize(source, destination)
    for word in words:
        assert word in str(caught.value)
    assert (contents(destination) if destination.is_dir() else None) == before


def test_a_second_run_writes_the_same_bytes(source: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    quantize(source, tmp_path / "a")
    torch.set_num_threads(2)
    try:
        quantize(shutil.copytree(source, tmp_path / "copy"), tmp_path / "b")
    finally:
        torch.set_num_threads(threads)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert {path.suffix for path in (tmp_path / "a").iterdir()} == {".json", ".safetensors"}


@pytest.mark.parametrize(
    ("calls", "files"), [(0, 0), (5, 0), (14, 0), (15, 1), (37, 1), (38, 2), (60, 2)]
)
def test_a_stopped_run_is_taken_up(source: Path, tmp_path: Path, calls: int, files: int) -> None:
    quantize(source, tmp_path / "whole")
    destination = tmp_path / "result"
    partial = tmp_path / "result.partial"
    with pytest.raises(Killed):
        QuantizationJob.plan(source, destination, ALL).run(stop_after(calls))
    assert not destination.exists()
    finished = {path: path.stat() for path in partial.glob("*.safetensors")}
    assert len(finished) == files

    job = QuantizationJob.plan(source, destination, ALL)
    done: list[int] = []
    errors = job.run(done.append)
    assert sum(done) == job.source_bytes
    assert contents(destination) == contents(tmp_path / "whole")
    assert not partial.exists()
    for path, before in finished.items():
        after = (destination / path.name).stat()
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert len(errors["."]) == 16


def test_a_file_that_was_not_listed_yet_is_made_again(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "whole")
    with pytest.raises(Killed):
        QuantizationJob.plan(source, tmp_path / "result", ALL).run(stop_after(20))
    (file,) = (tmp_path / "result.partial").glob("*2-of-*.safetensors.partial")
    file.with_suffix("").write_bytes(b"half of it")
    (tmp_path / "result.partial" / "quantization.json.partial").write_bytes(b"{")
    quantize(source, tmp_path / "result")
    assert contents(tmp_path / "result") == contents(tmp_path / "whole")


def test_a_finished_destination_is_left_alone(source: Path, tmp_path: Path) -> None:
    destination = tmp_path / "result"
    first = QuantizationJob.plan(source, destination, ALL)
    assert not first.finished
    errors = first.run(nothing)
    before = {path: path.stat().st_mtime_ns for path in destination.iterdir()}
    job = QuantizationJob.plan(source, destination, ALL)
    assert job.finished
    assert job.run(nothing) == errors
    assert {path: path.stat().st_mtime_ns for path in destination.iterdir()} == before


def test_an_empty_destination_and_new_parents_are_fine(source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    quantize(source, tmp_path / "empty")
    quantize(source, tmp_path / "new" / "folder")
    assert contents(tmp_path / "empty") == contents(tmp_path / "new" / "folder")


def test_every_layer_errs_less_with_a_scale_for_each_channel(tmp_path: Path) -> None:
    config = replace(SMALL, attention_head_dim=128, ffn_dim=512)
    source = write_synthetic(tmp_path / "source", config, torch.bfloat16)
    errors = QuantizationJob.plan(source, tmp_path / "result", ALL).run(nothing)
    print(report_text(errors))
    assert len(errors["."]) == 16
    for error in errors["."].values():
        assert error is not None
        assert error.per_channel < error.per_tensor


def test_memory_is_that_of_the_largest_tensor_and_not_of_the_checkpoint(tmp_path: Path) -> None:
    config = replace(
        SMALL, attention_head_dim=128, num_attention_heads=8, ffn_dim=4096, num_layers=2
    )
    small = write_synthetic(tmp_path / "small", SMALL, torch.float32)
    source = write_synthetic(tmp_path / "source", config, torch.float32)
    largest = 4 * max(torch.Size(shape).numel() for shape in native_shapes(config).values())
    total = sum(path.stat().st_size for path in source.iterdir())
    grown = peak_memory(small, source, tmp_path / "result")
    print(f"checkpoint {total:,} bytes, largest tensor {largest:,}, memory grew by {grown:,}")
    assert total > 6 * largest
    assert grown < 3 * largest


def test_a_source_that_is_none_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "absent", tmp_path / "result", "source: there is no folder", "absent")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, tmp_path / "result", str(empty))
    foreign = write_file(tmp_path / "foreign.safetensors", {"a.weight": torch.zeros(2)})
    refused(foreign, tmp_path / "result", "foreign.safetensors", "a.weight")
    broken = write_raw(tmp_path / "broken.safetensors", b"{")
    refused(broken, tmp_path / "result", "broken.safetensors")
    assert not (tmp_path / "result.partial").exists()


def test_keys_that_do_not_fit_are_named(tmp_path: Path) -> None:
    tensors = canonical_tensors(SMALL)
    del tensors["blocks.1.attn2.to_k.weight"]
    source = write_source(tmp_path / "source", {**tensors, "extra": torch.zeros(1)})
    refused(source, tmp_path / "result", "1 missing", "attn2.to_k.weight", "1 unexpected", "extra")
    assert not (tmp_path / "result.partial").exists()


def test_an_fp8_weight_without_its_scale_is_named(tmp_path: Path) -> None:
    stored, _ = comfyui_tensors(canonical_tensors(SMALL))
    del stored["blocks.0.ffn.2.scale_weight"]
    folder = tmp_path / "source"
    file = write_file(folder / "model.safetensors", stored)
    (folder / "config.json").write_text(json.dumps(SMALL.to_diffusers()))
    refused(folder, tmp_path / "result", str(file), "blocks.0.ffn.2.weight", "without its scale")
    assert not (tmp_path / "result.partial").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    tensors = canonical_tensors(SMALL)
    tensors["blocks.1.attn1.to_k.weight"][2, 3] = value
    source = write_source(tmp_path / "source", tensors)
    refused(source, tmp_path / "result", "blocks.1.attn1.to_k.weight", "NaN or infinity")
    # the fault is mended, so it is another checkpoint, and what is there is not of it
    write_source(source, canonical_tensors(SMALL, seed=1))
    refused(source, tmp_path / "result", "result.partial", "remove it")


def test_a_destination_with_other_contents_is_named(source: Path, tmp_path: Path) -> None:
    destination = tmp_path / "result"
    destination.write_text("a file")
    refused(source, destination, "destination: ", "no folder")
    destination.unlink()
    destination.mkdir()
    (destination / "note.txt").write_text("mine")
    refused(source, destination, f"destination: {destination}")
    (destination / "note.txt").unlink()
    quantize(source, destination)
    other = write_source(tmp_path / "other", canonical_tensors(SMALL, seed=1))
    refused(other, destination, f"destination: {destination}")
    with pytest.raises(RequestError, match="destination"):
        quantize(source, destination, QuantizationOptions(frozenset({Group.FEED_FORWARD})))
    with pytest.raises(RequestError, match="destination"):
        quantize(source, destination, QuantizationOptions(limit=240.0))
    next(destination.glob("*.safetensors")).unlink()
    refused(source, destination, f"destination: {destination}")


def test_work_of_other_options_is_not_taken_up(source: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        QuantizationJob.plan(source, tmp_path / "result", ALL).run(stop_after(20))
    before = contents(tmp_path / "result.partial")
    options = QuantizationOptions(frozenset({Group.FEED_FORWARD}))
    with pytest.raises(CheckpointError, match=r"result\.partial.*remove it"):
        quantize(source, tmp_path / "result", options)
    assert contents(tmp_path / "result.partial") == before


def test_other_files_do_not_get_into_the_result(source: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        QuantizationJob.plan(source, tmp_path / "one", ALL).run(stop_after(20))
    (tmp_path / "one.partial" / "note.txt").write_text("mine")
    refused(source, tmp_path / "one", "one.partial", "note.txt", "remove it")
    assert not (tmp_path / "one").exists()


def test_a_place_that_cannot_be_written_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(source, tmp_path / "file" / "result", "result", "cannot be written")
