"""One setting against another: the same videos, each compared with that of fp32 on one rank.

    ./pants run tools/ab.py -- [--model DIR] [--only NAME ...] [--prompts N] [--seeds N]
        [--steps N] [--json] [--picture FILE.png]

The prompts are fixed, as is the noise of each; ``--seeds`` makes so many videos of each. Without a
model it is the tiny one that ``wantrn generate`` uses, which knows what they say. Of PSNR and SSIM
the table has the least and the median over all videos, and of the flicker of what differs the
largest and the median; see docs/comparing.md. Where the step cache is at work, the last column has
the median of the steps that it made. ``--picture`` draws some frames of the first prompt, and what
differs.

``sim`` takes minutes for each video, so it is made only where it is named: with ``--prompts 1``
and few steps.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ab_picture import draw_settings
from ab_settings import REFERENCE, SETTINGS, Setting
from ab_videos import PROMPTS, Asked, Video
from tqdm import tqdm

from wantrn.model.errors import CheckpointError, RequestError
from wantrn.model.quality import Comparison, Frames, compare_videos
from wantrn.model.quality.comparison import finite_or_none
from wantrn.serving.picture_file import check_picture, write_picture
from wantrn.tiny import CHECKPOINT

_NAME = 14  # letters of the first column


class Bench:
    """Makes the videos of settings and compares them, under a progress bar."""

    def __init__(self, asked: Asked, bar: tqdm[Any]) -> None:
        self._asked, self._bar = asked, bar
        self.exact = [video.frames for video in self._made("fp32", REFERENCE)]
        self.first: dict[str, tuple[Frames, Comparison]] = {}
        """Of each setting the video of the first prompt."""

    def compare(self, name: str, setting: Setting) -> dict[str, float]:
        """The figures of a setting."""
        found, reused = [], []
        for exact, video in zip(self.exact, self._made(name, setting), strict=True):
            found.append(compare_videos(exact, video.frames))
            reused.append(video.reused)
            self.first.setdefault(name, (video.frames, found[0]))
        cached = {"reused.median": statistics.median(reused)} if any(reused) else {}
        return figures(found) | cached

    def _made(self, name: str, setting: Setting) -> Iterator[Video]:
        self._bar.set_description(name)
        for video in setting.make(self._asked):
            self._bar.update()
            yield video


def figures(found: Sequence[Comparison]) -> dict[str, float]:
    """Of all videos."""
    psnr, ssim, flicker = (
        [getattr(one, name) for one in found] for name in ("psnr", "ssim", "flicker")
    )
    return {
        "psnr.min": min(psnr),
        "psnr.median": statistics.median(psnr),
        "ssim.min": min(ssim),
        "ssim.median": statistics.median(ssim),
        "flicker.max": max(flicker),
        "flicker.median": statistics.median(flicker),
    }


def heading() -> str:
    """Of the table."""
    above = f"{'against fp32':<{_NAME}}{'PSNR, dB':>17}{'SSIM':>19}{'flicker of 255':>17}"
    kinds = f"{'min':>9}{'median':>8}{'min':>11}{'median':>8}{'max':>9}{'median':>8}"
    return f"{above}\n{'':<{_NAME}}{kinds}"


def line(name: str, setting: Setting, found: dict[str, float]) -> str:
    """A row of the table."""
    psnr = [
        "equal" if math.isinf(value) else f"{value:.1f}"
        for value in (found["psnr.min"], found["psnr.median"])
    ]
    steps = found.get("reused.median")
    reused = "" if steps is None else f", {steps:g} steps reused"
    return (
        f"{name:<{_NAME}}{psnr[0]:>9}{psnr[1]:>8}"
        f"{found['ssim.min']:11.4f}{found['ssim.median']:8.4f}"
        f"{found['flicker.max']:9.3f}{found['flicker.median']:8.3f}  {setting.words}{reused}"
    )


def run(asked: Asked, names: Sequence[str], picture: Path | None) -> dict[str, float | None]:
    """Print the table, a row as it comes, and draw; all figures by ``SETTING.FIGURE``."""
    found: dict[str, float | None] = {}
    # a log is not the place for ten lines a second
    interval = 0.1 if sys.stderr.isatty() else 10.0
    total = len(asked.prompts) * asked.rounds * (1 + len(names))
    with tqdm(total=total, unit="video", file=sys.stderr, mininterval=interval) as bar:
        bench = Bench(asked, bar)
        bar.write(heading())
        for name in names:
            row = bench.compare(name, SETTINGS[name])
            bar.write(line(name, SETTINGS[name], row))
            found |= {f"{name}.{key}": finite_or_none(value) for key, value in row.items()}
    if picture is not None:
        drawn = draw_settings(asked.prompts[0], bench.exact[0], bench.first)
        write_picture("picture", picture, lambda file: drawn.save(file, "png"))
        print(f"picture: {picture}")
    return found


def _options() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--model", type=Path, default=CHECKPOINT, metavar="DIR", help="(default: the tiny one)")
    usual = [name for name, setting in SETTINGS.items() if not setting.slow]
    add("--only", nargs="+", choices=SETTINGS, default=usual, help=f"({' '.join(usual)})")
    add("--prompts", type=int, default=len(PROMPTS), metavar="N", help="(default all)")
    add("--seeds", type=int, default=1, metavar="N", help="videos of each prompt (default 1)")
    add("--steps", type=int, metavar="N", help="of each video (default: the checkpoint's)")
    add("--json", action="store_true", help="one object on the last line")
    add("--picture", type=Path, metavar="FILE.png", help="draw a video of each setting")
    return parser, parser.parse_args()


def main() -> None:
    parser, options = _options()
    if not 1 <= options.prompts <= len(PROMPTS):
        parser.error(f"--prompts is {options.prompts}; it must be 1 to {len(PROMPTS)}")
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}; it must be at least 1")
    try:
        if options.picture is not None:
            check_picture("picture", options.picture)
        prompts = PROMPTS[: options.prompts]
        asked = Asked(options.model, prompts, options.steps, options.seeds)
        asked.settings()
    except (RequestError, CheckpointError) as error:
        parser.error(str(error))
    names = list(dict.fromkeys(options.only))
    found = run(asked, names, options.picture)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
