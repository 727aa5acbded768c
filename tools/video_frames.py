"""The frames of video files, and how much those of two files differ."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray


def read_frames(path: Path) -> NDArray[np.uint8]:
    """The frames ``[frames, height, width, 3]`` of a video file."""
    with av.open(str(path)) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])


def mean_difference(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """The mean absolute difference of two videos of one shape, on [0, 1]."""
    return float(_differences(one, other).mean()) / 255


def max_difference(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> int:
    """The largest difference of two videos of one shape, in levels of 255."""
    return int(_differences(one, other).max())


def _differences(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.int16]:
    if one.shape != other.shape:
        raise ValueError(f"videos of shapes {one.shape} and {other.shape} cannot be compared")
    return np.abs(one.astype(np.int16) - other.astype(np.int16))
