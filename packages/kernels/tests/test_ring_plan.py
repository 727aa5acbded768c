"""The plan of a ring: what is in SBUF, who does what, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkisim
from nkisim.enums import NcVersion
from wantrn.kernels.ring import (
    RingOptions,
    refusal,
    ring_attention,
    ring_attention_online,
    shares,
)
from wantrn.kernels.ring.division import divide, runs
from wantrn.kernels.ring.plan import RingPlan, RingShape, passes, plan_ring

TRN3 = 245752


@given(
    heads=st.integers(1, 40),
    queries=st.integers(1, 40000),
    keys=st.integers(1, 40000),
    dim=st.integers(1, 128),
    item=st.sampled_from([2, 4]),
    ranks=st.integers(1, 8),
    cores=st.sampled_from([1, 2]),
)
def test_each_query_of_each_head_is_one_cores(
    heads: int, queries: int, keys: int, dim: int, item: int, ranks: int, cores: int
) -> None:
    shape = RingShape(heads, dim, queries, keys, item, ranks, cores)
    plan = plan_ring(shape, TRN3, True)
    divided = [divide(plan, core) for core in range(cores)]
    assert all(len(work) == passes(plan) for work in divided)
    seen = []
    for core in divided:
        for one, other in zip(core, divided[0], strict=True):
            assert one.heads == other.heads
            places = [unit.resident + unit.groups for unit in one.units]
            assert ranks == 1 or max(places, default=0) <= plan.resident_groups
            for unit in one.units:
                assert one.heads[unit.slot] == unit.head
                seen += [(unit.head, unit.first + i) for i in range(unit.groups)]
    groups = shape.query_groups()
    assert sorted(seen) == [(head, group) for head in range(heads) for group in range(groups)]
    for number in range(passes(plan)):
        prepared = [pair for core in divided for pair in core[number].prepared]
        assert sorted(prepared) == list(enumerate(divided[0][number].heads))


@given(st.sets(st.integers(0, 59), min_size=1), st.integers(1, 20))
def test_runs_are_neighbours_of_one_batch_entry(members: set[int], heads: int) -> None:
    pairs = list(enumerate(sorted(members)))
    found = runs(pairs, heads)
    assert all(run.first + run.count <= heads and run.count <= 8 for run in found)
    assert pairs == [
        (run.slot + i, run.batch * heads + run.first + i) for run in found for i in range(run.count)
    ]


@given(st.integers(1, 10000), st.integers(1, 64))
def test_shares_are_all_of_a_sequence(total: int, ranks: int) -> None:
    length, valid = shares(total, ranks)
    assert sum(valid) == total and len(valid) == ranks
    assert list(valid) == sorted(valid, reverse=True) and valid[0] == length
    assert sum(0 < n < length for n in valid) <= 1


def planned(heads: int, tokens: int, ranks: int, item: int = 2) -> RingPlan:
    return plan_ring(RingShape(heads, 128, tokens, tokens, item, ranks, 2), TRN3, True)


@pytest.mark.parametrize(
    ("kernel", "heads", "tokens", "dtype"),
    [
        (ring_attention, 10, 4095, "bfloat16"),
        (ring_attention_online, 2, 9450, "bfloat16"),
        (ring_attention, 5, 1100, "float32"),
        (ring_attention_online, 5, 1100, "float32"),
        (ring_attention, 64, 100, "bfloat16"),
        (ring_attention_online, 64, 100, "bfloat16"),
    ],
)
def test_the_simulator_needs_no_more_sbuf_than_planned(
    kernel: Any, heads: int, tokens: int, dtype: str
) -> None:
    x = nkisim.TensorSpec((1, tokens, heads, 128), dtype)
    # steps repeat each other; the last pair of them has all that there is
    world = nkisim.World(2, 2, "trn3", numerics=False, trace=True)
    inputs = [(x, x, x, RingOptions(ranks=2, lse=True))] * 2
    found = world.profile(kernel, inputs).json()
    plan = planned(heads, tokens, 2, 4 if dtype == "float32" else 2)
    assert found["sbuf_peak_bytes"] <= plan.sbuf_bytes() <= TRN3
    assert found["psum_peak_bytes"] <= found["psum_limit_bytes"]


def test_what_wan_runs_fits_in_one_pass() -> None:
    """480p and 720p at TP4 x CP8: the sums of five heads of a core stay in SBUF."""
    for tokens in (4095, 9450):
        plan = planned(10, tokens, 8)
        assert passes(plan) == 1
        assert plan.sbuf_bytes() <= TRN3
        x = (1, tokens, 10, 128)
        assert refusal((x, x, x), ("bfloat16",) * 3, RingOptions(ranks=8)) is None


def test_trainium2_takes_more_passes_for_720p() -> None:
    plan = plan_ring(RingShape(10, 128, 9450, 9450, 2, 8, 2), 212984, False)
    assert passes(plan) == 2 and plan.sbuf_bytes() <= 212984


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"target": NcVersion.gen2}, "the target is gen2"),
        ({"lnc": 3}, "lnc is 3"),
        ({"dtypes": ("float16",) * 3}, "q, k and v are float16"),
        ({"dtypes": ("bfloat16", "float32", "float32")}, "all must be bfloat16"),
        ({"shapes": ((1, 4, 2, 256),) * 3}, "D at most 128"),
        ({"shapes": ((1, 100000, 1, 128),) * 3}, "bytes of SBUF per partition"),
    ],
)
def test_the_reason_why_not(change: dict[str, Any], text: str) -> None:
    given = {"shapes": ((1, 4, 2, 128),) * 3, "dtypes": ("bfloat16",) * 3}
    reason = refusal(**{**given, "options": RingOptions(ranks=2), **change})
    assert reason is not None and text in reason


def test_one_rank_holds_no_sums_and_takes_any_length() -> None:
    shapes = ((1, 100000, 1, 128),) * 3
    assert refusal(shapes, ("bfloat16",) * 3, RingOptions()) is None
