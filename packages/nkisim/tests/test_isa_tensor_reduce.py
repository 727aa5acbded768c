"""`tensor_reduce`: operators over the last dimensions of a tile."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
    FLOATS,
    INTEGERS,
    LAYOUTS,
    Array,
    assert_near,
    assert_same,
    contents,
    core,
    empty,
    laid,
    on_core,
    refused,
    rejected,
    sample,
    tile,
)
from reduction_tools import F32, PAIRS, rows_in_double

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.reductions import tensor_reduce
from nkisim.settings import Rules

pytestmark = pytest.mark.filterwarnings("error")

PSUM = MemoryRegion.psum


@settings(max_examples=120, deadline=None)
@given(
    op=st.sampled_from(sorted(PAIRS)),
    source=st.sampled_from(DTYPES),
    target=st.sampled_from(FLOATS[:3] + INTEGERS),
    partitions=st.sampled_from([1, 2, 31, 32, 64, 128]),
    free=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    kept=st.integers(0, 3),
    negate=st.booleans(),
    psum=st.booleans(),
    seed=st.integers(0, 99),
)
def test_tensor_reduce(
    op: str,
    source: dtypes.DType,
    target: dtypes.DType,
    partitions: int,
    free: list[int],
    kept: int,
    negate: bool,
    psum: bool,
    seed: int,
) -> None:
    kept = min(kept, len(free) - 1)
    scale = 1.0 if op == "multiply" else 3.0
    shape = (partitions, *free)
    data = sample(np.random.default_rng(seed), shape, source, scale)
    if op == "multiply":
        # a product of thousands stays finite
        data = np.clip(data, -1, 1)
    # 4 KiB of a partition's 16 for each of the two
    region = PSUM if psum and math.prod(free) <= 1024 else MemoryRegion.sbuf
    axes = list(range(1 + kept, len(shape)))

    def body() -> Array:
        dst = empty((partitions, *free[:kept]), target, region)
        tensor_reduce(dst, getattr(nl, op), tile(data, source, region), axes, negate=negate)
        return contents(dst)

    rows = data.reshape(partitions, math.prod(free[:kept]), -1)
    wanted = rows_in_double(op, rows) * (-1 if negate else 1)
    limit = np.abs(rows).sum(-1).max() if op in ("add", "subtract") else 1.0
    assert_near(on_core(body), wanted, 1e-5, 1e-6 * max(float(limit), 1.0))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensor_reduce_reads_every_layout(layout: str, dtype: dtypes.DType) -> None:
    data = sample(np.random.default_rng(1), (32, 60), dtype)

    def body() -> Array:
        dst = empty((32, 1))
        view = laid(data, dtype, layout)
        tensor_reduce(dst, nl.maximum, view, list(range(1, view.ndim)))
        return contents(dst)

    assert_same(on_core(body), data.max(1, keepdims=True).astype(F32))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bit_reductions_keep_all_bits(op: str, dtype: dtypes.DType) -> None:
    limits = np.iinfo(dtype.numpy)
    data = np.random.default_rng(2).integers(limits.min, limits.max, (5, 3, 7), endpoint=True)
    data[0] |= limits.max

    def body() -> Array:
        dst = empty((5, 3), dtype)
        tensor_reduce(dst, getattr(nl, op), tile(data, dtype), axis=-1)
        return contents(dst)

    combine = {"bitwise_and": int.__and__, "bitwise_or": int.__or__, "bitwise_xor": int.__xor__}[op]
    wanted = [[list(itertools.accumulate(row, combine))[-1] for row in p] for p in data.tolist()]
    assert_same(on_core(body), np.array(wanted).astype(dtype.numpy))


@pytest.mark.parametrize("axis", [2, -1, [2], (2,), [-1], np.int64(2), [np.int32(2)]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_axis_in_every_form(axis: Any, keepdims: bool) -> None:
    data = sample(np.random.default_rng(3), (4, 5, 6), dtypes.float32)

    def body() -> Array:
        dst = empty((4, 5, 1) if keepdims else (4, 5))
        tensor_reduce(dst, nl.minimum, tile(data, dtypes.float32), axis, keepdims=keepdims)
        return contents(dst)

    assert_same(on_core(body), data.min(2).astype(F32))


@pytest.mark.parametrize("axis", [[1, 2], (2, 1), [-2, -1], [1, -1]])
def test_axes_in_any_order(axis: Any) -> None:
    data = sample(np.random.default_rng(4), (3, 5, 6), dtypes.float32)

    def body() -> Array:
        dst = empty((3, 1))
        tensor_reduce(dst, np.maximum, tile(data, dtypes.float32), axis)
        return contents(dst)

    assert_same(on_core(body), data.max((1, 2))[:, None].astype(F32))


@pytest.mark.parametrize("op", [nl.max_, nl.maximum, np.maximum, "maximum", "max", max])
def test_names_of_an_operator(op: Any) -> None:
    data = sample(np.random.default_rng(5), (3, 9), dtypes.float32)

    def body() -> Array:
        dst = empty((3, 1))
        instruction = tensor_reduce(dst, op, tile(data, dtypes.float32), 1)
        assert instruction.details == {"op0": "maximum"} and instruction.engine is Engine.vector
        return contents(dst)

    assert_same(on_core(body), data.max(1, keepdims=True).astype(F32))


def test_a_broadcast_view_counts_each_time() -> None:
    def body() -> Array:
        dst = empty((2, 1))
        view = tile(np.array([[1.5], [-2.0]], F32)).broadcast(1, 100)
        tensor_reduce(dst, nl.sum_, view, 1)
        return contents(dst)

    assert_same(on_core(body), np.array([[150.0], [-200.0]], F32))


def test_dst_may_be_part_of_data() -> None:
    data = sample(np.random.default_rng(6), (8, 16), dtypes.float32)

    def body() -> Array:
        tensor = tile(data, dtypes.float32)
        tensor_reduce(tensor[:, 3:4], nl.maximum, tensor, 1)
        return contents(tensor)

    wanted = data.astype(F32)
    wanted[:, 3] = data.max(1)
    assert_same(on_core(body), wanted)


def test_tensor_reduce_rejects() -> None:
    def call(
        op: Any = nl.add, axis: Any = 1, dst: Any = None, data: Any = None, **more: Any
    ) -> Any:
        def body() -> None:
            target = empty((4, 1)) if dst is None else dst()
            source = tile(np.ones((4, 6), F32)) if data is None else data()
            tensor_reduce(target, op, source, axis, **more)

        return body

    def deep() -> Any:
        return tile(np.ones((4, 2, 3), F32))

    rejected(call(axis=0), "axis is 0", "last dimensions")
    rejected(call(axis=[0, 1]), "axis is [0, 1]", "not dimension 0")
    rejected(call(axis=[]), "axis is []")
    rejected(call(axis=2), "axis is 2")
    rejected(call(axis=[1, 1]), "axis is [1, 1]")
    rejected(call(axis=1, data=deep), "axis is 1")
    refused(call(axis="1"), "axis is '1'")
    refused(call(axis=1.0), "axis is 1.0")
    rejected(call(dst=lambda: empty((4, 2))), "dst is", "[4, 2]", "partitions of 1 elements")
    rejected(call(dst=lambda: empty((3, 1))), "dst is", "[3, 1]", "4 partitions")
    rejected(call(op=nl.divide), "op is divide", rules=Rules(unsupported="off"))
    for op in (nl.abs_max, nl.less, nl.bypass, nl.power, nl.left_shift):
        rejected(call(op=op), f"op is {op.__name__}", "add")
    rejected(call(op=nl.average), "op is average", "tensor_partition_reduce")
    rejected(call(op="sine"), "op is 'sine'")
    rejected(call(op=nl.bitwise_or), "dst is float32", "bitwise_or")
    rejected(
        call(op=nl.bitwise_or, dst=lambda: empty((4, 1), dtypes.int32)),
        "data is float32",
        "bitwise_or",
    )
    rejected(
        call(
            op=nl.bitwise_or,
            dst=lambda: empty((4, 1), dtypes.int32),
            data=lambda: tile(np.ones((4, 6), np.int32)),
            negate=True,
        ),
        "negate is True",
        "bitwise_or",
    )
    rejected(call(data=lambda: empty((4, 6))), "data reads", "nothing has written")
    rejected(
        call(data=lambda: tile(np.ones((4, 6)), dtypes.float8_e4m3fn_x4)),
        "data is float8_e4m3fn_x4",
    )
    rejected(
        call(data=lambda: core().allocate((4, 6), dtypes.float32, MemoryRegion.private_hbm)),
        "data is",
        "PSUM or SBUF",
    )
    refused(call(data=lambda: np.ones((4, 6))), "data is array")
