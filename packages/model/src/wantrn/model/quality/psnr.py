"""Peak signal-to-noise ratio, in dB:

    PSNR = 10 log10(255^2 / MSE)

with MSE the mean of the squared differences in levels, over pixels and channels. It is infinite
where nothing differs. That of a whole video is of the MSE of all its frames together, not a mean of
theirs.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from wantrn.model.quality.frames import LEVELS, Frames, check_pair, differences


def psnr(a: Frames, b: Frames) -> float:
    """Of two whole videos, ``[F, H, W, 3]``, in dB. Raises ``ValueError`` on what is no pair."""
    return decibels(float(squared_errors(a, b).mean()))


def psnr_of_frames(a: Frames, b: Frames) -> tuple[float, ...]:
    """Of each frame, in dB. Raises ``ValueError`` on what is no pair."""
    return tuple(map(decibels, squared_errors(a, b).tolist()))


def squared_errors(a: Frames, b: Frames) -> npt.NDArray[np.float64]:
    """The MSE of each frame, ``[F]``, in squared levels."""
    check_pair(a, b)
    return np.array(
        [np.square(differences(*pair), dtype=np.int64).mean() for pair in zip(a, b, strict=True)]
    )


def decibels(mse: float) -> float:
    """The PSNR of an MSE in squared levels."""
    return math.inf if mse == 0 else 10 * math.log10(LEVELS**2 / mse)
