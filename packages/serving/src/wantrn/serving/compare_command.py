"""``wantrn compare``: how far two videos are from each other."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tqdm import tqdm

from wantrn.model.errors import RequestError
from wantrn.model.media import read_frames
from wantrn.model.quality import WINDOW, Comparison, Frames, compare_videos
from wantrn.serving.compare_strip import draw_strip
from wantrn.serving.picture_file import check_picture, write_picture
from wantrn.serving.table import aligned

_QUICK = 1.0  # seconds; what takes no longer has no progress bar


@dataclass(frozen=True)
class CompareOptions:
    """The command's arguments; None means that it was not given."""

    a: Path
    b: Path
    json: bool = False
    plot: Path | None = None
    strip: Path | None = None
    least_psnr: float | None = None  # dB
    least_ssim: float | None = None


def compare(options: CompareOptions) -> int:
    """Print the figures, and draw what is asked for; 1 if a bar is missed, else 0.

    Raises ``RequestError``; nothing is then printed.
    """
    _check_pictures(options)
    a, b = read_frames(options.a), read_frames(options.b)
    _check_pair(options, a, b)
    found = _compared(a, b)
    names = _names(options.a, options.b)
    if options.plot is not None:
        # matplotlib may be absent, and takes a second
        from wantrn.serving.compare_plot import draw_plot

        write_picture("plot", options.plot, lambda file: draw_plot(file, names, found))
    if options.strip is not None:
        strip = draw_strip((names[0], a), (names[1], b), found)
        write_picture("strip", options.strip, lambda file: strip.save(file, "png"))
    print(aligned(_table(options, a, found)))
    if options.json:
        frames, height, width = a.shape[:3]
        print(json.dumps({"width": width, "height": height, "frames": frames, **found.figures()}))
    missed = _missed(options, found)
    if missed:
        print(f"wantrn compare: {'; '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _check_pictures(options: CompareOptions) -> None:
    """``RequestError`` unless both pictures can be drawn and written, as far as can be told now."""
    for field, path in (("plot", options.plot), ("strip", options.strip)):
        if path is not None:
            check_picture(field, path)
    if options.plot is not None and options.plot == options.strip:
        raise RequestError("strip", f"{options.strip} is the file of --plot too")
    if options.plot is not None and find_spec("matplotlib") is None:
        raise RequestError(
            "plot", "needs matplotlib, which is not installed: wantrn-serving[plot] has it"
        )


def _check_pair(options: CompareOptions, a: Frames, b: Frames) -> None:
    if a.shape[1:] != b.shape[1:]:
        raise RequestError(
            "B",
            f"{options.b} is {_size(b)}, but A, {options.a}, is {_size(a)}; only videos of one "
            "size can be compared",
        )
    if len(a) != len(b):
        raise RequestError(
            "B",
            f"{options.b} has {len(b)} frames, but A, {options.a}, has {len(a)}; only videos of "
            "one length can be compared",
        )
    if min(a.shape[1:3]) < WINDOW:
        raise RequestError(
            "A", f"{options.a} is {_size(a)}; SSIM needs frames of {WINDOW}x{WINDOW} or larger"
        )


def _names(a: Path, b: Path) -> tuple[str, str]:
    """What pictures call them: no more of their paths than tells one from the other."""
    a, b = a.absolute(), b.absolute()
    if a.name != b.name or a == b:
        return a.name, b.name
    common = os.path.commonpath((a, b))
    return os.path.relpath(a, common), os.path.relpath(b, common)


def _compared(a: Frames, b: Frames) -> Comparison:
    # a log is not the place for ten lines a second
    interval = 0.1 if sys.stderr.isatty() else 10.0
    with tqdm(
        total=len(a),
        desc="comparing",
        unit="frame",
        file=sys.stderr,
        mininterval=interval,
        delay=_QUICK,
    ) as bar:
        return compare_videos(a, b, bar.update)


def _table(options: CompareOptions, a: Frames, found: Comparison) -> dict[str, object]:
    shape = f"{_size(a)}, {len(a)} frame{'' if len(a) == 1 else 's'}"
    psnr_frame, psnr = found.worst_psnr()
    ssim_frame, ssim = found.worst_ssim()
    rows: dict[str, object] = {
        "A": f"{options.a}: {shape}, flicker {found.flicker_a:.3f}",
        "B": f"{options.b}: {shape}, flicker {found.flicker_b:.3f}",
        "PSNR": f"{found.psnr:.2f} dB; worst {psnr:.2f} dB, in frame {psnr_frame}",
        "SSIM": f"{found.ssim:.5f}; worst {ssim:.5f}, in frame {ssim_frame}",
        "flicker": f"{found.flicker:.3f} of 255, of what differs",
        "largest": f"{found.largest.levels} of 255, in frame {found.largest.frame}, "
        f"column {found.largest.column}, row {found.largest.row}",
    }
    if found.largest.levels == 0:
        rows |= {"PSNR": "infinite: all frames are equal", "SSIM": "1", "largest": "0 of 255"}
    drawn = {"plot": options.plot, "strip": options.strip}
    return rows | {name: path for name, path in drawn.items() if path is not None}


def _missed(options: CompareOptions, found: Comparison) -> list[str]:
    """What is worse than was asked for."""
    bars = (
        ("PSNR", found.psnr, options.least_psnr, "--least-psnr"),
        ("SSIM", found.ssim, options.least_ssim, "--least-ssim"),
    )
    return [
        f"{name} is {value:.7g}, below {option} {bar:g}"
        for name, value, bar, option in bars
        if bar is not None and value < bar
    ]


def _size(frames: Frames) -> str:
    return f"{frames.shape[2]}x{frames.shape[1]}"
