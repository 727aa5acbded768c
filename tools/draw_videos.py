"""Frames of videos that wantrn has made, a row each, beside what they were made of.

    ./pants run tools/draw_videos.py -- PICTURE.png VIDEO [VIDEO ...]

Videos are .mp4 or .gif files or folders of PNG files, all of one size and as many frames.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from wantrn.model.errors import RequestError
from wantrn.model.media import read_video
from wantrn.serving.frame_rows import Columns, FrameRow, chosen_frames, draw_rows
from wantrn.serving.picture_file import check_picture, write_picture

_FRAMES = 5
_LETTERS = 30  # of a line of a prompt


def draw(videos: Sequence[Path]) -> Image.Image:
    """``RequestError`` if one cannot be read, or is not of the first one's shape."""
    read = {video: read_video(video) for video in videos}
    shape = read[videos[0]][0].shape
    chosen = chosen_frames(shape[0], _FRAMES)
    rows = []
    for video, (frames, _, metadata) in read.items():
        if frames.shape != shape:
            raise RequestError("videos", f"{video} is {frames.shape}, but {videos[0]} is {shape}")
        prompt = textwrap.wrap(str(metadata["prompt"]), _LETTERS)
        rows.append(FrameRow((*prompt, f"seed {metadata['seed']}"), frames[chosen]))
    columns = Columns("", [f"frame {frame}" for frame in chosen])
    return draw_rows("wantrn generate", [columns], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("picture", type=Path, metavar="PICTURE.png")
    parser.add_argument("videos", type=Path, nargs="+", metavar="VIDEO")
    options = parser.parse_args()
    try:
        check_picture("picture", options.picture)
        image = draw(options.videos)
        write_picture("picture", options.picture, lambda file: image.save(file, "png"))
    except RequestError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
