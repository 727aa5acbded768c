"""What is compared: the frames of videos."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Frames = npt.NDArray[np.uint8]
"""``[F, H, W, 3]`` RGB, at least one of each."""

LEVELS = 255
"""The largest difference of two values of a pixel."""


def check_frames(name: str, frames: Frames) -> None:
    """``ValueError``, with ``name``, unless these are frames."""
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not frames.size:
        raise ValueError(
            f"{name} must be uint8 [F, H, W, 3], got {frames.dtype} {list(frames.shape)}"
        )


def check_pair(a: Frames, b: Frames) -> None:
    """``ValueError`` unless these are the frames of two videos of one size and length."""
    check_frames("a", a)
    check_frames("b", b)
    if a.shape != b.shape:
        raise ValueError(f"a and b must have one shape, got {list(a.shape)} and {list(b.shape)}")


def differences(a: Frames, b: Frames) -> npt.NDArray[np.int16]:
    """``a - b``, in levels; of any one shape."""
    return a.astype(np.int16) - b
