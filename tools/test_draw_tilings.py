from __future__ import annotations

from pathlib import Path

import draw_tilings
import pytest

from wantrn.kernels.qkv.planner import best_plan
from wantrn.kernels.qkv.wan_calls import LNC, WAN_CALLS, Call, sizes_of_call


@pytest.mark.parametrize("call", WAN_CALLS, ids=lambda call: call.name)
def test_groups_are_all_columns(call: Call) -> None:
    plan = best_plan(sizes_of_call(call), LNC)
    edges = draw_tilings.group_edges(plan)
    assert edges[0] == 0 and edges[-1] == plan.sizes.width()
    assert edges == sorted(set(edges)) and len(edges) == len(plan.groups) + 1


def test_every_load_is_of_one_tile() -> None:
    loads = draw_tilings.loads_of_rows(150, 10)
    assert sorted(number for tile in loads for number in tile) == list(range(1, 151))
    assert [tile[:2] for tile in loads[:2]] == [range(1, 12, 10), range(2, 13, 10)]


def test_a_picture(tmp_path: Path) -> None:
    draw_tilings.draw(tmp_path / "tilings.png")
    assert (tmp_path / "tilings.png").read_bytes().startswith(b"\x89PNG")
