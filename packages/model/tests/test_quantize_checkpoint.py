"""Quantizing a whole checkpoint folder: the result is one too, and stands alone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from wantrn.model.errors import CheckpointError, RequestError
from wantrn.model.info import ModelKind, read_model_info
from wantrn.model.inspection import inspect_checkpoint
from wantrn.model.quantization import Group, QuantizationOptions, report_text
from wantrn.model.quantization.run import QuantizationJob

ALL = QuantizationOptions()
KINDS = {
    ModelKind.T2V: ["transformer", "transformer_2"],
    ModelKind.I2V: ["transformer", "transformer_2"],
    ModelKind.TI2V: ["transformer"],
}
COPIED = ("vae", "text_encoder", "tokenizer", "scheduler")


class Killed(BaseException):
    pass


def nothing(done: int) -> None:
    """Progress that nobody watches."""


def quantize(source: Path, destination: Path, options: QuantizationOptions = ALL) -> Path:
    QuantizationJob.plan(source, destination, options).run(nothing)
    return destination


def stop_at(source: Path, destination: Path, bytes: int) -> None:
    """A run that dies after so many bytes of progress."""
    left = bytes

    def progress(done: int) -> None:
        nonlocal left
        left -= done
        if left <= 0:
            raise Killed

    with pytest.raises(Killed):
        QuantizationJob.plan(source, destination, ALL).run(progress)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def refused(source: Path, destination: Path, *words: str) -> None:
    with pytest.raises((CheckpointError, RequestError)) as caught:
        quantize(source, destination)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.fixture
def source(checkpoints: dict[ModelKind, Path], tmp_path: Path) -> Path:
    """A TI2V checkpoint to damage."""
    return shutil.copytree(checkpoints[ModelKind.TI2V], tmp_path / "source")


@pytest.mark.parametrize("kind", ModelKind)
def test_the_result_is_a_complete_checkpoint(
    checkpoints: dict[ModelKind, Path], kind: ModelKind, tmp_path: Path
) -> None:
    source, destination = checkpoints[kind], tmp_path / "fp8"
    errors = QuantizationJob.plan(source, destination, ALL).run(nothing)
    assert list(errors) == KINDS[kind]
    found = contents(destination)
    for expert in KINDS[kind]:
        alone = contents(quantize(source / expert, tmp_path / "alone" / expert))
        for name, data in alone.items():
            assert found.pop(f"{expert}/{name}") == data
    # the rest is the source's, and nothing else is there
    others = {
        name: data for name, data in contents(source).items() if not name.startswith("transformer")
    }
    assert found == others
    text = report_text(errors)
    assert all(re.search(rf"^{expert}$", text, re.MULTILINE) for expert in KINDS[kind])
    assert re.search(r"^blocks\.1\.feed_forward\.down +2\.\d+% +2\.\d+%$", text, re.MULTILINE)
    (means,) = re.findall(r"^all layers +(\d\.\d+)% +(\d\.\d+)%$", text, re.MULTILINE)[-1:]
    assert float(means[0]) < float(means[1])


@pytest.mark.parametrize("kind", ModelKind)
def test_the_result_is_recognised(
    checkpoints: dict[ModelKind, Path], kind: ModelKind, tmp_path: Path
) -> None:
    options = QuantizationOptions(frozenset({Group.CROSS_ATTENTION, Group.FEED_FORWARD}), 240.0)
    destination = quantize(checkpoints[kind], tmp_path / "fp8", options)
    before, after = read_model_info(checkpoints[kind]), read_model_info(destination)
    assert before.quantization is None
    assert after.quantization == options
    assert options.describe() == "cross_attention, feed_forward, up to 240"
    assert (after.kind, after.config) == (before.kind, before.config)
    report = inspect_checkpoint(destination)
    assert report.problems == () and report.kind is kind
    plain = inspect_checkpoint(checkpoints[kind])
    for expected, found in zip(plain.components, report.components, strict=True):
        assert found.parameters == expected.parameters
        if found.name in KINDS[kind]:
            assert found.format == "fp8-channels"
            assert found.dtypes == {"float8_e4m3fn": 12, "float32": len_plain(found.dtypes)}
            assert found.bytes < expected.bytes
        else:
            assert found.bytes == expected.bytes
    (alone,) = inspect_checkpoint(destination / "transformer").components
    assert alone == report.components[0]


def len_plain(dtypes: object) -> int:
    assert isinstance(dtypes, dict)
    return int(dtypes["float32"])


def test_an_interrupted_run_is_no_checkpoint_and_is_taken_up(source: Path, tmp_path: Path) -> None:
    whole = contents(quantize(source, tmp_path / "whole"))
    total = QuantizationJob.plan(source, tmp_path / "fp8", ALL).source_bytes
    weights = sum(file.stat().st_size for file in (source / "transformer").glob("*.safetensors"))
    partial = tmp_path / "fp8.partial"
    # within the transformer, at the first copy, within the copies, before the last one ends
    for stop in (weights // 2, weights + 1, (weights + total) // 2, total):
        stop_at(source, tmp_path / "fp8", stop)
        assert not (tmp_path / "fp8").exists()
        assert not (partial / "model_index.json").exists()
        with pytest.raises(CheckpointError, match=r"model_index\.json: file not found"):
            read_model_info(partial)
        assert inspect_checkpoint(partial).problems
        kept = {path: path.stat().st_ino for path in partial.rglob("*") if is_final(path)}
        done: list[int] = []
        taken_up = shutil.copytree(partial, tmp_path / "other.partial")
        job = QuantizationJob.plan(source, tmp_path / "other", ALL)
        job.run(done.append)
        assert sum(done) == total
        assert not taken_up.exists()
        assert contents(tmp_path / "other") == whole
        shutil.rmtree(tmp_path / "other")
    quantize(source, tmp_path / "fp8")
    assert contents(tmp_path / "fp8") == whole
    for path, inode in kept.items():
        assert (tmp_path / "fp8" / path.relative_to(partial)).stat().st_ino == inode


def is_final(path: Path) -> bool:
    """Whether a run writes it once."""
    rewritten = ("quantization.json", "config.json", "fp8_channels.safetensors.index.json")
    own = path.parent.name == "transformer" and path.name in rewritten
    return path.is_file() and not own and path.suffix != ".partial"


def test_links_are_followed(source: Path, tmp_path: Path) -> None:
    """A hub's cache holds links to its blobs."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(source.rglob("*.*"))):
        if file.is_file():
            file.symlink_to(file.rename(blobs / str(number)))
    found = quantize(source, tmp_path / "fp8")
    shutil.rmtree(blobs)
    assert not any(path.is_symlink() for path in found.rglob("*"))
    assert inspect_checkpoint(found).problems == ()
    for name in ("vae", "text_encoder"):
        assert all(file.stat().st_nlink == 1 for file in (found / name).iterdir())


def test_a_finished_destination_is_known_wherever_it_comes_from(
    source: Path, tmp_path: Path
) -> None:
    quantize(source, tmp_path / "fp8")
    shutil.copytree(tmp_path / "fp8", tmp_path / "moved")
    for name in ("fp8", "moved"):
        assert QuantizationJob.plan(source, tmp_path / name, ALL).finished


def edit(file: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(file.read_bytes())
    change(data)
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["vae/config.json", "model_index.json", "tokenizer/big.bin"])
def test_a_component_that_differs_is_not_finished(source: Path, tmp_path: Path, name: str) -> None:
    """Of files above 16 MiB, samples are compared."""
    (source / "tokenizer" / "big.bin").write_bytes(bytes(range(256)) * (1 << 17))
    quantize(source, tmp_path / "fp8")
    changes: list[Callable[[bytearray], object]] = [
        lambda data: data.append(10),
        lambda data: data.__setitem__(slice(0, 1), b" " if data[:1] == b"{" else b"x"),
        lambda data: data.__setitem__(slice(-1, None), b"x"),
    ]
    for change in changes:
        other = shutil.copytree(source, tmp_path / "other")
        edit(other / name, change)
        copy = shutil.copytree(tmp_path / "fp8", tmp_path / "copy")
        shutil.copy(other / name, copy / name)
        refused(source, copy, f"destination: {copy}", "not what this checkpoint")
        shutil.rmtree(other)
        shutil.rmtree(copy)
    (tmp_path / "fp8" / name).unlink()
    refused(source, tmp_path / "fp8", "destination: ")


def test_a_copy_of_what_has_changed_is_made_again(source: Path, tmp_path: Path) -> None:
    total = QuantizationJob.plan(source, tmp_path / "fp8", ALL).source_bytes
    stop_at(source, tmp_path / "fp8", total - 1)
    file = source / "scheduler" / "scheduler_config.json"
    assert (tmp_path / "fp8.partial" / "scheduler" / "scheduler_config.json").exists()
    edit(file, lambda data: data.__setitem__(slice(0, 1), b"{ "))
    quantize(source, tmp_path / "fp8")
    assert (tmp_path / "fp8" / "scheduler" / "scheduler_config.json").read_bytes()[:2] == b"{ "


@pytest.mark.parametrize("name", ["note.txt", "vae/note.txt", "vae.partial"])
def test_other_files_do_not_get_into_the_result(source: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "fp8.partial" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    refused(source, tmp_path / "fp8", "fp8.partial", name, "remove it")
    assert contents(tmp_path) and not (tmp_path / "fp8").exists()
    assert file.read_text() == "mine"


@pytest.mark.parametrize("part", [*COPIED, "text_encoder/config.json", "vae/*.safetensors"])
def test_what_is_not_complete_is_refused(source: Path, tmp_path: Path, part: str) -> None:
    (path,) = source.glob(part)
    path.rename(tmp_path / "elsewhere")
    refused(source, tmp_path / "fp8", str(source), part.partition("/")[0])
    assert not list(tmp_path.glob("fp8*"))
    # a transformer by itself needs nothing else
    quantize(source / "transformer", tmp_path / "fp8")


def test_a_quantized_source_is_refused(source: Path, tmp_path: Path) -> None:
    once = quantize(source, tmp_path / "once")
    for part in (once, once / "transformer", next((once / "transformer").glob("*.index.json"))):
        refused(part, tmp_path / "twice", "source: ", "quantized already")
