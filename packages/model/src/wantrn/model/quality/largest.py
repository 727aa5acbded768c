"""The largest difference of two videos, and where it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wantrn.model.quality.frames import Frames, check_pair, differences


@dataclass(frozen=True)
class LargestDifference:
    """The first of the largest; frame, column and row count from 0, from the upper left."""

    levels: int  # of 255
    frame: int
    column: int
    row: int


def largest_difference(a: Frames, b: Frames) -> LargestDifference:
    """Of any channel of any pixel. Raises ``ValueError`` on what is no pair."""
    check_pair(a, b)
    worst = [np.abs(differences(*pair)).max() for pair in zip(a, b, strict=True)]
    frame = int(np.argmax(worst))
    pixels = np.abs(differences(a[frame], b[frame])).max(axis=2)
    row, column = np.unravel_index(int(np.argmax(pixels)), pixels.shape)
    return LargestDifference(int(worst[frame]), frame, int(column), int(row))
