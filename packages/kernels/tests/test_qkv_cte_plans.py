"""Plans of `qkv_cte`: they change no bit, hold what is used, and load the weight once."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from qkv_cases import STRICT, Case, random_case, specs

from nkisim import World
from nkisim.enums import MemoryRegion
from nkisim.trace import CoreTrace
from wantrn.kernels.qkv import (
    LAYER_PER_HEAD,
    RMS_ALL_HEADS,
    RMS_PER_HEAD,
    Options,
    Plan,
    Sizes,
    best_plan,
    candidates,
    described,
    qkv_cte,
)
from wantrn.kernels.qkv.buffers import plan_of
from wantrn.kernels.qkv.options import NORMS
from wantrn.kernels.qkv.plan import Choice
from wantrn.kernels.qkv.slabs import slabs_of, tiles_of
from wantrn.kernels.qkv.streamed import degree_of, qkv_streamed, streamed_fits, weight_stays
from wantrn.kernels.qkv.wan_calls import (
    LNC,
    WAN_CALLS,
    profiled,
    sizes_of_call,
    weight_tile_loads,
)
from wantrn.kernels.sbuf import named

CALLS = {call.name: call for call in WAN_CALLS}


# Bits


def cases() -> list[Case]:
    wide = Options(9, 9, 128, heads_first=True)
    layer = Options(9, 9, 128, norm=LAYER_PER_HEAD, squared_sums=True, cache_starts=(3, 1))
    summed = Options(9, 2, 128, replica_groups=((0, 1),), squared_sums=True)
    plain = Options(3, 2, 128, heads_first=True, squared_sums=True)
    return [
        random_case((1, 300, 128), wide, packed=True),
        random_case((2, 200, 256), Options(9, 0, 128), rope=False),
        random_case((1, 290, 128), Options(9, 2, 128, replica_groups=((0, 1),)), ranks=2),
        random_case((1, 290, 128), Options(9, 2, 128, heads_first=True), norm=False, rope=False),
        random_case((1, 290, 128), Options(9, 9, 128, norm=RMS_PER_HEAD)),
        random_case((2, 201, 128), layer, beta=True, caches="dense"),
        random_case((1, 290, 128), summed, ranks=2, caches="slots", packed=True),
        random_case((2, 145, 128), plain, norm=False, rope=False, caches="dense"),
        random_case((2, 145, 128), plain, norm=False, caches="slots"),
    ]


@pytest.mark.parametrize("number", range(9))
def test_no_plan_changes_a_bit(number: int) -> None:
    case = cases()[number]
    found = candidates(case.sizes())
    plans = {c.plan.choice: c.plan for c in found}
    assert len(plans) >= 8
    expected = case.run(plan=found[0].plan)
    # every value of every choice, and the dearest plans, which differ most from the first
    chosen = list(itertools.islice(reversed(plans.values()), 8)) + list(plans.values())[::5]
    for plan in chosen:
        for a, b in zip(case.run(plan=plan), expected, strict=True):
            assert a.view(torch.uint8).equal(b.view(torch.uint8)), plan.choice


@pytest.mark.parametrize("number", [0, 5, 8])
def test_no_number_of_cores_changes_a_bit(number: int) -> None:
    case = cases()[number]
    for a, b in zip(case.run(lnc=2), case.run(lnc=1), strict=True):
        assert a.view(torch.uint8).equal(b.view(torch.uint8))


# Memory


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("heads", [(9, 9), (9, 0)])
@pytest.mark.parametrize("norm", ["one rank", "two ranks", "per head"])
def test_buffers_are_those_of_the_plan(
    packed: bool, rope: bool, heads: tuple[int, int], norm: str
) -> None:
    ranks = 2 if norm == "two ranks" else 1
    options = Options(
        *heads,
        128,
        replica_groups=((0, 1),) if ranks > 1 else (),
        heads_first=norm == "one rank",
        norm=RMS_PER_HEAD if norm == "per head" else RMS_ALL_HEADS,
    )
    sizes, arguments = specs(700, 512, options, packed, rope)
    for plan in some_plans(sizes):
        assert_buffers_are_used(plan, [arguments(plan)] * ranks)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("norm", ["", "biased", *NORMS])
@pytest.mark.parametrize("caches", ["", "dense", "slots"])
def test_buffers_of_sums_and_caches(packed: bool, rope: bool, norm: str, caches: str) -> None:
    options = Options(
        9,
        2,
        128,
        heads_first=packed,
        norm=norm if norm in NORMS else LAYER_PER_HEAD,
        squared_sums=True,
        # two ranks, where a norm can need them
        replica_groups=((0, 1),) if norm == RMS_ALL_HEADS and rope else (),
    )
    case = random_case(
        (2, 301, 256),
        options,
        packed=packed,
        norm=norm != "",
        rope=rope,
        beta=norm == "biased",
        caches=caches,
        ranks=2 if options.replica_groups else 1,
    )
    # cases differ in the plans that they look at
    for plan in some_plans(case.sizes(), count=3, first=len(norm) + len(caches)):
        assert_buffers_are_used(plan, case.arguments(plan))


def some_plans(sizes: Sizes, count: int = 6, first: int = 0) -> list[Plan]:
    """At even distances among all, from cheap to dear."""
    found = candidates(sizes)
    distance = max(len(found) // count, 1)
    return [candidate.plan for candidate in found[first % distance :: distance]]


def assert_buffers_are_used(plan: Plan, arguments: list[tuple[Any, ...]]) -> None:
    """By a launch with these arguments of each rank, all of them, where and as long as planned."""
    world = World(len(arguments), 1, "trn3", numerics=False)
    _, trace = world.launch(qkv_cte, arguments)
    places = [p for p in trace.cores[0].places if p.region is MemoryRegion.sbuf]
    used = {(p.name, p.address, p.bytes_per_partition) for p in places}
    planned = {
        (f"{b.name}_{slot}", b.address + slot * b.size, b.size)
        for b in plan.buffers
        for slot in range(b.slots)
    }
    assert used == planned
    ends = [address + size for _, address, size in used if address is not None]
    assert max(ends) == plan.sbuf_bytes()
    # all of them are used, and none outside of its life
    firsts = _groups_of(trace.cores[0], plan)
    for place in places:
        assert place.first >= 0, place.name
        buffer = named(plan.buffers, place.name.rpartition("_")[0])
        assert buffer.first <= firsts(place.first), place.name
        assert firsts(place.last) <= buffer.last, place.name


def _groups_of(core: CoreTrace, plan: Plan) -> Any:
    """The group under way at an instruction: that of the last product issued before it."""
    slabs = slabs_of(plan.sizes)
    each = [sum(len(slab.pieces()) for slab in slabs[start:stop]) for start, stop in plan.groups]
    runs = -(-plan.sizes.words() // 128)
    ends = list(itertools.accumulate(n * runs * plan.tiles for n in each))
    products = 0
    group = []
    for instruction in core.instructions:
        products += instruction.op.startswith("nc_matmul")
        group.append(next(g for g, end in enumerate(ends) if products <= end))

    def at(index: int) -> int:
        return group[index]

    return at


def test_no_two_live_buffers_share_a_byte() -> None:
    sizes = sizes_of_call(CALLS["self_480p_tp4_cp8"])
    for candidate in candidates(sizes, 2):
        buffers = candidate.plan.buffers
        assert candidate.plan.sbuf_bytes() <= candidate.plan.sbuf_limit
        for a, b in itertools.combinations(buffers, 2):
            apart = a.end() <= b.address or b.end() <= a.address
            assert apart or a.last < b.first or b.last < a.first, (a, b)


def test_a_plan_that_does_not_fit_cannot_be_made() -> None:
    sizes = sizes_of_call(CALLS["self_480p_tp4_cp8"])
    plan = best_plan(sizes, 2)
    with pytest.raises(ValueError, match=r"take \d+ bytes of each partition; SBUF has 200000"):
        dataclasses.replace(plan, sbuf_limit=200_000)
    with pytest.raises(ValueError, match="SBUF has 245752"):
        plan_of(sizes, Choice(6, 16, True, 2), 16, 245_752)
    with pytest.raises(ValueError, match="no plan for .* fits into SBUF of gen4"):
        best_plan(dataclasses.replace(sizes, hidden=128 * 512), 2)


# The weight is loaded once


@pytest.mark.parametrize("name", ["self_480p_tp4_cp8", "cross_q_480p", "cross_k"])
def test_each_tile_of_the_weight_is_loaded_once(name: str) -> None:
    call = CALLS[name]
    plan = best_plan(sizes_of_call(call), LNC)
    assert weight_tile_loads(profiled(call, plan), plan.sizes) == 10


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_no_plan_loads_a_tile_twice(name: str, packed: bool) -> None:
    sizes = sizes_of_call(CALLS[name], packed=packed)
    found = candidates(sizes, LNC)
    assert found
    assert {c.price.weight_loads for c in found} == {10 if packed else 40}


def test_the_choice_can_be_read() -> None:
    sizes = sizes_of_call(CALLS["self_480p_tp4_cp8"])
    text = described(candidates(sizes, 2), 2)
    assert "10 weight tiles" in text and "wait in" in text and "weights" in text


# Tokens


@pytest.mark.parametrize("stride", [1, 2, 3, 8])
@pytest.mark.parametrize("cores", [1, 2])
def test_every_token_is_in_one_tile(stride: int, cores: int) -> None:
    for tokens in (1, 2, 97, 128, 129, 255, 256, 257, 1000, 1171, 2364):
        seen: list[int] = []
        for core in range(cores):
            for tile in tiles_of(tokens, core, cores, stride):
                places = tile.tokens()
                found = list(range(places.start, places.stop, places.step))
                assert len(found) == tile.rows <= 128
                seen += found
        assert sorted(seen) == list(range(tokens))


# The schedule that it is compared with


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("lnc", [1, 2])
def test_the_streamed_schedule_gives_the_same_bits(ranks: int, lnc: int) -> None:
    groups = (tuple(range(ranks)),) if ranks > 1 else ()
    for heads, bias in (((9, 9), torch.bfloat16), ((3, 2), None)):
        options = Options(*heads, 128, replica_groups=groups)
        case = random_case((1, 331, 640), options, packed=True, bias=bias, ranks=ranks)
        assert streamed_fits(case.sizes())
        plan = best_plan(case.sizes(), lnc)
        expected = case.run(lnc, plan=plan)
        world = World(ranks, lnc, "trn3", rules=STRICT)
        # it has no arguments of what it does not do
        arguments = [row[:10] for row in case.arguments(plan)]
        for a, b in zip(world.run(qkv_streamed, arguments), expected, strict=True):
            assert a.view(torch.int16).equal(b.view(torch.int16))


def test_when_the_streamed_schedule_streams() -> None:
    """As derived from the library's formulas: not with four ranks, and kept with eight."""
    four, eight = (sizes_of_call(call) for call in (WAN_CALLS[0], WAN_CALLS[3]))
    assert degree_of(four) == 1 and not weight_stays(four)
    assert degree_of(eight) == 2 and weight_stays(eight)
