"""``wantrn generate`` within this process: what it makes, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from PIL import Image

from wantrn.model.denoising import DenoisingError
from wantrn.model.info import ModelKind
from wantrn.model.media import png_folder, read_video, video
from wantrn.model.pipeline import WanPipeline
from wantrn.model.step_cache import DEFAULT_THRESHOLD
from wantrn.model.tiny import write_tiny_checkpoint
from wantrn.serving.cli import main

SHORT = ["--size", "32x32", "--frames", "1", "--steps", "2"]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """With a prompt, and with a model whose weights are random."""
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("text"), ModelKind.T2V)
    return ["generate", "x", "--model", str(model)]


@pytest.fixture(scope="module")
def image_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The same with one that needs a first frame."""
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("image"), ModelKind.I2V)
    return ["generate", "x", "--model", str(model)]


@pytest.fixture(scope="module")
def plain(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The video of seed 7."""
    folder = tmp_path_factory.mktemp("plain") / "video"
    assert main([*command, *SHORT, "--seed", "7", "--output", str(folder)]) == 0
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder of its own for every test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("image", [None, "first.png"])
def test_without_a_model_it_is_the_one_that_knows_shapes(
    place: Path, capsys: pytest.CaptureFixture[str], image: str | None
) -> None:
    """Whether it is given a first frame, which is white here, or a prompt alone."""
    Image.new("RGB", (40, 40), "white").save(place / "first.png")
    given = [] if image is None else ["--image", image]
    arguments = [*given, "--steps", "2", "--seed", "7", "--output", "moving"]
    assert main(["generate", "a red ball rolls to the right on a black ground", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.out == "moving\n"
    assert captured.err.count("a tiny one, which knows coloured shapes that move") == 1
    shown = dict(line.split(maxsplit=1) for line in captured.err.splitlines() if "  " in line)
    assert (shown["size"], shown["frames"], shown["fps"]) == ("64x64", "13", "8")
    frames, fps, metadata = read_video(place / "moving")
    assert (frames.shape, fps) == ((13, 64, 64, 3), 8)
    assert metadata.get("image") == (None if image is None else "40x40")
    assert (frames[0].mean() > 160) == (image is not None)


def test_the_same_seed_makes_the_same_video(command: list[str], place: Path) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        assert main([*command, *SHORT, "--seed", seed, "--output", name]) == 0
    a, b, c = (read_video(place / name)[0] for name in "abc")
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_kernels_make_the_video_that_torch_makes(
    command: list[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16 both round, at other places: the same picture, and other bits of it."""
    base = [*command, *SHORT, "--seed", "7", "--dtype", "bfloat16", "--output"]
    for backend in ("torch", "sim"):
        monkeypatch.setenv("WANTRN_BACKEND", backend)
        assert main([*base, backend]) == 0
    by_torch, by_kernels = (read_video(place / name)[0].astype(float) for name in ("torch", "sim"))
    error = np.square(by_torch - by_kernels).mean()
    assert 0 < error < by_torch.var()
    assert 10 * np.log10(255**2 / error) > 35


@pytest.mark.parametrize(
    "changes",
    [
        ["--negative-prompt", "grey"],
        ["--guidance", "7"],
        ["--guidance-2", "7"],
        ["--shift", "8"],
        ["--scheduler", "euler"],
        ["--steps", "3"],
        ["--dtype", "bfloat16"],
    ],
    ids=lambda changes: changes[0],
)
def test_every_option_reaches_the_picture(
    command: list[str], plain: Path, place: Path, changes: list[str]
) -> None:
    assert main([*command, *SHORT, "--seed", "7", "--output", "changed", *changes]) == 0
    unchanged, _, before = read_video(plain)
    changed, _, after = read_video(place / "changed")
    assert not np.array_equal(unchanged, changed)
    name = changes[0].removeprefix("--").replace("-", "_")
    assert str(after[name]) in (changes[1], f"{changes[1]}.0")
    assert {key for key in after if before.get(key) != after[key]} == {name}


def test_steps_that_were_reused_are_told(
    command: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--size", "32x32", "--frames", "1", "--seed", "7"]
    # many steps, all of the high-noise expert but the last two, at little distance
    many = ["--steps", "12", "--shift", "60"]
    made = {}
    for name, options in (
        ("off", []),
        ("cautious", ["--step-cache"]),
        ("keen", ["--step-cache", "1"]),
    ):
        assert main([*command, *small, *many, *options, "--output", name]) == 0
        frames, _, metadata = read_video(place / name)
        made[name] = frames, metadata, capsys.readouterr().err
    assert "step_cache" not in made["off"][1] and "step cache" not in made["off"][2]
    assert made["cautious"][1]["step_cache"] == DEFAULT_THRESHOLD
    assert made["cautious"][1]["steps_reused"] == 0
    assert np.array_equal(made["cautious"][0], made["off"][0])
    frames, metadata, said = made["keen"]
    assert metadata["step_cache"] == 1 and metadata["steps_reused"] > 0
    assert not np.array_equal(frames, made["off"][0])
    told = re.search(r"^step cache: (\d+) of (\d+) steps of transformer reused, (.*)$", said, re.M)
    assert told is not None, said
    assert int(told[1]) == metadata["steps_reused"]
    # weights are random: what a step computes says little of the next
    assert "above 0.5, so no more were" in told[3]
    assert "; 0 of " in told[3] and told[3].endswith("steps of transformer_2 reused")


def test_a_video_begins_with_a_first_frame(
    image_command: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (40, 40), "red").save(place / "first.png")
    arguments = ["--image", "first.png", "--frames", "5", "--steps", "2"]
    arguments += ["--size", "32x32", "--output", "moving.gif"]
    assert main([*image_command, *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.out == "moving.gif\n"
    frames, _, metadata = read_video(place / "moving.gif")
    assert frames.shape == (5, 32, 32, 3)
    assert metadata["image"] == "40x40"
    assert "(i2v)" in metadata["model"]


def test_a_seed_that_was_drawn_is_told_and_makes_the_video_again(
    command: list[str], place: Path
) -> None:
    assert main([*command, *SHORT, "--output", "first"]) == 0
    frames, _, metadata = read_video(place / "first")
    again = [*command, *SHORT, "--seed", str(metadata["seed"]), "--output", "second"]
    assert main(again) == 0
    assert np.array_equal(read_video(place / "second")[0], frames)


def test_a_model_of_one_expert(place: Path) -> None:
    folder = write_tiny_checkpoint(place / "model", ModelKind.TI2V)
    arguments = ["generate", "x", "--model", str(folder), "--frames", "5", "--steps", "2"]
    assert main([*arguments, "--size", "64x64", "--output", "x"]) == 0
    assert "guidance_2" not in read_video(place / "x")[2]


BAD: list[tuple[list[str], str]] = [
    (["--size", "100x70"], "--size: 100x70 .* 96x64 and 112x80"),
    (["--size", "0x64"], "--size: 0x64 .* 16x64"),
    (["--frames", "10"], "--frames: 10 .* 9 and 13"),
    (["--frames", "0"], "--frames: 0 .* 1 and 5"),
    (["--device", "neuron"], "--device: got neuron, but .* torch-neuronx, .*pip install"),
    (["--steps", "0"], "--steps: 0 .* 1 and 2"),
    (["--steps", "-5"], "--steps: -5 .* 1 and 2"),
    (["--fps", "0"], "--fps: 0 .* 1 and 2"),
    (["--fps", "60", "--output", "x.gif"], "--fps: 60 .* 1 to 50"),
    (["--seed", "-1"], "--seed: -1 .* 0 and 1"),
    (["--guidance", "nan"], "--guidance: .* got nan"),
    (["--guidance-2", "0"], "--guidance-2: .* got 0.0"),
    (["--shift", "0"], "--shift: .* got 0.0"),
    (["--step-cache", "0"], "--step-cache: .* got 0.0"),
    (["--image", "absent.png"], "--image: absent.png does not exist"),
    (["--image", "text.png"], "--image: text.png is not a picture"),
    (["--output", "x.avi"], r"--output: 'x\.avi' .*\.mp4 or \.gif"),
    (["--output", "absent/x.mp4"], "--output: .* no folder absent"),
    (["--output", "."], "--output: '.' is not allowed"),
    (["--model", "absent"], "--model: there is no folder absent"),
    (["--model", "."], r"model_index\.json: file not found"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda value: " ".join(value[:2]))
def test_a_wrong_request_is_refused_in_one_line_before_weights_are_read(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    def load(*_: Any) -> NoReturn:
        raise AssertionError("weights are read")

    monkeypatch.setattr(WanPipeline, "load", load)
    (place / "text.png").write_text("no picture")
    assert main(["generate", "x", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("wantrn")]
    assert len(lines) == 1
    assert_matches(lines[0], "wantrn generate: error: ", message)
    assert "Traceback" not in captured.err
    assert [entry.name for entry in place.iterdir()] == ["text.png"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "wantrn: error: .*COMMAND"),
        (["make"], "wantrn: error: .*'make'.*'generate'"),
        (["generate"], "wantrn generate: error: .*PROMPT"),
        (["generate", "x", "--scheduler", "ddim"], "'ddim'.*'unipc', 'euler'"),
        (["generate", "x", "--dtype", "float16"], "'float16'.*'float32', 'bfloat16'"),
        (["generate", "x", "--size", "large"], "--size: 'large' .* 832x480"),
        (["generate", "x", "--size", "-4x5"], "generate: error: argument --size"),
        (["generate", "x", "--steps", "two"], "--steps: .*'two'"),
        (["generate", "x", "--threads", "0"], "--threads: '0' .* 1 to"),
        (["generate", "x", "--guid", "2"], "wantrn generate: error: .*--guid 2"),
        (["generate", "x", "y"], "wantrn generate: error: .* y"),
        (["generate", "\udcff"], "generate: error: .*UTF-8"),
        (["inspect"], "wantrn inspect: error: .*DIR"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert_matches(line, "wantrn", message)


def test_the_model_and_the_image_must_go_together(
    command: list[str],
    image_command: list[str],
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Image.new("RGB", (32, 32)).save(place / "first.png")
    assert main([*command, "--image", "first.png"]) == 2
    assert "takes no image" in capsys.readouterr().err
    assert main(image_command) == 2
    assert "none was given" in capsys.readouterr().err


def test_a_run_that_fails_says_so(
    command: list[str],
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step(*_: Any) -> NoReturn:
        raise DenoisingError("latents are not finite after step 1 of 2")

    monkeypatch.setattr(WanPipeline, "step", step)
    assert main([*command, *SHORT]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "wantrn generate: failed: latents are not finite" in captured.err
    assert list(place.iterdir()) == []


def test_a_bug_keeps_its_traceback(
    command: list[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(*_: Any) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr(WanPipeline, "decode", decode)
    with pytest.raises(ZeroDivisionError):
        main([*command, *SHORT])
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_while_writing_leaves_nothing(
    command: list[str], place: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: int
) -> None:
    whole: Callable[..., None] = png_folder.write_png_folder

    def interrupted(*arguments: Any) -> None:
        whole(*arguments)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(video, "write_png_folder", interrupted)
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    assert main([*command, *SHORT, "--output", "frames"]) == status
    monkeypatch.undo()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert list(place.iterdir()) == []


def assert_matches(line: str, start: str, message: str) -> None:
    assert line.startswith(start)
    assert re.search(message, line), line
