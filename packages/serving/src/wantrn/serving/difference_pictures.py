"""What differs between frames, made bright enough to be seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wantrn.model.quality import Frames

_KEPT = 99.0  # percent of all values that a gain does not cut


def gain_for(a: Frames, b: Frames) -> int:
    """The largest power of two by which nearly all differences of ``a`` and ``b``, of one shape,
    still fit in 255; 1 where nothing differs."""
    distance = _distance(a, b)
    # of few values that differ, by the largest: no gain makes black brighter
    usual = float(np.percentile(distance, _KEPT)) or float(distance.max())
    gain = 1
    while 0 < 2 * gain * usual <= 255:
        gain *= 2
    return gain


def amplified(a: Frames, b: Frames, gain: int) -> Frames:
    """``gain * |a - b|`` of each channel, at most 255: black where nothing differs. Of any one
    shape."""
    return np.minimum(_distance(a, b) * gain, 255).astype(np.uint8)


def _distance(a: Frames, b: Frames) -> npt.NDArray[np.int32]:
    distance: npt.NDArray[np.int32] = np.abs(a.astype(np.int32) - b)
    return distance
