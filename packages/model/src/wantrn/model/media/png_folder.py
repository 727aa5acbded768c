"""A folder with one PNG file a frame, without loss."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

_METADATA = "metadata.json"


def write_png_folder(
    path: Path, frames: npt.NDArray[np.uint8], metadata: Mapping[str, Any]
) -> None:
    """``0000.png``, ``0001.png``, ... and ``metadata.json``."""
    path.mkdir()
    for index, pixels in enumerate(frames):
        Image.fromarray(pixels).save(path / f"{index:04d}.png")
    text = json.dumps(metadata, ensure_ascii=False, indent=2) + "\n"
    (path / _METADATA).write_text(text, encoding="utf-8")


def read_png_folder(path: Path) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
    """Frames [F, H, W, 3] and the metadata. Raises ``OSError`` without ``metadata.json``."""
    metadata = json.loads((path / _METADATA).read_text(encoding="utf-8"))
    return read_png_frames(path), metadata


def read_png_frames(path: Path) -> npt.NDArray[np.uint8]:
    """Frames [F, H, W, 3] of a folder that anybody may have written, in the order of the numbers in
    their names. Raises ``ValueError`` where there is none."""
    names = sorted((name for name in path.glob("*.png") if name.is_file()), key=_in_order)
    if not names:
        raise ValueError("it has no .png files")
    frames = []
    for name in names:
        with Image.open(name, formats=["PNG"]) as image:
            frames.append(np.asarray(image.convert("RGB")))
    return np.stack(frames)


def _in_order(name: Path) -> list[tuple[str, int]]:
    """``frame9`` before ``frame10``: what is no number, each with the number that follows it."""
    return [(text, int(number or -1)) for text, number in re.findall(r"(\D*)(\d*)", name.stem)]
