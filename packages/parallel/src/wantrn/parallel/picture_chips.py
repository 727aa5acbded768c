"""The chips of a machine, each with its ranks."""

from __future__ import annotations

from wantrn.parallel.degrees import Axis, Degrees
from wantrn.parallel.layout import Layout
from wantrn.parallel.text import brief
from wantrn.parallel.torus import Torus


def draw_chips(degrees: Degrees, layout: Layout, torus: Torus) -> str:
    """A box for each chip, with its ranks and their positions along the axes."""
    boxes = [_lines(degrees, layout, torus, chip) for chip in range(torus.rows * torus.columns)]
    width = max(len(line) for box in boxes for line in box)
    rule = "+" + "+".join(["-" * (width + 2)] * torus.columns) + "+"
    text = ["chips, each linked to four; the edges wrap around", rule]
    for start in range(0, len(boxes), torus.columns):
        row = boxes[start : start + torus.columns]
        for lines in zip(*row, strict=True):
            text.append("| " + " | ".join(line.ljust(width) for line in lines) + " |")
        text.append(rule)
    return "\n".join(text)


def _lines(degrees: Degrees, layout: Layout, torus: Torus, chip: int) -> list[str]:
    """The text of a box; all have the same number of lines."""
    axes = [axis.value for axis in Axis if degrees.of(axis) > 1]
    ranks = range(chip * torus.cores, min((chip + 1) * torus.cores, layout.world))
    lines = [f"chip {chip}", f"ranks {brief(ranks)}" if ranks else "no rank"]
    places = [layout.coordinates_of(rank) for rank in ranks]
    for axis in axes:
        positions = sorted({getattr(at, axis) for at in places})
        lines.append(f"{axis} {brief(positions)}" if positions else "")
    return lines
