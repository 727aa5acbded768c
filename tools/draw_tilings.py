"""Draw the order in which two kernels load a weight: `qkv_cte`, and that of AWS's plugin.

    ./pants run tools/draw_tilings.py -- docs/images/qkv_tilings.png

The call is Wan's fused Q|K|V of self-attention at 720p on one of 4 x 8 ranks; groups of columns are
those of the plan that `qkv_cte` would take. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

from wantrn.kernels.qkv.plan import Plan
from wantrn.kernels.qkv.planner import best_plan
from wantrn.kernels.qkv.slabs import TILE, slabs_of
from wantrn.kernels.qkv.wan_calls import LNC, WAN_CALLS, Call, sizes_of_call

CALL = "self_720p_tp4_cp8"
# rows of the weight that one MX matmul contracts: 128 elements of four
TILE_ROWS = 4 * TILE


def group_edges(plan: Plan) -> list[int]:
    """The columns at which groups begin, and the last one's end."""
    slabs = slabs_of(plan.sizes)
    starts = [slabs[first].first for first, _ in plan.groups]
    return [*sorted(starts), plan.sizes.width()]


def _matrix(axes: Any, width: int, height: int, title: str) -> None:
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("columns of the weight: Q | K | V")
    axes.set_ylabel("rows, H")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw(path: Path) -> None:
    """Both orders side by side, every tile with its number in the order of loading."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    (call,) = [one for one in WAN_CALLS if one.name == CALL]
    plan = best_plan(sizes_of_call(call), LNC)
    width, hidden = plan.sizes.width(), plan.sizes.hidden
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 4.6), layout="constrained")
    edges = group_edges(plan)
    colours = pyplot.get_cmap("viridis")
    _matrix(
        left, width, hidden, f"qkv_cte: {hidden // TILE_ROWS} loads of a tile of {TILE_ROWS} rows"
    )
    for number, (lo, hi) in enumerate(itertools.pairwise(edges)):
        colour = colours(0.15 + 0.7 * number / max(len(edges) - 2, 1))
        left.add_patch(Rectangle((lo, 0), hi - lo, hidden, fc=colour, ec="white", lw=2))
        left.text(
            (lo + hi) / 2, hidden / 2, _group_text(number), ha="center", va="center", c="white"
        )
    repeats = call.peer_loads * TILE_ROWS // hidden
    _matrix(
        right, width, hidden, f"AWS's plugin: {call.peer_loads} loads, all of it {repeats} times"
    )
    for row in range(0, hidden, TILE_ROWS):
        tile = Rectangle((0, row), width, TILE_ROWS, fc=colours(0.35), ec="white", lw=2)
        right.add_patch(tile)
        right.text(
            width / 2,
            row + TILE_ROWS / 2,
            _row_text(call, row, repeats),
            ha="center",
            va="center",
            c="white",
            fontsize=8,
        )
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _group_text(number: int) -> str:
    return f"{number + 1}\nall tokens"


def _row_text(call: Call, row: int, repeats: int) -> str:
    """The numbers of the loads of one tile of rows: once for each block of tokens."""
    first = row // TILE_ROWS + 1
    each = call.peer_loads // repeats
    return ", ".join(str(first + turn * each) for turn in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw two orders of loading a weight.")
    parser.add_argument("path", type=Path, help="the picture to write, PNG or SVG")
    draw(parser.parse_args().path)


if __name__ == "__main__":
    main()
