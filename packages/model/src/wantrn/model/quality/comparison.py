"""All figures of two videos together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from wantrn.model.quality.flicker import flicker_between, flicker_of
from wantrn.model.quality.frames import Frames
from wantrn.model.quality.largest import LargestDifference, largest_difference
from wantrn.model.quality.psnr import decibels, squared_errors
from wantrn.model.quality.ssim import check_ssim, ssim_of_frame


@dataclass(frozen=True)
class Comparison:
    """How far two videos, A and B, are from each other.

    Attributes:
        psnr: dB, infinite where nothing differs; of the whole, and of each frame in
            ``psnr_of_frames``.
        ssim: 1 where nothing differs; the mean, and of each frame in ``ssim_of_frames``.
        flicker: of what differs, in levels of 255.
        flicker_a, flicker_b: of each video by itself, in levels of 255.
        largest: the largest difference.
    """

    psnr: float
    psnr_of_frames: tuple[float, ...]
    ssim: float
    ssim_of_frames: tuple[float, ...]
    flicker: float
    flicker_a: float
    flicker_b: float
    largest: LargestDifference

    def worst_psnr(self) -> tuple[int, float]:
        """The first frame with the least PSNR, from 0, and that."""
        return _least(self.psnr_of_frames)

    def worst_ssim(self) -> tuple[int, float]:
        """The first frame with the least SSIM, from 0, and that."""
        return _least(self.ssim_of_frames)

    def figures(self) -> Mapping[str, float | None]:
        """By name, for JSON, which has no infinite number: such a PSNR is None."""
        psnr_frame, psnr = self.worst_psnr()
        ssim_frame, ssim = self.worst_ssim()
        return {
            "psnr": finite_or_none(self.psnr),
            "psnr_worst": finite_or_none(psnr),
            "psnr_worst_frame": psnr_frame,
            "ssim": self.ssim,
            "ssim_worst": ssim,
            "ssim_worst_frame": ssim_frame,
            "flicker": self.flicker,
            "flicker_a": self.flicker_a,
            "flicker_b": self.flicker_b,
            "largest": self.largest.levels,
            "largest_frame": self.largest.frame,
        }


def compare_videos(
    a: Frames, b: Frames, progress: Callable[[], object] = lambda: None
) -> Comparison:
    """Compare two videos, uint8 ``[F, H, W, 3]``; ``progress`` is called after each frame's SSIM,
    which takes most of the time.

    Raises ``ValueError`` on videos of two shapes, or with sides below ``ssim.WINDOW``.
    """
    check_ssim(a, b)
    errors = squared_errors(a, b)
    similar = []
    for pair in zip(a, b, strict=True):
        similar.append(ssim_of_frame(*pair))
        progress()
    return Comparison(
        psnr=decibels(float(errors.mean())),
        psnr_of_frames=tuple(map(decibels, errors.tolist())),
        ssim=statistics.fmean(similar),
        ssim_of_frames=tuple(similar),
        flicker=flicker_between(a, b),
        flicker_a=flicker_of(a),
        flicker_b=flicker_of(b),
        largest=largest_difference(a, b),
    )


def finite_or_none(value: float) -> float | None:
    """``value``, or None for one that JSON has no number for."""
    return value if math.isfinite(value) else None


def _least(values: tuple[float, ...]) -> tuple[int, float]:
    frame = int(np.argmin(values))
    return frame, values[frame]
