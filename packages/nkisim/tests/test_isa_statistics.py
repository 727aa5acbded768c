from __future__ import annotations

import statistics as python_statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
    FLOATS,
    LAYOUTS,
    Array,
    assert_near,
    contents,
    core,
    empty,
    laid,
    on_core,
    rejected,
    sample,
    tile,
)

from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.statistics import bn_aggr, bn_stats

pytestmark = pytest.mark.filterwarnings("error")

F32 = np.float32


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    partitions=st.sampled_from([1, 3, 32, 40]),
    elements=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_bn_stats(
    dtype: DType, layouts: tuple[str, str], partitions: int, elements: int, seed: int
) -> None:
    data = sample(np.random.default_rng(seed), (partitions, elements), dtype)

    def body() -> Array:
        dst = laid(np.zeros((partitions, 6)), dtypes.float32, layouts[0])
        assert bn_stats(dst, laid(data, dtype, layouts[1])).engine is Engine.vector
        return contents(dst)

    wanted = np.zeros((partitions, 6))
    for p, row in enumerate(data.tolist()):
        for k, half in enumerate((row[0::2], row[1::2])):
            if half:
                mean = python_statistics.fmean(half)
                squares = sum((x - mean) ** 2 for x in half)
                wanted[p, 3 * k : 3 * k + 3] = len(half), mean, squares
    assert_near(on_core(body), wanted, 1e-5, 1e-4)


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(FLOATS[:3]),
    partitions=st.sampled_from([1, 32, 128]),
    lengths=st.lists(st.integers(1, 512), min_size=1, max_size=4),
    shift=st.sampled_from([0.0, 100.0]),
    seed=st.integers(0, 99),
)
def test_bn_aggr_of_bn_stats_is_mean_and_variance(
    dtype: DType, partitions: int, lengths: list[int], shift: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    data = sample(rng, (partitions, sum(lengths)), dtypes.float32) + shift
    data = data.astype(dtype.numpy).astype(np.float64)

    def body() -> Array:
        source = tile(data, dtype)
        stats = empty((partitions, len(lengths), 6))
        begin = 0
        for k, length in enumerate(lengths):
            bn_stats(stats[:, k, :], source[:, begin : begin + length])
            begin += length
        dst = empty((partitions, 2))
        bn_aggr(dst, stats)
        return contents(dst)

    wanted = np.stack([data.mean(1), data.var(1)], 1)
    assert_near(on_core(body), wanted, 1e-5, 1e-4)


def test_results_in_a_narrow_type_and_in_psum() -> None:
    def body() -> tuple[Array, Array]:
        data = tile(np.arange(8, dtype=np.int16)[None])
        stats = empty((1, 6), dtypes.bfloat16, MemoryRegion.psum)
        bn_stats(stats, data)
        dst = empty((1, 2), dtypes.float16)
        bn_aggr(dst, stats)
        return contents(stats), contents(dst)

    stats, dst = on_core(body)
    assert stats.tolist() == [[4, 3, 20, 4, 4, 20]]
    assert dst.tolist() == [[3.5, 5.25]]


def test_statistics_in_place() -> None:
    def body() -> Array:
        t = tile(np.array([[1, 2, 3, 4, 5, 6]], F32))
        bn_stats(t, t)
        bn_aggr(t[:, 4:6], t)
        return contents(t)

    found = on_core(body)[0]
    assert found[:4].tolist() == [3, 3, 8, 3]
    assert_near(found[None, 4:], np.array([[3.5, 35 / 12]]))


def test_statistics_reject() -> None:
    def call(function: Any, dst: tuple[int, ...], data: tuple[int, ...], dtype: Any = None) -> Any:
        def body() -> None:
            function(empty(dst), tile(np.ones(data), dtype or dtypes.float32))

        return body

    rejected(call(bn_stats, (4, 6), (4, 513)), "data is", "513 elements", "512")
    rejected(call(bn_stats, (4, 6), (4, 3, 200)), "data is", "600 elements")
    rejected(call(bn_stats, (4, 5), (4, 16)), "dst is", "[4, 5]", "6 elements")
    rejected(call(bn_stats, (3, 6), (4, 16)), "dst is", "[3, 6]", "4 partitions")
    rejected(call(bn_aggr, (4, 2), (4, 7)), "data is", "7 elements", "multiple of 3")
    rejected(call(bn_aggr, (4, 6), (4, 6)), "dst is", "[4, 6]", "2 elements")
    rejected(call(bn_aggr, (2, 2), (4, 6)), "dst is", "[2, 2]")
    packed = dtypes.float8_e4m3fn_x4
    rejected(call(bn_stats, (4, 6), (4, 16), packed), f"data is {packed}")
    rejected(call(bn_aggr, (4, 2), (4, 6), packed), f"data is {packed}")
    rejected(lambda: bn_stats(empty((4, 6)), empty((4, 9))), "data reads", "nothing has written")
    rejected(
        lambda: bn_stats(empty((4, 6), address=(3, 0)), tile(np.ones((4, 9), F32))),
        "dst starts at partition 3",
    )


def test_512_elements_are_allowed_and_shapes_are_enough() -> None:
    def body() -> list[str]:
        data, stats, dst = empty((128, 512)), empty((128, 6)), empty((128, 2))
        data.storage.coverage.full = True
        bn_stats(stats, data)
        bn_aggr(dst, stats)
        return [i.op for i in core().trace]

    assert on_core(body, numerics=False) == ["bn_stats", "bn_aggr"]
