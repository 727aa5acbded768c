"""How `qkv_cte` computes: what it issues."""

from __future__ import annotations

import pytest
from qkv_cases import specs

from nkisim import World, lint
from nkisim.enums import MemoryRegion
from nkisim.trace import Instruction
from wantrn.kernels.qkv import (
    LAYER_PER_HEAD,
    RMS_PER_HEAD,
    Options,
    Plan,
    candidates,
    qkv_cte,
)
from wantrn.kernels.sbuf import named


def issued(
    tokens: int,
    options: Options,
    *,
    packed: bool = True,
    rope: bool = True,
    lnc: int = 1,
    held: bool = True,
) -> tuple[Plan, list[Instruction]]:
    """The plan, and the instructions of the first core of the first rank."""
    sizes, arguments = specs(tokens, 512, options, packed, rope)
    plan = next(c.plan for c in candidates(sizes, lnc) if c.plan.choice.held == held)
    world = World(sizes.ranks, lnc, "trn3", numerics=False)
    _, trace = world.launch(qkv_cte, [arguments(plan)] * sizes.ranks, fits=False)
    return plan, trace.cores[0].instructions


def of(instructions: list[Instruction], op: str, module: str = "") -> list[Instruction]:
    return [i for i in instructions if i.op == op and f"{module}.py" in i.location]


def test_the_compiler_takes_all_of_it() -> None:
    assert not list(lint(qkv_cte))


# The pass over all heads


@pytest.mark.parametrize("heads", [1, 4, 10, 20, 40])
@pytest.mark.parametrize("kv_heads", [0, 1])
def test_four_wide_operations_for_a_segment(heads: int, kv_heads: int) -> None:
    """However many heads: two halves of one, and two of the whole segment's width."""
    plan, instructions = issued(600, Options(heads, kv_heads, 64))
    wide = of(instructions, "tensor_tensor", "finish")
    segments = (2 if kv_heads else 1) if heads != kv_heads else 1
    assert len(wide) == 4 * segments * plan.tiles
    q = [i.writes[0].elements for i in wide[:4]]
    assert q[2] == q[3] == 64 * heads * (2 if segments == 1 and kv_heads else 1)
    assert q[0] == q[1] == q[2] // 2


def test_as_many_heads_of_k_are_rotated_with_q() -> None:
    plan, instructions = issued(600, Options(6, 6, 64))
    wide = of(instructions, "tensor_tensor", "finish")
    assert len(wide) == 4 * plan.tiles
    assert {i.writes[0].elements for i in wide} == {6 * 64, 2 * 6 * 64}


def test_without_a_rotation_one_operation_is_left() -> None:
    plan, instructions = issued(600, Options(6, 2, 64), rope=False)
    assert not of(instructions, "tensor_tensor", "finish")
    assert len(of(instructions, "tensor_scalar", "finish")) == 2 * plan.tiles


@pytest.mark.parametrize("heads", [2, 12])
def test_a_norm_of_single_heads_takes_two_wide_operations_more(heads: int) -> None:
    """Sums of all heads at once, and the row times all factors; what multiplies tables is small."""
    plan, instructions = issued(600, Options(heads, 0, 64, norm=RMS_PER_HEAD))
    wide = heads * 64
    for op, module, count in (
        ("activation", "heads", 1),
        ("tensor_reduce", "heads", 1),
        ("tensor_tensor", "heads", 1),
    ):
        found = [i for i in of(instructions, op, module) if i.reads[0].elements == wide]
        assert len(found) == count * plan.tiles
    assert len(of(instructions, "tensor_tensor", "finish")) == 4 * plan.tiles


@pytest.mark.parametrize("rope", [False, True])
def test_a_layer_norm_takes_two_wide_operations_more_than_that(rope: bool) -> None:
    """The sum of each head, and the row less its means."""
    wide = 4 * 64
    counts = []
    for norm in (RMS_PER_HEAD, LAYER_PER_HEAD):
        plan, instructions = issued(600, Options(4, 0, 64, norm=norm), rope=rope)
        found = [i for i in instructions if "heads.py" in i.location]
        counts.append(sum(i.reads[0].elements == wide for i in found) / plan.tiles)
    assert counts[1] == counts[0] + 2


@pytest.mark.parametrize("tokens", [100, 5000])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("lnc", [1, 2])
def test_one_collective_in_the_whole_launch(tokens: int, ranks: int, lnc: int) -> None:
    groups = (tuple(range(ranks)),) if ranks > 1 else ()
    _, instructions = issued(tokens, Options(2, 2, 64, replica_groups=groups), lnc=lnc)
    assert len(of(instructions, "all_reduce")) == (1 if ranks > 1 else 0)


def test_products_go_on_while_other_ranks_are_waited_for() -> None:
    """V comes last: its products need no norm."""
    _, instructions = issued(600, Options(4, 4, 64, replica_groups=((0, 1),)))
    names = [i.op for i in instructions]
    behind = names[names.index("all_reduce") :].count("nc_matmul_mx")
    assert behind == names.count("nc_matmul_mx") // 3


# Memory


def hbm_written(instructions: list[Instruction], region: MemoryRegion) -> int:
    return sum(
        i.writes[0].bytes
        for i in instructions
        if i.op == "dma_copy" and i.writes[0].place.region is region
    )


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_only_q_and_k_wait_in_hbm(held: bool, heads_first: bool) -> None:
    options = Options(4, 4, 64, heads_first=heads_first)
    _, instructions = issued(600, options, held=held)
    private = hbm_written(instructions, MemoryRegion.private_hbm)
    assert private == (0 if held else 600 * 2 * 256 * 2)
    assert hbm_written(instructions, MemoryRegion.shared_hbm) == 600 * 3 * 256 * 2


def test_neighbouring_tokens_of_a_head_are_stored_as_one_run() -> None:
    plan, instructions = issued(1024, Options(4, 0, 64, heads_first=True), rope=False)
    assert plan.choice.stride > 1
    stores = [i for i in of(instructions, "dma_copy", "store") if not i.writes[0].place.on_chip]
    assert stores[0].writes[0].run >= 64 * 2 * plan.choice.stride


def test_neutral_scales_are_one_constant() -> None:
    plan, instructions = issued(600, Options(4, 4, 64))
    places = {r.place.name for i in of(instructions, "nc_matmul_mx") for r in i.reads[2:4]}
    assert places == {"neutral_0"} and named(plan.buffers, "neutral").size == 512
