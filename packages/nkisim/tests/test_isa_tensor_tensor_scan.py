"""`tensor_tensor_scan`: recurrences along the rows of two tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
    LAYOUTS,
    Array,
    assert_same,
    contents,
    empty,
    laid,
    on_core,
    refused,
    rejected,
    sample,
    stored,
    tile,
)
from reduction_tools import F32, PAIRS

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.enums import MemoryRegion
from nkisim.isa.reductions import tensor_tensor_scan
from nkisim.settings import Rules

pytestmark = pytest.mark.filterwarnings("error")

PSUM = MemoryRegion.psum


@settings(max_examples=100, deadline=None)
@given(
    op0=st.sampled_from(["multiply", "add", "subtract", "maximum", "minimum"]),
    op1=st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum"]),
    sources=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    target=st.sampled_from(DTYPES),
    layouts=st.lists(st.sampled_from(LAYOUTS), min_size=3, max_size=3),
    partitions=st.sampled_from([1, 5, 32, 50]),
    elements=st.integers(1, 30),
    reverse=st.tuples(st.booleans(), st.booleans()),
    vector=st.booleans(),
    seed=st.integers(0, 99),
)
def test_tensor_tensor_scan(
    op0: str,
    op1: str,
    sources: tuple[dtypes.DType, dtypes.DType],
    target: dtypes.DType,
    layouts: list[str],
    partitions: int,
    elements: int,
    reverse: tuple[bool, bool],
    vector: bool,
    seed: int,
) -> None:
    if layouts[1] == layouts[2] == "psum":
        layouts[2] = "plain"
    rng = np.random.default_rng(seed)
    data0 = sample(rng, (partitions, elements), sources[0], 0.5)
    data1 = sample(rng, (partitions, elements), sources[1], 0.5)
    initial = (
        sample(rng, (partitions, 1), dtypes.float32) if vector else np.full((partitions, 1), 2)
    )

    def body() -> Array:
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        tensor_tensor_scan(
            dst,
            laid(data0, sources[0], layouts[1]),
            laid(data1, sources[1], layouts[2]),
            tile(initial, dtypes.float32) if vector else 2,
            getattr(nl, op0),
            getattr(nl, op1),
            reverse0=reverse[0],
            reverse1=reverse[1],
        )
        return contents(dst)

    wanted = np.empty((partitions, elements), F32)
    with np.errstate(over="ignore", invalid="ignore"):
        for p in range(partitions):
            state = F32(initial[p, 0])
            for i in range(elements):
                x, y = F32(data0[p, i]), F32(data1[p, i])
                middle = PAIRS[op0](state, x) if reverse[0] else PAIRS[op0](x, state)
                state = PAIRS[op1](y, middle) if reverse[1] else PAIRS[op1](middle, y)
                wanted[p, i] = state
        found = on_core(body, rules=Rules(fp8_overflow="off"))
    if np.isfinite(wanted).all():
        assert_same(found, stored(wanted, target))


def test_a_scan_in_place() -> None:
    decay = sample(np.random.default_rng(9), (6, 12), dtypes.float32, 0.3)
    value = sample(np.random.default_rng(10), (6, 12), dtypes.float32)

    def body() -> Array:
        x = tile(value, dtypes.float32)
        tensor_tensor_scan(x, tile(decay, dtypes.float32), x, 0.0, nl.multiply, nl.add)
        return contents(x)

    wanted = np.empty((6, 12), F32)
    state = np.zeros(6, F32)
    for i in range(12):
        state = (decay[:, i].astype(F32) * state) + value[:, i].astype(F32)
        wanted[:, i] = state
    assert_same(on_core(body), wanted)


def test_tensor_tensor_scan_rejects() -> None:
    def call(
        op0: Any = nl.multiply, op1: Any = nl.add, initial: Any = 0.0, dst: Any = None,
        data0: Any = None, data1: Any = None,
    ) -> Any:  # fmt: skip
        def body() -> None:
            ones = np.ones((4, 6), F32)
            target = empty((4, 6)) if dst is None else dst()
            first = tile(ones) if data0 is None else data0()
            second = tile(ones) if data1 is None else data1()
            start = initial() if callable(initial) else initial
            tensor_tensor_scan(target, first, second, start, op0, op1)

        return body

    def in_psum() -> Any:
        return tile(np.ones((4, 6), F32), region=PSUM)

    rejected(call(op0=nl.bitwise_and), "op0 is bitwise_and")
    rejected(call(op1=nl.left_shift), "op1 is left_shift")
    rejected(call(op1=nl.power), "op1 is power")
    rejected(call(data0=in_psum, data1=in_psum), "data0 and data1", "PSUM")
    rejected(call(data0=lambda: tile(np.ones((4, 5), F32))), "data0 is", "[4, 5]")
    rejected(call(data1=lambda: tile(np.ones((2, 6), F32))), "data1 has 2 partitions")
    rejected(call(initial=lambda: tile(np.ones((4, 6), F32))), "initial is", "[4, 6]")
    rejected(call(initial=lambda: empty((4, 1))), "initial reads", "nothing has written")
    refused(call(initial=None), "initial is None")
    rejected(call(data0=lambda: tile(np.ones((4, 6)), dtypes.float4_e2m1fn_x4)), "data0 is float4")
