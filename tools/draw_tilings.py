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

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from wantrn.kernels.qkv.plan import Plan
from wantrn.kernels.qkv.planner import best_plan
from wantrn.kernels.qkv.slabs import TILE, slabs_of
from wantrn.kernels.qkv.wan_calls import LNC, WAN_CALLS, Call, sizes_of_call
from wantrn.kernels.row_mx import VALUES

CALL = "self_720p_tp4_cp8"
# rows of the weight that one MX matmul contracts: 128 elements of four
TILE_ROWS = VALUES * TILE
COLOURS = colormaps["viridis"]


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
    (call,) = [one for one in WAN_CALLS if one.name == CALL]
    plan = best_plan(sizes_of_call(call), LNC)
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_groups(left, plan)
    _draw_rows(right, plan, call)
    figure.savefig(path, dpi=110)


def _draw_groups(axes: Any, plan: Plan) -> None:
    hidden, edges = plan.sizes.hidden, group_edges(plan)
    title = f"qkv_cte: {hidden // TILE_ROWS} loads of a tile of {TILE_ROWS} rows"
    _matrix(axes, plan.sizes.width(), hidden, title)
    for number, (lo, hi) in enumerate(itertools.pairwise(edges)):
        shade = 0.15 + 0.7 * number / max(len(edges) - 2, 1)
        axes.add_patch(Rectangle((lo, 0), hi - lo, hidden, fc=COLOURS(shade), ec="white", lw=2))
        text = f"{number + 1}\nall tokens"
        axes.text((lo + hi) / 2, hidden / 2, text, ha="center", va="center", c="white")


def _draw_rows(axes: Any, plan: Plan, call: Call) -> None:
    width, tiles = plan.sizes.width(), plan.sizes.hidden // TILE_ROWS
    title = f"AWS's plugin: {call.peer_loads} loads, all of it {call.peer_loads // tiles} times"
    _matrix(axes, width, plan.sizes.hidden, title)
    for tile, numbers in enumerate(loads_of_rows(call.peer_loads, tiles)):
        at = tile * TILE_ROWS
        axes.add_patch(Rectangle((0, at), width, TILE_ROWS, fc=COLOURS(0.35), ec="white", lw=2))
        text, middle = ", ".join(map(str, numbers)), at + TILE_ROWS / 2
        axes.text(width / 2, middle, text, ha="center", va="center", c="white", fontsize=8)


def loads_of_rows(loads: int, tiles: int) -> list[range]:
    """The numbers, from 1, of the loads of each tile of rows: once for each block of tokens."""
    return [range(tile + 1, loads + 1, tiles) for tile in range(tiles)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw two orders of loading a weight.")
    parser.add_argument("path", type=Path, help="the picture to write, PNG or SVG")
    draw(parser.parse_args().path)


if __name__ == "__main__":
    main()
