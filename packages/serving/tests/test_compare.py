"""``wantrn compare`` as a user meets it, on files that were just written."""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from wantrn.model.media import read_frames, write_video
from wantrn.model.quality import compare_videos
from wantrn.serving.cli import main

Frames = npt.NDArray[np.uint8]
NAMES = ("video.mp4", "video.gif", "video")


def clip(seed: int = 0, frames: int = 7, height: int = 32, width: int = 48) -> Frames:
    """A bright square that moves over a ramp, with a little noise of its own."""
    ramp = np.linspace(60, 180, width)[None, None, :, None]
    pixels = np.broadcast_to(ramp, (frames, height, width, 3)).copy()
    for number in range(frames):
        pixels[number, 8:20, 3 * number : 3 * number + 12] = (220, 60, 40)
    pixels += np.random.default_rng(seed).normal(0, 3, pixels.shape)
    return pixels.round().clip(0, 255).astype(np.uint8)


@pytest.fixture(params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """Two videos that differ by noise, in each format."""
    for number in range(2):
        (tmp_path / f"run{number}").mkdir()
        write_video(tmp_path / f"run{number}" / request.param, clip(number), 8, {})
    return tmp_path / "run0" / request.param, tmp_path / "run1" / request.param


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two exact videos, whose frames 2 are equal."""
    a, b = clip(0), clip(1)
    b[2] = a[2]
    return write_video(tmp_path / "a", a, 8, {}), write_video(tmp_path / "b", b, 8, {})


def compare(*arguments: object) -> int:
    return main(["compare", *map(str, arguments)])


def rows(text: str) -> dict[str, str]:
    return {
        name: value.strip()
        for line in text.splitlines()
        if "  " in line
        for name, value in [line.split("  ", maxsplit=1)]
    }


def test_the_table_and_the_object(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(*pair, "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = compare_videos(read_frames(pair[0]), read_frames(pair[1]))
    shown = rows(out)
    assert shown["A"] == f"{pair[0]}: 48x32, 7 frames, flicker {found.flicker_a:.3f}"
    assert shown["B"] == f"{pair[1]}: 48x32, 7 frames, flicker {found.flicker_b:.3f}"
    frame = int(np.argmin(found.psnr_of_frames))
    worst = min(found.psnr_of_frames)
    assert shown["PSNR"] == f"{found.psnr:.2f} dB; worst {worst:.2f} dB, in frame {frame}"
    assert shown["SSIM"].startswith(f"{found.ssim:.5f}; worst {min(found.ssim_of_frames):.5f}, in")
    assert shown["flicker"] == f"{found.flicker:.3f} of 255, of what differs"
    assert shown["largest"].startswith(
        f"{found.largest.levels} of 255, in frame {found.largest.frame}, "
    )
    assert "plot" not in shown and "strip" not in shown
    figures = json.loads(out.splitlines()[-1])
    assert (figures["width"], figures["height"], figures["frames"]) == (48, 32, 7)
    assert figures["psnr"] == found.psnr
    assert figures["ssim_worst"] == min(found.ssim_of_frames)
    assert all(isinstance(value, int | float) for value in figures.values())


def test_formats_may_be_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the same frames lose in a file is far less than what noise makes."""
    for name in NAMES:
        write_video(tmp_path / name, clip(), 8, {})
    write_video(tmp_path / "other", clip(1), 8, {})
    found = {}
    for name in ("video.mp4", "video.gif", "other"):
        assert compare(tmp_path / "video", tmp_path / name, "--json") == 0
        found[name] = json.loads(capsys.readouterr().out.splitlines()[-1])["psnr"]
    assert found["video.mp4"] > 28
    assert found["video.gif"] > found["other"]


def strict(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_equal_videos(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = write_video(tmp_path / "a", clip(), 8, {})
    pictures = ("--plot", tmp_path / "plot.png", "--strip", tmp_path / "strip.png")
    assert compare(video, video, *pictures, "--least-psnr", 100, "--least-ssim", 1, "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    shown = rows(out)
    assert shown["PSNR"] == "infinite: all frames are equal"
    assert shown["SSIM"] == "1"
    assert shown["plot"] == str(tmp_path / "plot.png")
    assert shown["strip"] == str(tmp_path / "strip.png")
    figures = json.loads(out.splitlines()[-1], parse_constant=strict)
    assert figures["psnr"] is None
    assert (figures["ssim"], figures["flicker"], figures["largest"]) == (1, 0, 0)


@pytest.mark.parametrize("size", [(11, 11), (12, 40)])
def test_the_smallest_videos(
    tmp_path: Path, size: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        frames = clip(number, 1, *size)
        write_video(tmp_path / str(number), frames, 8, {})
    pictures = ("--plot", tmp_path / "plot.png", "--strip", tmp_path / "strip.png")
    assert compare(tmp_path / "0", tmp_path / "1", *pictures) == 0
    assert f"{size[1]}x{size[0]}, 1 frame, flicker 0.000" in capsys.readouterr().out


def test_bars(folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = compare_videos(read_frames(folders[0]), read_frames(folders[1]))
    met = ("--least-psnr", found.psnr - 0.01, "--least-ssim", found.ssim - 1e-4)
    assert compare(*folders, *met) == 0
    assert capsys.readouterr().err == ""

    assert compare(*folders, "--least-psnr", 60, "--json") == 1
    out, err = capsys.readouterr()
    assert err == f"wantrn compare: PSNR is {found.psnr:.7g}, below --least-psnr 60\n"
    assert json.loads(out.splitlines()[-1])["psnr"] == found.psnr, (
        "figures are printed all the same"
    )

    assert compare(*folders, "--least-psnr", 1, "--least-ssim", found.ssim + 1e-4) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("wantrn compare: SSIM is 0.")

    assert compare(*folders, "--least-psnr", 60, "--least-ssim", 1) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "PSNR is" in line and "; SSIM is" in line and line.endswith("below --least-ssim 1")


def box(picture: Frames, colour: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of all pixels of a colour, which must fill the box."""
    places = np.argwhere((picture == colour).all(axis=2))
    assert len(places), colour
    (top, left), (bottom, right) = places.min(0), places.max(0) + 1
    assert len(places) == (bottom - top) * (right - left), colour
    return int(left), int(top), int(right), int(bottom)


def test_the_strip_has_the_frames_of_both_above_what_differs(tmp_path: Path) -> None:
    """Each frame has a colour of its own, by which it is found in the picture."""
    a = np.zeros((11, 20, 30, 3), np.uint8)
    a[..., 0] = 200
    a[..., 1] = 20 * np.arange(11)[:, None, None]
    b = a.copy()
    b[..., 2] = 30
    write_video(tmp_path / "a", a, 8, {})
    write_video(tmp_path / "b", b, 8, {})
    assert compare(tmp_path / "a", tmp_path / "b", "--strip", tmp_path / "strip.png") == 0
    with Image.open(tmp_path / "strip.png") as image:
        assert image.format == "PNG"
        picture = np.asarray(image.convert("RGB"))
    chosen = [0, 2, 4, 6, 8, 10]
    above, below = ([box(picture, (200, 20 * t, blue)) for t in chosen] for blue in (0, 30))
    differing = np.argwhere((picture == (0, 0, 240)).all(axis=2))  # 30, and 8 times that
    assert len(differing) == len(chosen) * 150 * 100
    for boxes in (above, below):
        assert {right - left for left, _, right, _ in boxes} == {150}, "5 pixels for each"
        assert {bottom - top for _, top, _, bottom in boxes} == {100}
        assert len({top for _, top, _, _ in boxes}) == 1
        assert [left for left, *_ in boxes] == sorted(left for left, *_ in boxes)
    assert [one[0] for one in above] == [one[0] for one in below]
    assert above[0][3] <= below[0][1] < below[0][3] <= differing[:, 0].min()
    assert set(above[0][:1]) | {above[-1][2]} == {differing[:, 1].min(), differing[:, 1].max() + 1}


def test_large_videos_are_drawn_smaller(tmp_path: Path) -> None:
    for number in range(2):
        write_video(tmp_path / str(number), clip(number, 2, 40, 1000), 8, {})
    assert compare(tmp_path / "0", tmp_path / "1", "--strip", tmp_path / "strip.png") == 0
    with Image.open(tmp_path / "strip.png") as image:
        assert image.width < 1000


def test_the_plot_is_a_picture_of_the_figures(folders: tuple[Path, Path], tmp_path: Path) -> None:
    from wantrn.serving.compare_plot import figure_of

    assert compare(*folders, "--plot", tmp_path / "plot.png") == 0
    with Image.open(tmp_path / "plot.png") as image:
        assert image.format == "PNG"
        assert image.width > 1000
        assert len(np.unique(np.asarray(image.convert("L")))) > 20

    found = compare_videos(read_frames(folders[0]), read_frames(folders[1]))
    figure: Any = figure_of(("first.mp4", "x" * 100 + "end.mp4"), found)
    title = figure.get_suptitle()
    assert title.startswith("first.mp4 and xxx")
    assert title.endswith("xend.mp4")
    above, below = figure.axes
    drawn = above.lines[0].get_ydata()
    assert math.isnan(drawn[2]), "an infinite one has no place"
    assert [drawn[t] for t in (0, 1, 3)] == [found.psnr_of_frames[t] for t in (0, 1, 3)]
    (equal,) = [line for line in above.lines if line.get_marker() == "^"]
    assert list(equal.get_xdata()) == [2]
    assert list(below.lines[0].get_ydata()) == list(found.ssim_of_frames)
    assert f"{found.psnr:.2f} dB" in above.get_title(loc="right")
    assert f"{found.ssim:.5f}" in below.get_title(loc="right")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (clip(0, 7, 32, 64), ["64x32", "48x32", "one size"]),
        (clip(0, 9), ["9 frames", "has 7", "one length"]),
    ],
)
def test_videos_that_have_no_frames_to_compare(
    tmp_path: Path, other: Frames, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    a = write_video(tmp_path / "a.mp4", clip(), 8, {})
    b = write_video(tmp_path / "b.gif", other, 8, {})
    assert compare(a, b, "--strip", tmp_path / "strip.png") == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"wantrn compare: error: B: {b} ")
    assert all(word in line for word in [*words, f"A, {a}"]), line
    assert not (tmp_path / "strip.png").exists()


def test_what_cannot_be_compared_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_video(tmp_path / "good", clip(), 8, {})
    small = write_video(tmp_path / "small", clip(0, 2, 10, 16), 8, {})
    text = tmp_path / "text.mp4"
    text.write_text("no video at all")

    def refused(a: Path, b: Path, *words: str) -> None:
        assert compare(a, b) == 2
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        assert line.startswith("wantrn compare: error: ")
        assert all(word in line for word in words), line

    refused(good, tmp_path / "absent.mp4", "video: ", "absent.mp4 does not exist")
    refused(text, good, "video: ", "text.mp4 cannot be read")
    refused(good, tmp_path, "video: ", str(tmp_path), "no .png files")
    refused(small, small, "A: ", "16x10", "11x11")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plot", "plot.jpg"], ["--plot: ", "plot.jpg", ".png"]),
        (["--strip", "strip"], ["--strip: ", "strip", ".png"]),
        (["--strip", "absent/strip.png"], ["--strip: ", "there is no folder absent"]),
        (["--plot", "one.png", "--strip", "one.png"], ["--strip: one.png", "--plot"]),
        (["--plot", "folder.png"], ["--plot: folder.png exists and is no file"]),
    ],
)
def test_pictures_that_cannot_be_written(
    folders: tuple[Path, Path],
    tmp_path: Path,
    arguments: list[str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "folder.png").mkdir()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert compare(*folders, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"wantrn compare: error: {words[0]}")
    assert all(word in line for word in words), line
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_is_said_and_leaves_the_old_picture(
    folders: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "strip.png").write_text("older")
    monkeypatch.setattr(os, "replace", full)
    assert compare(*folders, "--strip", tmp_path / "strip.png") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--strip: cannot write" in err and "No space left" in err
    assert (tmp_path / "strip.png").read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "strip.png"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["A"], ["required: B"]),
        (["A", "B", "--least-psnr", "good"], ["--least-psnr", "'good'", "0 to 1000"]),
        (["A", "B", "--least-psnr", "-1"], ["--least-psnr"]),
        (["A", "B", "--least-psnr", "nan"], ["--least-psnr", "'nan'"]),
        (["A", "B", "--least-ssim", "1.5"], ["--least-ssim", "'1.5'", "-1 to 1"]),
        (["A", "B", "--fast"], ["--fast"]),
        (["A", "B", "C"], ["C"]),
    ],
)
def test_bad_arguments_are_named(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["compare", *arguments])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("wantrn compare: error: ")
    assert all(word in line for word in words)


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A process of its own, with this one's modules."""
    return subprocess.run(
        [sys.executable, "-c", program, "compare", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


COMMAND = "import sys; from wantrn.serving.cli import main; sys.exit(main())"


def test_as_a_process(folders: tuple[Path, Path], tmp_path: Path) -> None:
    strip = tmp_path / "strip.png"
    found = run(COMMAND, *folders, "--strip", strip, "--least-ssim", 0.999, "--json")
    assert found.returncode == 1
    (line,) = found.stderr.splitlines()
    assert line.startswith("wantrn compare: SSIM is 0.")
    assert json.loads(found.stdout.splitlines()[-1])["frames"] == 7
    assert strip.stat().st_size > 1000
    assert not strip.stat().st_mode & stat.S_IXUSR


def test_without_matplotlib_all_but_the_plot_works(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    without = f"import sys; sys.modules['matplotlib'] = None; {COMMAND}"
    pictures = ("--plot", tmp_path / "plot.png", "--strip", tmp_path / "strip.png")
    refused = run(without, *folders, *pictures)
    assert refused.returncode == 2
    assert refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert line.startswith("wantrn compare: error: --plot: needs matplotlib")
    assert "wantrn-serving[plot]" in line
    assert not (tmp_path / "strip.png").exists()
    drawn = run(without, *folders, *pictures[2:])
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "strip.png").exists()


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from wantrn.serving.cli import main\n"
        "try:\n"
        "    main(['compare', '--help'])\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'torch', 'numpy', 'PIL', 'matplotlib', 'av'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    found = run(program)
    assert found.returncode == 0, found.stderr
    assert "--least-psnr" in found.stdout
