"""Structural similarity, of Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment: from
error visibility to structural similarity", IEEE Transactions on Image Processing 13(4), 2004.

Around every position where an 11 x 11 window fits, the means, variances and the covariance of both
pictures are taken, weighed by a Gaussian of sigma 1.5 whose weights add up to one. With them

    SSIM = (2 m_a m_b + C1) (2 cov + C2) / ((m_a^2 + m_b^2 + C1) (var_a + var_b + C2))

C1 = (0.01 * 255)^2 and C2 = (0.03 * 255)^2. A frame's SSIM is the mean over positions and over red,
green and blue: the paper has grey pictures, and on luma alone one colour in place of another that
is equally bright would not be seen. It is 1 for equal frames, and can be negative.
"""

from __future__ import annotations

import math
import statistics

import numpy as np
import torch
from torch import Tensor

from wantrn.model.quality.frames import LEVELS, Frames, check_pair

WINDOW = 11
"""Pixels along a side; a frame must not be smaller."""

_SIGMA = 1.5
_C1 = (0.01 * LEVELS) ** 2
_C2 = (0.03 * LEVELS) ** 2


def ssim(a: Frames, b: Frames) -> float:
    """The mean of all frames of two videos, ``[F, H, W, 3]``.

    Raises ``ValueError`` on what is no pair, or has sides below ``WINDOW``.
    """
    return statistics.fmean(ssim_of_frames(a, b))


def ssim_of_frames(a: Frames, b: Frames) -> tuple[float, ...]:
    """Of each frame. Raises ``ValueError`` on what is no pair, or has sides below ``WINDOW``."""
    check_ssim(a, b)
    return tuple(ssim_of_frame(*pair) for pair in zip(a, b, strict=True))


def check_ssim(a: Frames, b: Frames) -> None:
    """``ValueError`` unless these are the frames of two videos that a window fits in."""
    check_pair(a, b)
    height, width = a.shape[1:3]
    if min(height, width) < WINDOW:
        raise ValueError(f"a and b must be {WINDOW}x{WINDOW} or larger, got {width}x{height}")


def ssim_of_frame(a: Frames, b: Frames) -> float:
    """Of one, ``[H, W, 3]``."""
    x, y = _channels(a), _channels(b)
    mean_x, mean_y = _weighed(x), _weighed(y)
    # the sum of variances is all that is asked for, so one filtering does for both
    power = _weighed(x * x + y * y) - (mean_x * mean_x + mean_y * mean_y)
    covariance = _weighed(x * y) - mean_x * mean_y
    brightness = (2 * mean_x * mean_y + _C1) / (mean_x * mean_x + mean_y * mean_y + _C1)
    structure = (2 * covariance + _C2) / (power + _C2)
    return float((brightness * structure).mean())


def _channels(frame: Frames) -> Tensor:
    """``[3, H, W]``, fp64: a variance is what is left of two large numbers."""
    return torch.from_numpy(np.ascontiguousarray(frame.transpose(2, 0, 1))).double()


def _weighed(maps: Tensor) -> Tensor:
    """Means under the window, ``[C, H, W]`` to ``[C, H - 10, W - 10]``: along one side, then the
    other."""
    for axis in (1, 2):
        length = maps.shape[axis] - WINDOW + 1
        total = torch.zeros_like(maps.narrow(axis, 0, length))
        for start, weight in enumerate(_gaussian()):
            total.add_(maps.narrow(axis, start, length), alpha=weight)
        maps = total
    return maps


def _gaussian() -> list[float]:
    """The weights along one side."""
    places = range(-(WINDOW // 2), WINDOW // 2 + 1)
    heights = [math.exp(-(place**2) / (2 * _SIGMA**2)) for place in places]
    return [height / sum(heights) for height in heights]
