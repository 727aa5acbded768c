"""A world of one coloured shape on a coloured ground, which moves, grows, shrinks or bounces.

A scene is a handful of numbers. ``render`` draws it, ``captions.caption`` says it in words, and
``judge.see`` finds it again in the pixels.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SIDE = 64
"""Width and height of a clip, pixels."""

FRAMES = 13

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (215, 38, 38),
    "orange": (247, 140, 28),
    "yellow": (246, 222, 52),
    "green": (44, 168, 72),
    "cyan": (60, 208, 222),
    "blue": (44, 88, 220),
    "purple": (142, 60, 196),
    "pink": (248, 132, 188),
}
"""Of shapes; RGB."""

GROUNDS: dict[str, tuple[int, int, int]] = {
    "black": (18, 18, 18),
    "white": (240, 240, 240),
    "grey": (128, 128, 128),
    "brown": (96, 62, 36),
}
"""RGB."""


class Shape(enum.StrEnum):
    BALL = "ball"
    SQUARE = "square"
    TRIANGLE = "triangle"
    RING = "ring"


class Motion(enum.StrEnum):
    RIGHT = "right"
    LEFT = "left"
    UP = "up"
    DOWN = "down"
    GROW = "grow"
    SHRINK = "shrink"
    BOUNCE = "bounce"


class Size(enum.StrEnum):
    SMALL = "small"
    MEDIUM = ""  # which no caption mentions
    LARGE = "large"


RADII = {Size.SMALL: (7.0, 8.5), Size.MEDIUM: (9.5, 11.0), Size.LARGE: (12.0, 13.5)}
"""Pixels, least and most; of what grows or shrinks, at its smaller end."""

_TRAVEL = (24.0, 34.0)  # pixels, of what moves
_GROWTH = (1.8, 2.2)  # of the radius
_BOUNCES = 1.5  # in a clip
_TINT = 6.0  # levels that a colour is off by at most


@dataclass(frozen=True)
class Scene:
    """One clip. Positions and lengths in pixels, from the upper left; the rest is in words."""

    colour: str
    shape: Shape
    motion: Motion
    size: Size
    ground: str
    radius: float  # at the start
    x: float  # of the centre, at the start
    y: float
    extent: float  # of a move or of the first bounce, pixels; of growth, the factor
    tints: tuple[tuple[float, ...], tuple[float, ...]]  # added to the shape's RGB, and the ground's


@dataclass(frozen=True)
class Words:
    """What a scene is called; numbers are drawn for it."""

    colour: str
    shape: Shape
    motion: Motion
    size: Size
    ground: str


def draw_scene(words: Words, generator: torch.Generator) -> Scene:
    """A scene of this name that stays within the picture."""

    def between(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator))

    def tint() -> tuple[float, ...]:
        return tuple(between(-_TINT, _TINT) for _ in range(3))

    radius, extent = between(*RADII[words.size]), between(*_TRAVEL)
    x, y = between(radius + 2, SIDE - radius - 2), between(radius + 2, SIDE - radius - 2)
    room = SIDE - 2 * (radius + 1)
    if words.motion in (Motion.RIGHT, Motion.LEFT, Motion.UP, Motion.DOWN):
        extent = min(extent, room)
        start = radius + 1 + between(0, room - extent)
        if words.motion in (Motion.LEFT, Motion.UP):
            start = SIDE - start
        x, y = (start, y) if words.motion in (Motion.RIGHT, Motion.LEFT) else (x, start)
    elif words.motion is Motion.BOUNCE:
        extent = min(extent, room)
        y = SIDE - radius - 1 - extent  # falls to the lower edge
    else:
        extent = between(*_GROWTH)
        largest = radius * extent
        x, y = (between(largest + 1, SIDE - largest - 1) for _ in range(2))
        if words.motion is Motion.SHRINK:
            radius, extent = largest, 1 / extent
    return Scene(
        words.colour,
        words.shape,
        words.motion,
        words.size,
        words.ground,
        radius,
        x,
        y,
        extent,
        (tint(), tint()),
    )


def path(scene: Scene) -> Tensor:
    """``[FRAMES, 3]``: x, y and radius at each frame, pixels."""
    t = torch.linspace(0, 1, FRAMES)
    x, y, radius = (torch.full_like(t, value) for value in (scene.x, scene.y, scene.radius))
    match scene.motion:
        case Motion.RIGHT:
            x = x + scene.extent * t
        case Motion.LEFT:
            x = x - scene.extent * t
        case Motion.DOWN:
            y = y + scene.extent * t
        case Motion.UP:
            y = y - scene.extent * t
        case Motion.BOUNCE:
            # from the top at 0 to the floor at 1 and -1, as it falls: by the square of the time
            phase = (2 * _BOUNCES * t + 1) % 2 - 1
            y = y + scene.extent * phase**2
        case Motion.GROW | Motion.SHRINK:
            radius = radius * scene.extent**t
    return torch.stack([x, y, radius], dim=1)


def render(scenes: Sequence[Scene]) -> Tensor:
    """``[B, 3, FRAMES, SIDE, SIDE]`` in [-1, 1]; edges are one pixel soft."""
    paths = torch.stack([path(scene) for scene in scenes])  # [B, F, 3]
    centre = torch.arange(SIDE) + 0.5
    x = centre.view(1, 1, 1, -1) - paths[:, :, 0, None, None]
    y = centre.view(1, 1, -1, 1) - paths[:, :, 1, None, None]
    radius = paths[:, :, 2, None, None]
    outside = torch.stack(
        [_distance(scene.shape, x[i], y[i], radius[i]) for i, scene in enumerate(scenes)]
    )
    cover = (0.5 - outside).clamp(0, 1).unsqueeze(1)
    colour = _levels([(COLOURS[scene.colour], scene.tints[0]) for scene in scenes])
    ground = _levels([(GROUNDS[scene.ground], scene.tints[1]) for scene in scenes])
    return ground + cover * (colour - ground)


def _levels(tinted: Sequence[tuple[tuple[int, int, int], tuple[float, ...]]]) -> Tensor:
    """``[B, 3, 1, 1, 1]`` in [-1, 1]."""
    levels = torch.tensor([base for base, _ in tinted]) + torch.tensor([tint for _, tint in tinted])
    return (levels / 127.5 - 1).clamp(-1, 1).view(-1, 3, 1, 1, 1)


def _distance(shape: Shape, x: Tensor, y: Tensor, radius: Tensor) -> Tensor:
    """Pixels from the shape's edge, below 0 within; all shapes lie in the circle of ``radius``
    but for the square, whose sides are 0.85 of it away."""
    match shape:
        case Shape.BALL:
            return torch.hypot(x, y) - radius
        case Shape.RING:
            return (torch.hypot(x, y) - 0.75 * radius).abs() - 0.25 * radius
        case Shape.SQUARE:
            return torch.maximum(x.abs(), y.abs()) - 0.85 * radius
        case Shape.TRIANGLE:
            # three half planes, each half the radius from the centre; the tip is up
            slope = (3**0.5 * x.abs() - y) / 2
            return torch.maximum(slope, y) - 0.5 * radius
