"""A folder with one PNG file a frame, without loss."""

from __future__ import annotations

import json
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
    names = sorted(path.glob("*.png"), key=lambda name: int(name.stem))
    frames = []
    for name in names:
        with Image.open(name, formats=["PNG"]) as image:
            frames.append(np.asarray(image.convert("RGB")))
    return np.stack(frames), metadata
