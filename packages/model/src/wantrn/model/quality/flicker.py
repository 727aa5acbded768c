"""Temporal flicker, in levels of 255.

Between two videos, with the error ``e_t = a_t - b_t`` of frame ``t``,

    flicker = mean |e_t - e_(t-1)|

over frames from the second on, pixels and channels: how much what differs comes and goes. An error
that stands still, as another brightness would, has none. It is the same as the mean of
``|(a_t - a_(t-1)) - (b_t - b_(t-1))|``, the difference of what changes from frame to frame.

Of one video,

    flicker = mean |x_(t-1) - 2 x_t + x_(t+1)| / 2

over frames that have two neighbours: how far a frame is from the mean of those before and after it.
What stands still or changes evenly has none; pixels that go to and fro between two levels have
their difference. Where things move it is not zero, so it says something only beside that of another
video.
"""

from __future__ import annotations

import statistics
from itertools import pairwise

import numpy as np

from wantrn.model.quality.frames import Frames, check_frames, check_pair, differences


def flicker_between(a: Frames, b: Frames) -> float:
    """Of two videos, ``[F, H, W, 3]``; 0 for videos of one frame.

    Raises ``ValueError`` on what is no pair.
    """
    check_pair(a, b)
    errors = (differences(*pair) for pair in zip(a, b, strict=True))
    changes = [float(np.abs(after - before).mean()) for before, after in pairwise(errors)]
    return statistics.fmean(changes) if changes else 0.0


def flicker_of(frames: Frames) -> float:
    """Of one video, ``[F, H, W, 3]``; 0 below three frames.

    Raises ``ValueError`` on what is none.
    """
    check_frames("frames", frames)
    steps = (differences(after, before) for before, after in pairwise(frames))
    bends = [float(np.abs(after - before).mean()) / 2 for before, after in pairwise(steps)]
    return statistics.fmean(bends) if bends else 0.0
