"""Colour and motion in the pixels of a clip: by blobs and their centroids, with no learning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from train_tiny.world import COLOURS, GROUNDS, Motion

_DISTANCE = 60.0  # of RGB, between a pixel of the shape and the ground
_LEAST_AREA = 20  # pixels; less is noise
_LEAST_MOVE = 8.0  # pixels of the centroid in the clip
_STRAIGHT = 2.0  # a move is so much farther along its axis than across
_GROWTH = 1.7  # ratio of areas, at least


@dataclass(frozen=True)
class Seen:
    """What is in a clip; None for what is not clear."""

    colour: str | None
    motion: Motion | None
    ground: str | None


def see(frames: npt.NDArray[np.uint8]) -> Seen:
    """Judge a clip, uint8 ``[F, height, width, 3]``, with one shape in it."""
    pixels = frames.astype(np.float64)
    level = _ground(pixels)
    blobs = [_blob(frame, level) for frame in pixels]
    found = [blob for blob in blobs if blob is not None]
    ground = _nearest(level, GROUNDS)
    if len(found) < len(blobs):  # not there, or not there all the time
        return Seen(None, None, ground)
    colour = np.median([blob.colour for blob in found], axis=0)
    return Seen(_nearest(colour, COLOURS), _motion(found), ground)


@dataclass(frozen=True, eq=False)
class _Blob:
    x: float
    y: float
    area: float
    colour: npt.NDArray[np.float64]  # RGB


def _ground(pixels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """RGB that is most common along the edges of all frames, by medians."""
    edges = (pixels[:, 0], pixels[:, -1], pixels[:, :, 0], pixels[:, :, -1])
    level: npt.NDArray[np.float64] = np.median(np.concatenate(edges, axis=1), axis=(0, 1))
    return level


def _blob(frame: npt.NDArray[np.float64], ground: npt.NDArray[np.float64]) -> _Blob | None:
    """What is not ground, weighed by how little it is."""
    away = np.linalg.norm(frame - ground, axis=2)
    mask = away > _DISTANCE
    area = float(mask.sum())
    if area < _LEAST_AREA:
        return None
    y, x = np.nonzero(mask)
    # of a soft edge, or of a compressed one, the inner part has the colour
    core = away[mask] >= np.median(away[mask])
    return _Blob(x.mean(), y.mean(), area, np.median(frame[mask][core], axis=0))


def _motion(blobs: list[_Blob]) -> Motion | None:
    x, y, area = (np.array([getattr(blob, name) for blob in blobs]) for name in ("x", "y", "area"))
    across, along = x[-1] - x[0], y[-1] - y[0]
    if _bounces(y) and abs(across) < _LEAST_MOVE:
        return Motion.BOUNCE
    if max(abs(across), abs(along)) >= _LEAST_MOVE:
        if abs(across) >= _STRAIGHT * abs(along):
            return Motion.RIGHT if across > 0 else Motion.LEFT
        if abs(along) >= _STRAIGHT * abs(across):
            return Motion.DOWN if along > 0 else Motion.UP
        return None
    growth = area[-1] / area[0]
    if growth >= _GROWTH:
        return Motion.GROW
    if growth <= 1 / _GROWTH:
        return Motion.SHRINK
    return None


def _bounces(y: npt.NDArray[np.float64]) -> bool:
    """Whether it goes down, comes up again and goes down again, each by a fair part of the way."""
    lowest = int(y[: len(y) // 2 + 1].argmax())
    highest = lowest + int(y[lowest:].argmin())
    down, up, again = y[lowest] - y[0], y[lowest] - y[highest], y[-1] - y[highest]
    return bool(min(down, up, again) >= _LEAST_MOVE)


def _nearest(colour: npt.NDArray[np.float64], names: dict[str, tuple[int, int, int]]) -> str | None:
    """The named colour at the least distance, unless that is large."""
    distances = {name: float(np.linalg.norm(colour - value)) for name, value in names.items()}
    best = min(distances, key=lambda name: distances[name])
    return best if distances[best] < _DISTANCE else None
