"""How far two videos of one size are from each other, and how much each of them flickers.

    from wantrn.model.quality import compare_videos

    found = compare_videos(a, b)  # uint8 [F, H, W, 3] each
    print(found.psnr, found.ssim, found.flicker)

Each figure has its own module, whose docstring defines it.
"""

from wantrn.model.quality.comparison import Comparison, compare_videos
from wantrn.model.quality.flicker import flicker_between, flicker_of
from wantrn.model.quality.frames import Frames
from wantrn.model.quality.largest import LargestDifference, largest_difference
from wantrn.model.quality.psnr import psnr, psnr_of_frames
from wantrn.model.quality.ssim import WINDOW, ssim, ssim_of_frames

__all__ = [
    "WINDOW",
    "Comparison",
    "Frames",
    "LargestDifference",
    "compare_videos",
    "flicker_between",
    "flicker_of",
    "largest_difference",
    "psnr",
    "psnr_of_frames",
    "ssim",
    "ssim_of_frames",
]
