"""Rows of frames, with what they were made of."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from draw_videos import main
from PIL import Image

from wantrn.model.media import write_video


def drawn(monkeypatch: pytest.MonkeyPatch, *arguments: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["draw_videos.py", *map(str, arguments)])
    main()


def video(path: Path, frames: int = 9) -> Path:
    """Its frames are grey, each lighter than the one before."""
    levels = np.arange(frames, dtype=np.uint8) * 20
    shades = np.broadcast_to(levels[:, None, None, None], (frames, 32, 48, 3))
    write_video(path, shades, 16, {"prompt": "a grey wall", "seed": 3})
    return path


def test_even_frames_of_each_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = tmp_path / "rows.png"
    drawn(monkeypatch, picture, video(tmp_path / "a"), video(tmp_path / "b"))
    with Image.open(picture) as image:
        pixels = np.asarray(image.convert("L"))
    for frame in (0, 2, 4, 6, 8):
        if frame:  # two rows of 96 x 144 pixels; letters have some pixels of the shade, too
            assert 2 * 96 * 144 <= (pixels == 20 * frame).sum() < 2.1 * 96 * 144
    assert not (pixels == 20).sum() > 96 * 144  # a frame that is not drawn


def test_what_cannot_be_drawn_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "rows.png"
    for videos, words in (
        ([video(tmp_path / "a"), video(tmp_path / "b", frames=5)], "(5, 32, 48, 3)"),
        ([tmp_path / "absent.mp4"], "absent.mp4"),
    ):
        with pytest.raises(SystemExit, match="2"):
            drawn(monkeypatch, picture, *videos)
        assert words in capsys.readouterr().err
        assert not picture.exists()
