"""The command as it is run: captures of a tiny model, and what is said of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import capture_picture
import matplotlib.image
import numpy as np
import pytest
from capture_rows import module_rows
from capture_steps import main
from matplotlib.patches import Rectangle
from PIL import Image
from safetensors.torch import load_file, save_file

from wantrn.model.capture import (
    Branch,
    Capture,
    Comparison,
    Description,
    Error,
    Limits,
    Measurement,
    Point,
    StepFacts,
    TrendRules,
    compare,
    judge,
)
from wantrn.model.info import ModelKind
from wantrn.model.tiny import write_tiny_checkpoint
from wantrn.serving.modules import MODULES
from wantrn.tiny import CHECKPOINT

SMALL = ("--size", "64x64", "--frames", "5", "--steps", "3", "--seed", "1")
MODULES_OF_A_BLOCK = ("self_attention", "cross_attention", "feed_forward")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a tiny model and captures of it: ``fp32``, and ``bf16`` of the same inputs."""
    root = tmp_path_factory.mktemp("captures")
    write_tiny_checkpoint(root / "model", ModelKind.T2V)
    record(root, "fp32", "--dtype", "float32", *SMALL)
    record(root, "bf16", "--dtype", "bfloat16", "--inputs-of", str(root / "fp32"))
    return root


def record(root: Path, name: str, *arguments: str, model: str = "model") -> Capture:
    assert main(["record", str(root / name), "--model", str(root / model), *arguments]) == 0
    return Capture.open(root / name)


def compared(folder: Path, *arguments: str) -> int:
    """Of captures in ``folder``, by name."""
    paths = [str(folder / one) if (folder / one).exists() else one for one in arguments]
    return main(["compare", *paths])


@pytest.fixture(scope="module")
def broken(folder: Path) -> str:
    """A capture of a model with a layer of the low-noise expert five percent off."""
    write_tiny_checkpoint(folder / "broken-model", ModelKind.T2V)
    (weights,) = (folder / "broken-model" / "transformer_2").glob("*.safetensors")
    tensors = load_file(weights)
    tensors["blocks.1.attn1.to_out.0.weight"] *= 1.05
    save_file(tensors, weights)
    arguments = ("--dtype", "bfloat16", "--inputs-of", str(folder / "fp32"))
    record(folder, "broken", *arguments, model="broken-model")
    return "broken"


def test_kernels_pass(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--inputs-of", str(folder / "fp32"), "--dtype", "bfloat16", "--backend", "sim")
    record(folder, "sim", *arguments)
    said = capsys.readouterr()
    assert said.out == f"{folder / 'sim'}\n"
    assert f"inputs          those of {folder / 'fp32'}" in said.err
    assert "computation     bfloat16, sim" in said.err
    assert "modules         10, of 3 of 3 steps" in said.err
    assert "MB, at most" in said.err
    picture = tmp_path / "sim.png"
    limits = ("--same-trends", "--picture", str(picture), "--json")
    assert compared(folder, "fp32", "sim", "--reference", "bf16", *limits) == 0
    *lines, verdict, last = capsys.readouterr().out.splitlines()
    assert verdict == "PASS"
    figures = json.loads(last)
    found = compare(*(Capture.open(folder / name) for name in ("fp32", "sim", "bf16")))
    attention = [one for one in found.measurements if one.point.module == "blocks.0.self_attention"]
    worst = max(one.rms_ratio for one in attention if one.rms_ratio is not None)
    assert figures["blocks.0.self_attention.rms_ratio"] == worst != 1
    assert (figures["passed"], figures["failures"], figures["trends"]) == (1, 0, 0)
    (shown,) = [line for line in lines if line.startswith("blocks.0.self_attention ")]
    assert shown.split()[3] == f"{worst:.2f}"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_is_broken_is_named(
    folder: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared(folder, "fp32", broken, "--reference", "bf16", "--json") == 1
    *_, first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("first: step 1, blocks.1.self_attention@prompt: largest error ")
    figures = json.loads(last)
    assert (figures["passed"], figures["failures"], figures["first_step"]) == (0, 4, 1)


def test_other_limits(folder: Path, broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    reference = ("fp32", broken, "--reference", "bf16")
    assert compared(folder, *reference, "--largest-ratio", "100", "--overlap", "0.1") == 0
    assert compared(folder, *reference, "--largest-ratio", "100") == 1
    assert compared(folder, *reference, "--overlap", "0.1") == 1
    assert compared(folder, "fp32", broken, "--relative", "0.06") == 0
    assert compared(folder, "fp32", broken, "--relative", "0.04") == 1
    assert "first: step 1, blocks.1.self_attention@prompt: relative error 0.05" in (
        capsys.readouterr().out
    )


def test_ranks_and_the_settings_of_another(folder: Path) -> None:
    """On two ranks, in processes of their own, each run with its own inputs."""
    arguments = ["--like", folder / "fp32", "--dtype", "float32", "--tp", "2"]
    model = ["--model", folder / "model"]
    words = ["-m", "capture_steps", "record", folder / "tp", *model, *arguments]
    command = [sys.executable, *map(str, words)]
    environment = {"PYTHONPATH": MODULES, "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{folder / 'tp'}\n"
    described = Capture.open(folder / "tp").description
    assert described.computation["ranks"] == "tp 2"
    assert described.settings == Capture.open(folder / "fp32").description.settings
    assert compared(folder, "fp32", "tp", "--relative", "1e-5") == 0


def test_what_is_captured(folder: Path) -> None:
    every = record(folder, "every", "--modules", "blocks.1", "latents", "--every", "2", *SMALL)
    described = every.description
    assert [step.index for step in described.steps] == [0, 2]
    assert described.modules == ("blocks.1", "latents")
    arguments = ("--inputs-of", str(folder / "every"), "--at", "2", "--every-token", "3")
    some = record(folder, "some", *arguments, "--dtype", "bfloat16").description
    assert [step.index for step in some.steps] == [2]
    assert (some.modules, some.every_token) == (described.modules, 3)
    assert some.inputs_of == described.id
    assert some.settings == described.settings
    tensors = load_file(folder / "some" / "step-0002.safetensors")
    assert tensors["blocks.1@prompt"].shape == (1, 11, 256)


def test_without_a_model_it_is_the_tiny_one(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    arguments = ["record", str(tmp_path / "c"), "--image", str(tmp_path / "red.png"), *SMALL]
    assert main([*arguments, "--at", "0"]) == 0
    described = Capture.open(tmp_path / "c").description
    assert described.settings["prompt"] == "a red ball rolls to the right"
    assert "sha256:" in str(described.settings["image"])
    assert described.model == CHECKPOINT.name


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--modules", "blocks.9"], "modules: 'blocks.9' matches none of"),
        (["--at", "3"], "steps must be 0 to 2, got 3"),
        (["--tile-vae"], "--tile-vae: must not be given: nothing is decoded"),
        (["--tp", "3"], "--tp: must divide the 2 heads"),
        (["--size", "65x64"], "--size: 65x64 cannot be made"),
        (["--step-cache", "0.1"], "step_cache must be off"),
        (["--like", "fp32"], "fp32/capture.json: file not found"),
    ],
)
def test_what_cannot_be_recorded_is_named(
    folder: Path,
    tmp_path: Path,
    arguments: Sequence[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["record", str(tmp_path / "c"), "--model", str(folder / "model")]
    assert main([*command, *SMALL, *arguments]) == 2
    assert text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["fp32", "bf16"], "--relative: must be given without --reference"),
        (["fp32", "bf16", "--overlap", "0.5"], "--overlap: needs --reference"),
        (["fp32", "bf16", "--relative", "-1"], "--relative: must be a number above 0, got -1"),
        (["fp32", "none", "--relative", "1"], "none/capture.json: file not found"),
        (["bf16", "fp32", "--relative", "1"], "has itself taken the inputs of another"),
        (["fp32", "bf16", "--relative", "1", "--picture", "x.jpg"], "--picture: x.jpg must end"),
    ],
)
def test_what_cannot_be_compared_is_named(
    folder: Path, arguments: Sequence[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compared(folder, *arguments) == 2
    assert text in capsys.readouterr().err


# Tables and pictures


def comparison(layers: int, steps: int, wrong: tuple[str, int], reference: bool) -> Comparison:
    """Of errors of one percent, but for a module from a step on, whose error is ten times that."""
    modules = tuple(
        f"blocks.{index}{part}"
        for index in range(layers)
        for part in (*(f".{one}" for one in MODULES_OF_A_BLOCK), "")
    )
    all_steps = tuple(StepFacts(i, 1000.0 - i, int(i >= steps // 2)) for i in range(steps))
    known = Error(0.05, 0.01, 0.01)
    measurements = []
    for step in all_steps:
        for module in (*modules, "velocity", "latents"):
            bad = module == wrong[0] and step.index >= wrong[1]
            error = Error(0.5, 0.1, 0.1) if bad else known
            point = Point(module, Branch.BOTH)
            beside = (known, 0.5 if bad else 1.0) if reference else (None, None)
            measurements.append(Measurement(step, point, error, *beside))
    names = (*modules, "velocity", "latents")
    exact, target, other = (
        Description("1", inputs, "model", {}, {"dtype": dtype}, names, 1, all_steps)
        for inputs, dtype in ((None, "float32"), ("1", "fp8"), ("1", "bfloat16"))
    )
    return Comparison(exact, target, other if reference else None, tuple(measurements))


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize(("layers", "steps"), [(1, 1), (2, 8), (40, 50)])
def test_a_picture(tmp_path: Path, layers: int, steps: int, reference: bool) -> None:
    found = comparison(layers, steps, ("blocks.0.cross_attention", steps // 2), reference)
    limits = Limits(relative=None if reference else 0.05)
    capture_picture.draw(tmp_path / "p.png", found, judge(found, limits), limits)
    picture = matplotlib.image.imread(tmp_path / "p.png")
    height, width, _ = picture.shape
    assert width == 1560 and height < 5000
    assert list(tmp_path.iterdir()) == [tmp_path / "p.png"]


def test_the_map_shows_what_is_wrong() -> None:
    found = comparison(2, 8, ("blocks.1.feed_forward", 3), reference=True)
    verdict = judge(found)
    figure = capture_picture.figure_of(found, verdict, Limits())
    grid = np.asarray(figure.axes[0].images[0].get_array())
    row = found.exact.modules.index("blocks.1.feed_forward")
    wanted = np.ones((10, 8))
    wanted[row, 3:] = 10
    assert np.allclose(grid, wanted)
    drawn = [xy for line in figure.axes[0].lines for xy in np.asarray(line.get_xydata()).tolist()]
    assert all([step, row] in drawn for step in range(3, 8))
    (frame,) = figure.axes[0].patches
    assert isinstance(frame, Rectangle) and frame.get_xy() == (2.5, row - 0.5)
    words = [text.get_text() for text in figure.texts]
    assert "first blocks.1.feed_forward@both in step 3 (frame)" in words[1]
    rows = {one.module: one for one in module_rows(found, TrendRules())}
    bad = rows.pop("blocks.1.feed_forward")
    assert bad.trend == "spike (both, expert 0)"  # the last of its four steps
    assert (bad.step, bad.rms_ratio, bad.largest_ratio, bad.overlap) == (3, 10, 10, 0.5)
    assert {one.trend for one in rows.values()} == {"stable"}


def test_infinite_errors_have_a_colour() -> None:
    found = comparison(1, 4, ("velocity", 9), reference=True)
    infinite, none = Error(np.inf, np.inf, np.inf), Error(0, 0, 0)
    first, second, *others = found.measurements
    odd = (
        Measurement(first.step, first.point, infinite, first.reference, 0.0),
        Measurement(second.step, second.point, none, second.reference, 0.0),
    )
    found = Comparison(found.exact, found.target, found.reference, (*odd, *others))
    figure = capture_picture.figure_of(found, judge(found), Limits())
    (image,) = figure.axes[0].images
    grid = np.asarray(image.get_array())
    assert (grid[0, 0], grid[1, 0]) == (image.norm.vmax, image.norm.vmin)
