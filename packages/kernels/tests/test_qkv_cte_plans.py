"""Plans of `qkv_cte`: they change no bit, hold what is used, and load the weight once."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from qkv_cases import Case, random_case

from nkisim import TensorSpec, World
from nkisim.enums import MemoryRegion
from nkisim.trace import CoreTrace
from wantrn.kernels.qkv import Options, Plan, Sizes, best_plan, candidates, described, qkv_cte
from wantrn.kernels.qkv.buffers import plan_of
from wantrn.kernels.qkv.plan import Choice
from wantrn.kernels.qkv.slabs import slabs_of, tiles_of

# of a rank, two cores each; names of heads as in the sizes of Wan's A14B at 5120 channels
SELF_480 = ((1, 4096, 5120), Options(10, 10, replica_groups=((0, 1, 2, 3),)))
SELF_480_TP8 = ((1, 4096, 5120), Options(5, 5, replica_groups=(tuple(range(8)),)))
CROSS_Q_480 = ((1, 1024, 5120), Options(40, heads_first=True))
CROSS_Q_720 = ((1, 2364, 5120), Options(40, heads_first=True))
CROSS_K = ((1, 512, 5120), Options(40, heads_first=True))


def specs(
    shape: tuple[int, int, int], options: Options, packed: bool, rope: bool
) -> tuple[Sizes, Any]:
    """Sizes, and the arguments for a plan, without values."""
    batch, tokens, hidden = shape
    q, kv = options.heads * options.head_dim, options.kv_heads * options.head_dim
    width = q + 2 * kv
    fp32, bf16, fp8 = "float32", "bfloat16", "float8_e4m3fn"
    x = TensorSpec((batch, tokens, hidden + 4), fp8)
    weight = TensorSpec((hidden // 4, width, 4), fp8)
    if not packed:
        x, weight = TensorSpec(shape, bf16), TensorSpec((hidden, width), bf16)
    angles = TensorSpec((tokens, options.head_dim // 2), fp32) if rope else None
    k_gamma = TensorSpec((1, kv), fp32) if kv else None
    ranks = len(options.replica_groups[0]) if options.replica_groups else 1
    sizes = Sizes(
        batch * tokens, hidden, options.heads, options.kv_heads, options.head_dim, packed, 2, True,
        rope, ranks, options.heads_first,
    )  # fmt: skip

    def arguments(plan: Plan) -> tuple[Any, ...]:
        return (
            x,
            weight,
            options,
            plan,
            TensorSpec((1, width), fp32) if packed else None,
            TensorSpec((1, width), bf16),
            TensorSpec((1, q), fp32),
            k_gamma,
            angles,
            angles,
        )

    return sizes, arguments


def traced(
    shape: tuple[int, int, int], options: Options, rope: bool
) -> tuple[Plan, list[CoreTrace]]:
    """The best plan of packed operands, and what both cores of the first rank do with it."""
    sizes, arguments = specs(shape, options, True, rope)
    plan = best_plan(sizes, 2)
    world = World(sizes.ranks, 2, "trn3", numerics=False)
    _, trace = world.launch(qkv_cte, [arguments(plan)] * sizes.ranks, fits=False)
    return plan, list(trace.cores[:2])


def weight_bytes(core: CoreTrace) -> int:
    """Bytes that a core reads of the weight."""
    return sum(
        instruction.reads[0].bytes
        for instruction in core.instructions
        if instruction.op == "dma_copy" and instruction.reads[0].place.name == "weight"
    )


# Bits


def cases() -> list[Case]:
    wide = Options(9, 9, 128, heads_first=True)
    return [
        random_case((1, 300, 128), wide, packed=True),
        random_case((2, 200, 256), Options(9, 0, 128), rope=False),
        random_case((1, 290, 128), Options(9, 2, 128, replica_groups=((0, 1),)), ranks=2),
        random_case((1, 290, 128), Options(9, 2, 128, heads_first=True), norm=False, rope=False),
    ]


@pytest.mark.parametrize("number", range(4))
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
            assert a.view(torch.int16).equal(b.view(torch.int16)), plan.choice


@pytest.mark.parametrize("lnc", [1, 2])
def test_no_number_of_cores_changes_a_bit(lnc: int) -> None:
    case = cases()[0]
    (expected,) = case.run(lnc=1)
    (found,) = case.run(lnc=lnc)
    assert found.view(torch.int16).equal(expected.view(torch.int16))


# Memory


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("heads", [(9, 9), (9, 0)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_buffers_are_those_of_the_plan(
    packed: bool, rope: bool, heads: tuple[int, int], ranks: int
) -> None:
    groups = (tuple(range(ranks)),) if ranks > 1 else ()
    options = Options(*heads, 128, replica_groups=groups, heads_first=ranks == 1)
    sizes, arguments = specs((1, 700, 512), options, packed, rope)
    found = candidates(sizes)
    for candidate in found[:: max(len(found) // 6, 1)]:
        plan = candidate.plan
        world = World(ranks, 1, "trn3", numerics=False)
        _, trace = world.launch(qkv_cte, [arguments(plan)] * ranks)
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
            buffer = plan.buffer(place.name.rpartition("_")[0])
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
    sizes, _ = specs(*SELF_480, True, True)
    for candidate in candidates(sizes, 2):
        buffers = candidate.plan.buffers
        assert candidate.plan.sbuf_bytes() <= candidate.plan.sbuf_limit
        for a, b in itertools.combinations(buffers, 2):
            apart = a.end() <= b.address or b.end() <= a.address
            assert apart or a.last < b.first or b.last < a.first, (a, b)


def test_a_plan_that_does_not_fit_cannot_be_made() -> None:
    sizes, _ = specs(*SELF_480, True, True)
    plan = best_plan(sizes, 2)
    with pytest.raises(ValueError, match=r"take \d+ bytes of each partition; SBUF has 200000"):
        dataclasses.replace(plan, sbuf_limit=200_000)
    with pytest.raises(ValueError, match="SBUF has 245752"):
        plan_of(sizes, Choice(6, 16, True, 2), 16, 245_752)
    with pytest.raises(ValueError, match="no plan for .* fits into SBUF of gen4"):
        best_plan(dataclasses.replace(sizes, hidden=128 * 512), 2)


# The weight is loaded once


@pytest.mark.parametrize(
    ("call", "rope"),
    [(SELF_480, True), (SELF_480_TP8, True), (CROSS_Q_480, False), (CROSS_K, False)],
)
def test_each_tile_of_the_weight_is_loaded_once(call: Any, rope: bool) -> None:
    plan, cores = traced(call[0], call[1], rope)
    for core in cores:
        assert weight_bytes(core) == 5120 * plan.sizes.width()


@pytest.mark.parametrize("call", [SELF_480, CROSS_Q_720])
def test_bf16_weights_are_loaded_once_too(call: Any) -> None:
    (shape, options) = call
    sizes, _ = specs(shape, options, False, True)
    for candidate in candidates(sizes, 2):
        assert candidate.price.weight_loads == 5120 / 128


def test_the_choice_can_be_read() -> None:
    sizes, _ = specs(*SELF_480, True, True)
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
