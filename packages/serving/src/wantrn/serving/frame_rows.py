"""A picture of labelled rows of video frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from wantrn.model.quality import Frames

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_LEAST_SIDE, _LARGEST_SIDE = 128, 256  # of a frame's longer side in the picture, pixels
_GAP, _GROUP_GAP, _MARGIN = 6, 26, 20  # pixels
_TEXT, _TITLE = 16, 20  # sizes of letters, pixels
_LINE = 22  # from one line of a label to the next, pixels
_PAPER, _INK, _FAINT = (255, 255, 255), (25, 28, 33), (104, 111, 122)
_LETTERS = 34  # of a line of a label, at most


@dataclass(frozen=True, eq=False)
class FrameRow:
    """The lines of its label, the first of them darker, and a picture for each column:
    ``[columns, H, W, 3]``."""

    label: Sequence[str]
    pictures: Frames


@dataclass(frozen=True)
class Columns:
    """Columns side by side that have something in common, and what stands above them."""

    heading: str
    names: Sequence[str]


def draw_rows(title: str, groups: Sequence[Columns], rows: Sequence[FrameRow]) -> Image.Image:
    """All rows, under the names of their columns; all pictures are of one size.

    Small pictures are enlarged by a whole number, pixel by pixel; large ones are reduced.
    """
    _, high, wide, _ = rows[0].pictures.shape
    cell = _cell(wide, high)
    text, large = ImageFont.load_default(_TEXT), ImageFont.load_default(_TITLE)
    labels = [[shortened(line, _LETTERS) for line in row.label] for row in rows]
    left = 2 * _MARGIN + max(round(text.getlength(line)) for label in labels for line in label)
    places = _places(left, cell[0], groups)
    top = _MARGIN + 2 * _LINE + 2 * _LINE
    heights = [max(cell[1], _LINE * len(label)) for label in labels]
    size = (places[-1] + cell[0] + _MARGIN, top + sum(heights) + _GAP * (len(rows) - 1) + _MARGIN)
    # a long title is cut rather than that it makes all wider
    picture = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(picture)
    draw.text((_MARGIN, _MARGIN), _fitted(title, large, size[0] - 2 * _MARGIN), _INK, large)
    _draw_headings(draw, groups, places, (cell[0], top), text)
    for row, label, height in zip(rows, labels, heights, strict=True):
        for line, words in enumerate(label):
            at = top + height / 2 + _LINE * (line - len(label) / 2 + 0.5)
            colour = _FAINT if line else _INK
            draw.text((_MARGIN, at), words, colour, text, anchor="lm")
        for place, frame in zip(places, row.pictures, strict=True):
            picture.paste(_scaled(frame, cell), (place, top + (height - cell[1]) // 2))
        top += height + _GAP
    return picture


def shortened(text: str, letters: int) -> str:
    """At most so many letters: the middle of a longer text is left out."""
    if len(text) <= letters:
        return text
    kept = letters - 3
    return f"{text[: (kept + 1) // 2]}...{text[len(text) - kept // 2 :]}"


def chosen_frames(count: int, most: int) -> list[int]:
    """At most ``most`` of ``count`` frames, at even distances, from the first to the last."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(most, count)).tolist()})


def _cell(width: int, height: int) -> tuple[int, int]:
    """How large a frame is drawn."""
    longer = max(width, height)
    if longer > _LARGEST_SIDE:
        scale = _LARGEST_SIDE / longer
        return max(1, round(width * scale)), max(1, round(height * scale))
    factor = max(1, -(-_LEAST_SIDE // longer))
    return width * factor, height * factor


def _scaled(frame: npt.NDArray[np.uint8], cell: tuple[int, int]) -> Image.Image:
    larger = cell[0] >= frame.shape[1]
    method = Image.Resampling.NEAREST if larger else Image.Resampling.LANCZOS
    return Image.fromarray(np.ascontiguousarray(frame)).resize(cell, method)


def _places(left: int, width: int, groups: Sequence[Columns]) -> list[int]:
    """Where each column begins."""
    places = []
    for group in groups:
        for _ in group.names:
            places.append(left)
            left += width + _GAP
        left += _GROUP_GAP - _GAP
    return places


def _draw_headings(
    draw: ImageDraw.ImageDraw,
    groups: Sequence[Columns],
    places: Sequence[int],
    corner: tuple[int, int],
    font: Font,
) -> None:
    """What stands above the columns; ``corner`` is a column's width, and where the rows begin."""
    width, top = corner
    column = 0
    for group in groups:
        room = (width + _GAP) * len(group.names) - _GAP
        heading = _fitted(group.heading, font, room)
        draw.text((places[column], top - 2 * _LINE), heading, _INK, font)
        for name in group.names:
            draw.text((places[column], top - _LINE), name, _FAINT, font)
            column += 1


def _fitted(text: str, font: Font, width: int) -> str:
    letters = len(text)
    while letters > 4 and font.getlength(shortened(text, letters)) > width:
        letters -= 1
    return shortened(text, letters)
