"""Writing a video, in the format that its name asks for, and reading it again.

| name | what is written |
|---|---|
| ends in ``.mp4`` | H.264 |
| ends in ``.gif`` | an endlessly repeated GIF |
| has no suffix | a folder with ``0000.png``, ``0001.png``, ... and ``metadata.json`` |

Upper and lower case in a suffix are the same. Every format keeps the number and size of the frames,
and holds the metadata, to which the frame rate is added as ``fps``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch

from wantrn.model.errors import RequestError
from wantrn.model.media.atomic import draft_of
from wantrn.model.media.gif import check_gif, read_gif, read_gif_frames, write_gif
from wantrn.model.media.mp4 import check_mp4, read_mp4, read_mp4_frames, write_mp4
from wantrn.model.media.png_folder import read_png_folder, read_png_frames, write_png_folder

_ALLOWED = "a name that ends in .mp4 or .gif, or a name without a suffix for a folder of PNG files"


def check_output(path: Path, size: tuple[int, int] | None = None, fps: int | None = None) -> None:
    """Find out before a long run whether ``write_video`` could write ``path``.

    ``size`` is (width, height) in pixels; what is None is not looked at. An existing file will be
    replaced; a folder must be new or empty. Raises ``RequestError`` on ``output``, ``size`` or
    ``fps``.
    """
    suffix = _suffix(path)
    try:
        _check_place(path, folder=suffix == "")
    except OSError as error:  # a name that is too long, a loop of links, ...
        raise RequestError("output", f"{path}: {error.strerror}") from error
    if fps is not None and fps < 1:
        raise RequestError("fps", f"{fps} is not allowed; it must be at least 1")
    if suffix == ".mp4":
        check_mp4(size)
    elif suffix == ".gif":
        check_gif(fps)


def write_video(
    path: Path,
    frames: torch.Tensor | npt.NDArray[np.uint8],
    fps: int,
    metadata: Mapping[str, str | int | float],
) -> Path:
    """Write ``frames``, uint8 [F, H, W, 3] RGB, and return ``path``; see the module for formats.

    A failure leaves nothing behind, and an older file as it was. Raises ``RequestError`` as
    ``check_output`` does, or on ``output`` where the disk is full, and ``ValueError`` on frames
    that are none.
    """
    pixels = frames.cpu().numpy() if isinstance(frames, torch.Tensor) else frames
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] != 3 or not pixels.size:
        raise ValueError(
            f"frames must be uint8 [F, H, W, 3], got {pixels.dtype} {list(pixels.shape)}"
        )
    check_output(path, (pixels.shape[2], pixels.shape[1]), fps)
    stored = {**metadata, "fps": fps}
    suffix = _suffix(path)
    try:
        with draft_of(path) as draft:
            if suffix == ".mp4":
                write_mp4(draft, pixels, fps, stored)
            elif suffix == ".gif":
                write_gif(draft, pixels, fps, stored)
            else:
                write_png_folder(draft, pixels, stored)
    except OSError as error:
        raise RequestError("output", f"cannot write {path}: {error.strerror or error}") from error
    return path


def read_video(path: Path) -> tuple[npt.NDArray[np.uint8], int, dict[str, Any]]:
    """Frames uint8 [F, H, W, 3], frames per second, and metadata of what ``write_video`` wrote.

    Frames are exact from a folder, and near from the other two. Raises ``RequestError`` on
    ``video`` for anything else.
    """
    suffix = _suffix(path)
    read = {".mp4": read_mp4, ".gif": read_gif, "": read_png_folder}[suffix]
    try:
        frames, metadata = read(path)
        return frames, int(metadata["fps"]), metadata
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(
            "video", f"{path} is not a video written by wantrn ({type(error).__name__}: {error})"
        ) from error


def read_frames(path: Path) -> npt.NDArray[np.uint8]:
    """Frames uint8 [F, H, W, 3] of an .mp4 or .gif file, or of a folder of PNG files, whoever wrote
    it; the files of a folder are in the order of the numbers in their names.

    Raises ``RequestError`` on ``video``, naming it, where it is none of these, damaged or absent.
    """
    if not path.exists():
        raise RequestError("video", f"{path} does not exist")
    readers = {".mp4": read_mp4_frames, ".gif": read_gif_frames}
    read = read_png_frames if path.is_dir() else readers.get(path.suffix.lower())
    if read is None:
        raise RequestError("video", f"{path} is no .mp4 or .gif file, and no folder of PNG files")
    try:
        return read(path)
    except (OSError, ValueError, SyntaxError, EOFError, av.FFmpegError) as error:
        raise RequestError("video", f"{path} cannot be read: {error}") from error


def to_uint8(frames: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Frames in [0, 1], floating, as the nearest of 256 levels; any shape.

    Raises ``ValueError`` on a value outside [0, 1], or none at all (NaN).
    """
    if not bool(((frames >= 0) & (frames <= 1)).all()):
        low, high = frames.min().item(), frames.max().item()
        raise ValueError(f"frames must be in [0, 1], got values from {low} to {high}")
    pixels: npt.NDArray[np.uint8] = (frames * 255).round().to(torch.uint8).cpu().numpy()
    return pixels


def _suffix(path: Path) -> str:
    """``.mp4``, ``.gif`` or nothing; a ``RequestError`` for all else."""
    # a letter before it, as a name that starts with a dot has no suffix for pathlib
    suffix = PurePath("x" + path.name).suffix.lower()
    if path.name in ("", "..") or suffix not in (".mp4", ".gif", ""):
        raise RequestError("output", f"{str(path)!r} is not allowed; it must be {_ALLOWED}")
    return suffix


def _check_place(path: Path, folder: bool) -> None:
    parent = path.parent
    if not parent.is_dir():
        raise RequestError("output", f"{path}: there is no folder {parent}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise RequestError("output", f"{path}: the folder {parent} cannot be written to")
    try:
        path.lstat()
    except FileNotFoundError:
        return
    if folder and not path.is_dir():
        raise RequestError("output", f"{path} is a file; a folder of PNG files must be new")
    if folder and any(path.iterdir()):
        raise RequestError("output", f"the folder {path} is not empty")
    if not folder and path.exists() and not path.is_file():
        raise RequestError("output", f"{path} exists and is no file")
