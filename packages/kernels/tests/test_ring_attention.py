"""Rings of 1 to 8 ranks, by a bound and with running maxima, against attention over all keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ring_support import (
    assert_as_good_as_torch,
    exact,
    launched,
    qkv,
    rank_input,
    sample,
    sharded,
    whole,
)

import nkisim
from wantrn.kernels.ring import (
    RingOptions,
    ring_attention,
    ring_attention_online,
)
from wantrn.kernels.ring.plan import RingShape, passes, plan_ring

KERNELS = [ring_attention, ring_attention_online]


@pytest.mark.parametrize("kernel", KERNELS)
@settings(max_examples=25, deadline=None)
@given(
    ranks=st.sampled_from([1, 2, 3, 4, 8]),
    length=st.sampled_from([1, 2, 5, 127, 129, 200, 401, 777, 1023]),
    heads=st.integers(1, 3),
    lnc=st.sampled_from([1, 2]),
    prefetch=st.integers(1, 8),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    target=st.sampled_from(["trn2", "trn3"]),
)
def test_a_ring_is_attention_over_all_keys(
    kernel: Any, ranks: int, length: int, heads: int, lnc: int, prefetch: int,
    dtype: torch.dtype, target: str,
) -> None:  # fmt: skip
    inputs = [sample((1, length, heads, 16), dtype, seed) for seed in range(3)]
    shards = sharded(inputs, ranks, prefetch=prefetch)
    results = launched(kernel, shards, lnc, target)
    out = whole([result[0] for result in results], length)
    expected, _ = exact(inputs, 0.25)
    assert_as_good_as_torch(out, expected, inputs)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("lnc", [1, 2])
def test_bits_do_not_depend_on_the_prefetch(kernel: Any, lnc: int) -> None:
    inputs = qkv(1001, 3, 32)
    found = []
    for prefetch in (1, 2, 3, 7):
        results = launched(kernel, sharded(inputs, 8, prefetch=prefetch, lse=True), lnc)
        found.append([torch.as_tensor(part) for result in results for part in result])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert torch.equal(torch.nan_to_num(one), torch.nan_to_num(two))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_permutes_are_under_way_before_they_are_needed(kernel: Any, prefetch: int) -> None:
    """Those of the first steps before the first exponential; none beyond the last step."""
    ranks = 4
    world = nkisim.World(ranks, 2, trace=True)
    inputs = [(s.q, s.k, s.v, s.options) for s in sharded(qkv(64, 2, 8), ranks, prefetch=prefetch)]
    _, trace = world.launch(kernel, inputs)
    for core in trace.cores:
        ops = [instruction.op for instruction in core.instructions]
        assert ops.count("collective_permute_implicit") == 2 * (ranks - 1)
        # the first step reads its own shard, which nobody sent
        loads = [
            i
            for i, instruction in enumerate(core.instructions)
            if instruction.op == "dma_copy" and instruction.reads[0].place.name == "ring_keys_0_0"
        ]
        before = ops[: loads[0]].count("collective_permute_implicit")
        assert before == 2 * min(prefetch, ranks - 1)
        assert ops.count("all_reduce") == (1 if kernel is ring_attention else 0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("lnc", "heads"), [(1, 2), (2, 3)])
def test_the_logarithm_of_the_sum(kernel: Any, lnc: int, heads: int) -> None:
    inputs = qkv(1234, heads, 64, batch=2)
    results = launched(kernel, sharded(inputs, 3, lse=True), lnc)
    expected, logs = exact(inputs, 0.125)
    assert_as_good_as_torch(whole([r[0] for r in results], 1234), expected, inputs)
    lse = whole([r[-1] for r in results], 1234, 2)
    torch.testing.assert_close(lse.double(), logs, rtol=2.0**-8, atol=2.0**-8)


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_group_of_ranks_is_a_ring(kernel: Any) -> None:
    """Ranks 0, 2, 4 and 1, 3, 5: the rings beside each other of another axis."""
    rings = [qkv(150, 2, 32, seed) for seed in (1, 2)]
    groups = ((0, 2, 4), (1, 3, 5))
    shards: list[Any] = [None] * 6
    for group, inputs in zip(groups, rings, strict=True):
        for rank, shard in zip(group, sharded(inputs, 3, groups=groups), strict=True):
            shards[rank] = shard
    results = launched(kernel, shards, 2)
    for group, inputs in zip(groups, rings, strict=True):
        expected, _ = exact(inputs, 32**-0.5)
        out = whole([results[rank][0] for rank in group], 150)
        assert_as_good_as_torch(out, expected, inputs)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("lnc", [1, 2])
def test_a_whole_tile_of_padding(kernel: Any, lnc: int) -> None:
    """Shards of 257 of which the last rank has 2: its last tiles have no real key."""
    inputs = qkv(3 * 257 + 2, 2, 32)
    pieces = [torch.cat([x, torch.zeros(1, 255, 2, 32, dtype=x.dtype)], 1) for x in inputs]
    shards = [
        rank_input(
            [x[:, 257 * rank : 257 * (rank + 1)] for x in pieces],
            RingOptions(ranks=4, valid=257 if rank < 3 else 2, common=2),
        )
        for rank in range(4)
    ]
    results = launched(kernel, shards, lnc)
    expected, _ = exact(inputs, 32**-0.5)
    assert_as_good_as_torch(whole([r[0] for r in results], 3 * 257 + 2), expected, inputs)


@pytest.mark.parametrize("kernel", KERNELS)
def test_padding_does_not_set_the_maximum(kernel: Any) -> None:
    """All scores are near -50: a padded key, with a score of zero, would be far above them."""
    q, k, v = qkv(130, 1, 32)
    q[:] = 3.0
    k[:] = -3.0 + 0.01 * k
    shards = sharded([q, k, v], 4)
    results = launched(kernel, shards, 1)
    expected, _ = exact([q, k, v], 32**-0.5)
    if kernel is ring_attention_online:
        assert_as_good_as_torch(whole([r[0] for r in results], 130), expected, [q, k, v])
    else:
        # the bound is 100 above the scores, and the sums say so
        assert max(float(torch.as_tensor(r[1]).min()) for r in results) < 2.0**-100


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("ranks", "lnc"), [(1, 2), (3, 1), (4, 2)])
def test_centred_keys_are_the_same_softmax(kernel: Any, ranks: int, lnc: int) -> None:
    inputs = [sample((1, 301, 3, 32), torch.float32, seed) for seed in range(3)]
    inputs[1] += 1.0
    results = launched(kernel, sharded(inputs, ranks, centre=True), lnc)
    expected, _ = exact(inputs, 32**-0.5)
    assert_as_good_as_torch(whole([r[0] for r in results], 301), expected, inputs)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("lnc", [1, 2])
def test_several_passes_round_the_ring(kernel: Any, lnc: int) -> None:
    """Sums of 375 heads do not fit into the SBUF of a core of Trainium2 at once."""
    inputs = qkv(2, 375 * lnc, 128)
    shape = RingShape(375 * lnc, 128, 1, 1, 2, 2, lnc)
    assert passes(plan_ring(shape, 212984, False)) == 2
    results = launched(kernel, sharded(inputs, 2), lnc, "trn2")
    expected, _ = exact(inputs, 128**-0.5)
    assert_as_good_as_torch(whole([r[0] for r in results], 2), expected, inputs)
