"""Still pictures of a finished video, made when they are first asked for and kept beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from wantrn.model.media import read_video
from wantrn.model.media.atomic import draft_of

Frames = npt.NDArray[np.uint8]

_SHEET = 16  # pictures on a sheet, at most
_SIDE = 320  # pixels of each, at most


def _thumbnail(frames: Frames) -> Image.Image:
    return Image.fromarray(frames[len(frames) // 2])


def _sheet(frames: Frames) -> Image.Image:
    """Frames at even distances, row by row."""
    count = min(_SHEET, len(frames))
    chosen = [frames[round(place)] for place in np.linspace(0, len(frames) - 1, count)]
    columns = math.ceil(math.sqrt(count))
    height, width = frames.shape[1:3]
    scale = min(1.0, _SIDE / max(height, width))
    cell = max(1, round(width * scale)), max(1, round(height * scale))
    sheet = Image.new("RGB", (columns * cell[0], math.ceil(count / columns) * cell[1]))
    for place, frame in enumerate(chosen):
        row, column = divmod(place, columns)
        small = Image.fromarray(frame).resize(cell, Image.Resampling.LANCZOS)
        sheet.paste(small, (column * cell[0], row * cell[1]))
    return sheet


PICTURES: Mapping[str, tuple[str, str, Callable[[Frames], Image.Image]]] = {
    "thumbnail": ("thumbnail.webp", "image/webp", _thumbnail),
    "spritesheet": ("spritesheet.jpg", "image/jpeg", _sheet),
}
"""By variant: file name, media type, and what draws it."""


def picture_file(video: Path, variant: str) -> Path:
    """The file of a picture of ``video``, made if it is not there."""
    name, _, draw = PICTURES[variant]
    file = video.with_name(name)
    if not file.exists():
        frames, _, _ = read_video(video)
        with draft_of(file) as draft:
            draw(frames).save(draft, file.suffix.removeprefix(".").replace("jpg", "jpeg"))
    return file
