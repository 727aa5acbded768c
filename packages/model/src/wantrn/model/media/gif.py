"""Animated GIF, by Pillow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import GifImagePlugin, Image, ImageSequence

from wantrn.model.errors import RequestError

# A GIF counts in hundredths of a second, and viewers slow down what is shorter than two.
MAX_FPS = 50


def check_gif(fps: int | None) -> None:
    """Refuse a frame rate that viewers would not play."""
    if fps is not None and fps > MAX_FPS:
        raise RequestError("fps", f"{fps} is not allowed in a .gif; it must be 1 to {MAX_FPS}")


def write_gif(
    path: Path, frames: npt.NDArray[np.uint8], fps: int, metadata: Mapping[str, Any]
) -> None:
    """Each frame with its own 256 colours, endlessly repeated; ``metadata`` is a JSON comment.

    Pillow's ``save_all`` would merge equal neighbours and so change the number of frames;
    therefore the blocks are put together here.
    """
    comment = json.dumps(metadata).encode("ascii")
    images = [Image.fromarray(pixels).quantize(256) for pixels in frames]
    header, _ = GifImagePlugin.getheader(images[0], info={"loop": 0, "comment": comment})
    with path.open("wb") as file:
        for block in header:
            file.write(block)
        for image, duration in zip(images, _durations(len(images), fps), strict=True):
            for block in GifImagePlugin.getdata(image, duration=duration, include_color_table=True):
                file.write(block)
        file.write(b";")


def _durations(count: int, fps: int) -> list[int]:
    """Milliseconds per frame, whole hundredths of a second that never drift from the rate."""
    ends = [round(100 * index / fps) * 10 for index in range(count + 1)]
    return [end - start for start, end in pairwise(ends)]


def read_gif(path: Path) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
    """Frames [F, H, W, 3] and the comment's metadata. Raises ``KeyError`` without a comment."""
    with Image.open(path, formats=["GIF"]) as image:
        metadata = json.loads(image.info["comment"])
        return _decoded(image), metadata


def read_gif_frames(path: Path) -> npt.NDArray[np.uint8]:
    """Frames [F, H, W, 3] of a file that anybody may have written."""
    with Image.open(path, formats=["GIF"]) as image:
        return _decoded(image)


def _decoded(image: Image.Image) -> npt.NDArray[np.uint8]:
    return np.stack([np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(image)])
