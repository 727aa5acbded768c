"""Frames of files that other programs wrote: as PyAV and Pillow write them by themselves."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest
from av.video.reformatter import ColorRange, Colorspace
from PIL import Image

from wantrn.model.errors import RequestError
from wantrn.model.media import read_frames, read_video, write_video

COLOURS = [(200, 40, 40), (40, 180, 60), (50, 60, 220), (240, 240, 240), (20, 20, 20)]


def clip() -> npt.NDArray[np.uint8]:
    """One colour a frame."""
    frames = np.zeros((len(COLOURS), 32, 48, 3), np.uint8)
    frames[:] = np.array(COLOURS, np.uint8)[:, None, None]
    return frames


def write_plain(path: Path, frames: npt.NDArray[np.uint8], *, bt709: bool) -> None:
    """With no metadata, and by default with nothing said of colours, as most programs do."""
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=16, options={"crf": "5"})
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        if bt709:
            stream.codec_context.colorspace = Colorspace.ITU709
            stream.codec_context.color_range = ColorRange.MPEG
        for pixels in frames:
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if bt709:
                frame = frame.reformat(
                    format="yuv420p",
                    dst_colorspace=Colorspace.ITU709,
                    dst_color_range=ColorRange.MPEG,
                )
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def farthest(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> int:
    assert one.shape == other.shape
    return int(np.abs(one.astype(int) - other).max())


@pytest.mark.parametrize("bt709", [False, True])
def test_an_mp4_without_our_metadata(tmp_path: Path, bt709: bool) -> None:
    """A wrong colour matrix would show by tens of levels."""
    write_plain(tmp_path / "plain.MP4", clip(), bt709=bt709)
    assert farthest(read_frames(tmp_path / "plain.MP4"), clip()) <= 4
    with pytest.raises(RequestError, match="not a video written by wantrn"):
        read_video(tmp_path / "plain.MP4")


def test_a_gif_without_our_metadata(tmp_path: Path) -> None:
    pictures = [Image.fromarray(pixels) for pixels in clip()]
    path = tmp_path / "plain.gif"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=60)
    assert farthest(read_frames(path), clip()) <= 4


@pytest.mark.parametrize("pattern", ["{}.png", "frame_{}.png", "frame{:03d}.png", "run2-{}-x.png"])
def test_a_folder_in_the_order_of_its_numbers(tmp_path: Path, pattern: str) -> None:
    for number in range(12):
        pixels = np.full((4, 6, 3), 20 * number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / pattern.format(number))
    (tmp_path / "notes.txt").write_text("not a frame")
    found = read_frames(tmp_path)
    assert found[:, 0, 0, 0].tolist() == [20 * number for number in range(12)]
    assert found.shape == (12, 4, 6, 3)


@pytest.mark.parametrize("name", ["clip.mp4", "clip.gif", "clip"])
def test_our_own_are_read_as_before(tmp_path: Path, name: str) -> None:
    write_video(tmp_path / name, clip(), 16, {"prompt": "x"})
    assert np.array_equal(read_frames(tmp_path / name), read_video(tmp_path / name)[0])


def test_sounds_and_pictures_are_no_video(tmp_path: Path) -> None:
    sound = tmp_path / "sound.mp4"
    with av.open(str(sound), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=16000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        silence.sample_rate = 16000
        container.mux(stream.encode(silence))
        container.mux(stream.encode(None))
    with pytest.raises(RequestError, match=r"sound\.mp4 cannot be read: it has no video stream"):
        read_frames(sound)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.mp4", r"absent\.mp4 does not exist"),
        ("absent", "absent does not exist"),
        ("text.mp4", r"text\.mp4 cannot be read: "),
        ("cut.mp4", r"cut\.mp4 cannot be read: "),
        ("text.gif", r"text\.gif cannot be read: "),
        ("clip.avi", r"clip\.avi is no \.mp4 or \.gif file, and no folder"),
        ("empty", r"empty cannot be read: it has no \.png files"),
        ("sizes", "sizes cannot be read: .*same shape"),
        ("damaged", "damaged cannot be read: "),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, message: str) -> None:
    for folder in ("empty", "sizes", "damaged"):
        (tmp_path / folder).mkdir()
    for file in ("text.mp4", "text.gif", "clip.avi", "damaged/0.png"):
        (tmp_path / file).write_text("no video at all" * 20)
    write_video(tmp_path / "whole.mp4", clip(), 16, {})
    (tmp_path / "cut.mp4").write_bytes((tmp_path / "whole.mp4").read_bytes()[:300])
    for side in (4, 8):
        Image.new("RGB", (side, side)).save(tmp_path / "sizes" / f"{side}.png")
    with pytest.raises(RequestError, match=f"^video: .*{message}") as caught:
        read_frames(tmp_path / name)
    assert caught.value.field == "video"
