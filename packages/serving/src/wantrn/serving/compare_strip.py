"""The picture of ``wantrn compare --strip``: frames of A, the same of B, and what differs."""

from __future__ import annotations

import math

from PIL import Image

from wantrn.model.quality import Comparison, Frames
from wantrn.serving.difference_pictures import amplified, gain_for
from wantrn.serving.frame_rows import Columns, FrameRow, chosen_frames, draw_rows

_FRAMES = 6  # in a strip, at most


def draw_strip(a: tuple[str, Frames], b: tuple[str, Frames], found: Comparison) -> Image.Image:
    """Of two videos, each with its name, ``[F, H, W, 3]`` of one shape, and their ``found``."""
    chosen = chosen_frames(len(a[1]), _FRAMES)
    gain = gain_for(a[1][chosen], b[1][chosen])
    difference = amplified(a[1][chosen], b[1][chosen], gain)
    rows = [
        FrameRow(("A", a[0], f"flicker {found.flicker_a:.3f}"), a[1][chosen]),
        FrameRow(("B", b[0], f"flicker {found.flicker_b:.3f}"), b[1][chosen]),
        FrameRow(_difference_label(found, gain), difference),
    ]
    figures = f"PSNR {found.psnr:.2f} dB, SSIM {found.ssim:.5f}"
    heading = "all frames are equal" if math.isinf(found.psnr) else figures
    columns = Columns(heading, [f"frame {frame}" for frame in chosen])
    return draw_rows(f"{a[0]} and {b[0]}", [columns], rows)


def _difference_label(found: Comparison, gain: int) -> tuple[str, ...]:
    if found.largest.levels == 0:
        return ("difference", "none")
    times = "difference" if gain == 1 else f"difference x {gain}"
    return (
        times,
        f"at most {found.largest.levels} of 255,",
        f"in frame {found.largest.frame}",
        f"flicker {found.flicker:.3f}",
    )
