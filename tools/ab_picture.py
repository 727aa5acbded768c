"""The picture of tools/ab.py: a video of each setting, and what differs from fp32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from wantrn.model.quality import Comparison, Frames
from wantrn.serving.difference_pictures import amplified, gain_for
from wantrn.serving.frame_rows import Columns, FrameRow, chosen_frames, draw_rows

_FRAMES = 4  # of each video, at most


def draw_settings(
    prompt: str, exact: Frames, settings: Mapping[str, tuple[Frames, Comparison]]
) -> Image.Image:
    """A row for the video in fp32, and one for each setting's, which has been compared with it.
    What differs is amplified alike in all rows."""
    chosen = chosen_frames(len(exact), _FRAMES)
    exact = exact[chosen]
    shown = {name: frames[chosen] for name, (frames, _) in settings.items()}
    gain = gain_for(np.concatenate([exact] * len(shown)), np.concatenate(list(shown.values())))
    nothing = np.full_like(exact, 255)  # as the paper
    rows = [FrameRow(("fp32", "on one rank, by torch"), np.concatenate([exact, nothing]))]
    for name, frames in shown.items():
        difference = amplified(exact, frames, gain)
        label = (name, *_figures(settings[name][1]))
        rows.append(FrameRow(label, np.concatenate([frames, difference])))
    names = [f"frame {frame}" for frame in chosen]
    columns = [Columns("video", names), Columns(f"difference from fp32, x {gain}", names)]
    return draw_rows(prompt, columns, rows)


def _figures(found: Comparison) -> Sequence[str]:
    if found.largest.levels == 0:
        return ("no difference",)
    return (
        f"PSNR {found.psnr:.1f} dB",
        f"SSIM {found.ssim:.4f}",
        f"flicker {found.flicker:.2f}",
    )
