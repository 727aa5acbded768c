"""Videos on disk, looked at with PyAV and Pillow themselves."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from wantrn.model.errors import RequestError
from wantrn.model.media import check_output, read_video, to_uint8, write_video

METADATA: dict[str, str | int | float] = {
    "prompt": 'a "red" bäll ⚽\nrolls; a=b \\ #1',
    "seed": 2**63 - 1,
    "shift": 5.0,
}
NAMES = ("clip.mp4", "clip.gif", "clip")


def smooth(frames: int, height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """A moving gradient with a different blue for every frame: [F, H, W, 3]."""
    f, y, x = np.meshgrid(*map(np.arange, (frames, height, width)), indexing="ij")
    red = 128 + 100 * np.sin(x / width * 3 + f / 3 + seed)
    green = 128 + 100 * np.cos(y / height * 3)
    blue = (f * 37 + seed * 11) % 256
    return np.stack([red, green, blue], axis=-1).round().astype(np.uint8)


@settings(max_examples=12, deadline=None)
@given(
    frames=st.integers(1, 12),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    fps=st.integers(1, 50),
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 9),
)
def test_count_size_rate_and_metadata_survive(
    tmp_path_factory: pytest.TempPathFactory,
    frames: int,
    height: int,
    width: int,
    fps: int,
    name: str,
    seed: int,
) -> None:
    original = smooth(frames, 2 * height, 2 * width, seed)
    path = tmp_path_factory.mktemp("video") / name
    assert write_video(path, original, fps, METADATA) == path
    read, rate, metadata = read_video(path)
    assert read.shape == original.shape
    assert read.dtype == np.uint8
    assert rate == fps
    assert metadata == {**METADATA, "fps": fps}
    assert [entry.name for entry in path.parent.iterdir()] == [name]


@pytest.mark.parametrize(("name", "worst"), [("clip.mp4", 14), ("clip.gif", 30), ("clip", 0)])
def test_colours_survive(tmp_path: Path, name: str, worst: int) -> None:
    original = smooth(9, 48, 64)
    write_video(tmp_path / name, torch.from_numpy(original), 8, METADATA)
    difference = np.abs(read_video(tmp_path / name)[0].astype(int) - original)
    assert difference.max() <= worst
    assert difference.mean() <= worst / 5


@pytest.mark.parametrize("name", NAMES)
def test_plain_colours_survive(tmp_path: Path, name: str) -> None:
    """A swapped channel, a wrong colour matrix or a wrong range would show by tens of levels."""
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0), (128, 128, 128)]
    original = np.zeros((len(colours), 32, 32, 3), np.uint8)
    for index, colour in enumerate(colours):
        original[index] = colour
    write_video(tmp_path / name, original, 8, METADATA)
    assert np.abs(read_video(tmp_path / name)[0].astype(int) - original).max() <= 2


def test_mp4_as_others_see_it(tmp_path: Path) -> None:
    path = tmp_path / "clip.MP4"
    write_video(path, smooth(17, 64, 96), 16, METADATA)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        assert len(container.streams) == 1
        assert stream.frames == 17
        assert stream.average_rate == 16
        assert stream.duration is not None
        assert stream.time_base is not None
        assert stream.duration * stream.time_base == pytest.approx(17 / 16)
        assert (context.name, context.pix_fmt) == ("h264", "yuv420p")
        assert (context.width, context.height) == (96, 64)
        assert container.metadata["title"] == METADATA["prompt"]
        assert json.loads(container.metadata["comment"])["seed"] == METADATA["seed"]
    content = path.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat"), "players must not need the whole file"


@pytest.mark.parametrize("fps", [1, 7, 16, 24, 30, 50])
def test_gif_as_others_see_it(tmp_path: Path, fps: int) -> None:
    path = tmp_path / "clip.gif"
    original = smooth(25, 16, 24)
    original[5:9] = original[5]  # equal neighbours are frames of their own
    write_video(path, original, fps, METADATA)
    with Image.open(path) as image:
        assert image.n_frames == 25  # type: ignore[attr-defined]  # of animations only
        assert image.size == (24, 16)
        assert image.info["loop"] == 0
        total = 0
        for index in range(25):
            image.seek(index)
            total += image.info["duration"]
            assert abs(total - (index + 1) * 1000 / fps) <= 5, "milliseconds, without drift"


def test_folder_as_others_see_it(tmp_path: Path) -> None:
    folder = tmp_path / "clip"
    folder.mkdir()  # an empty one may be there
    original = smooth(3, 6, 10)
    write_video(folder, original, 16, METADATA)
    assert sorted(os.listdir(folder)) == ["0000.png", "0001.png", "0002.png", "metadata.json"]
    with Image.open(folder / "0002.png") as image:
        assert np.array_equal(np.asarray(image), original[2])
    assert json.loads((folder / "metadata.json").read_text("utf-8"))["prompt"] == METADATA["prompt"]


def test_a_file_that_is_there_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "clip.gif"
    path.write_text("old")
    write_video(path, smooth(2, 4, 4), 5, METADATA)
    assert read_video(path)[0].shape == (2, 4, 4, 3)


def test_the_same_frames_are_the_same_file_whatever_else_is_encoded(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (5, 64, 64, 3), dtype=np.uint8)

    def digest(place: int) -> str:
        file = write_video(tmp_path / f"{place}.mp4", frames, 16, {})
        return hashlib.sha256(file.read_bytes()).hexdigest()

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(digest, range(80)))) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clip.avi", r"output: .*clip\.avi.*\.mp4 or \.gif.*folder"),
        ("clip.png", r"clip\.png.*without a suffix for a folder of PNG"),
        (".hidden", r"\.hidden.*\.mp4 or \.gif"),
        ("..", "not allowed"),
        ("absent/clip.mp4", "there is no folder .*absent"),
        ("file/clip.mp4", "there is no folder .*file"),
        ("full", r"the folder .*full is not empty"),
        ("file", r"file is a file"),
        ("folder.mp4", r"folder\.mp4 exists and is no file"),
        ("pipe.mp4", r"pipe\.mp4 exists and is no file"),
        ("x" * 300 + ".mp4", "too long"),
    ],
)
def test_a_place_that_cannot_be_written(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    (tmp_path / "folder.mp4").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe.mp4")
    before = sorted(tmp_path.rglob("*"))
    for attempt in (
        lambda: check_output(tmp_path / name),
        lambda: write_video(tmp_path / name, smooth(1, 4, 4), 5, METADATA),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            attempt()
        assert caught.value.field == "output"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "size", "fps", "message"),
    [
        ("a.mp4", (63, 64), 16, "size: 63x64 .* even"),
        ("a.mp4", (64, 63), 16, "size: 64x63 .* even"),
        ("a.gif", (64, 64), 51, "fps: 51 .* 1 to 50"),
        ("a.mp4", (64, 64), 0, "fps: 0"),
        ("a", (64, 64), -1, "fps: -1"),
    ],
)
def test_what_a_format_cannot_hold(
    tmp_path: Path, name: str, size: tuple[int, int], fps: int, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        check_output(tmp_path / name, size, fps)
    with pytest.raises(RequestError, match=message):
        write_video(tmp_path / name, smooth(1, size[1], size[0]), fps, METADATA)
    assert list(tmp_path.iterdir()) == []


def test_odd_sizes_are_fine_elsewhere(tmp_path: Path) -> None:
    for name in ("clip.gif", "clip"):
        check_output(tmp_path / name, (7, 5), 16)
        write_video(tmp_path / name, smooth(2, 5, 7), 16, METADATA)
        assert read_video(tmp_path / name)[0].shape == (2, 5, 7, 3)


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_half_way_leaves_nothing_new(tmp_path: Path, name: str) -> None:
    if name != "clip":
        (tmp_path / name).write_text("older")
    unwritable = {"prompt": "x", "object": object()}
    with pytest.raises(TypeError):
        write_video(tmp_path / name, smooth(2, 4, 4), 5, unwritable)  # type: ignore[arg-type]
    left = {entry.name: entry.read_text() for entry in tmp_path.iterdir()}
    assert left == ({} if name == "clip" else {name: "older"})


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_is_said_and_leaves_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RequestError, match=rf"cannot write .*{name}: No space left"):
        write_video(tmp_path / name, smooth(2, 4, 4), 5, METADATA)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_encoder_is_found_out_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_codec(name: str, mode: str) -> None:
        raise av.codec.codec.UnknownCodecError(name)

    monkeypatch.setattr(av.codec, "Codec", no_codec)
    with pytest.raises(RequestError, match="libx264"):
        check_output(tmp_path / "clip.mp4")


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((2, 4, 4, 3), np.float32),
        np.zeros((2, 4, 4), np.uint8),
        np.zeros((2, 4, 4, 4), np.uint8),
        np.zeros((0, 4, 4, 3), np.uint8),
        torch.zeros(2, 4, 4, 3),
    ],
)
def test_frames_that_are_none(tmp_path: Path, frames: npt.NDArray[np.uint8]) -> None:
    with pytest.raises(ValueError, match=r"uint8 \[F, H, W, 3\], got"):
        write_video(tmp_path / "clip.mp4", frames, 5, METADATA)
    assert list(tmp_path.iterdir()) == []


def test_to_uint8_takes_the_nearest_level() -> None:
    levels = torch.arange(256, dtype=torch.float32)
    assert to_uint8(levels / 255).tolist() == list(range(256))
    assert to_uint8(((levels + 0.49) / 255).clamp(max=1)).tolist() == list(range(256))
    assert to_uint8(torch.rand(2, 3, 4, 3)).shape == (2, 3, 4, 3)


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), float("inf")])
def test_to_uint8_refuses_what_is_outside(value: float) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        to_uint8(torch.tensor([0.5, value]))


@pytest.mark.parametrize("name", NAMES)
def test_other_peoples_videos_are_not_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(RequestError, match="video: "):
        read_video(path)
    if name != "clip":
        path.write_bytes(b"no video at all" * 20)
        with pytest.raises(RequestError, match="video: "):
            read_video(path)
