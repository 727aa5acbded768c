"""`tensor_tensor`: two tiles, element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from elementwise_tools import ARITHMETIC, F32, QUIET, counts, three_layouts
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
    Array,
    assert_near,
    assert_same,
    calling,
    contents,
    empty,
    laid,
    of,
    on_core,
    refused,
    rejected,
    sample,
    stored,
    tile,
    warned,
)

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.vector import tensor_tensor

pytestmark = pytest.mark.filterwarnings("error")

PSUM = MemoryRegion.psum


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(ARITHMETIC)),
    sources=st.tuples(*[st.sampled_from(DTYPES)] * 2),
    target=st.sampled_from(DTYPES),
    layouts=three_layouts,
    partitions=counts,
    elements=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_tensor_tensor(
    name: str,
    sources: tuple[DType, DType],
    target: DType,
    layouts: tuple[str, str, str],
    partitions: int,
    elements: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    a = sample(rng, (partitions, elements), sources[0])
    b = sample(rng, (partitions, elements), sources[1])
    if name in ("divide", "mod"):
        b = np.where(b == 0, 1.0, b)
        a, b = np.rint(a), np.maximum(np.rint(np.abs(b)), 1)
    where = "plain" if layouts[1] == layouts[2] == "psum" else layouts[1]

    def body() -> Array:
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        first, second = laid(a, sources[0], where), laid(b, sources[1], layouts[2])
        tensor_tensor(dst, first, second, getattr(nl, name), engine=Engine.vector)
        return contents(dst)

    assert_same(on_core(body, rules=QUIET), stored(ARITHMETIC[name](a, b), target))


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum", "less", "equal"]),
    kinds=st.tuples(*[st.sampled_from([dtypes.int32, dtypes.uint32])] * 2),
    seed=st.integers(0, 999),
)
def test_32_bit_integers_are_exact_on_gpsimd(
    name: str, kinds: tuple[DType, DType], seed: int
) -> None:
    source, target = kinds
    limits = np.iinfo(source.numpy)
    rng = np.random.default_rng(seed)
    a, b = rng.integers(limits.min, limits.max, (2, 3, 8), endpoint=True)
    if name in ("maximum", "minimum", "less", "equal"):
        target = source
    b[0, 0] = a[0, 0]

    def body() -> tuple[Array, Any]:
        dst = empty((3, 8), target)
        instruction = tensor_tensor(dst, tile(a, source), tile(b, source), getattr(nl, name))
        return contents(dst), instruction.engine

    found, engine = on_core(body)
    assert engine is Engine.gpsimd
    exact: dict[str, Callable[[int, int], int]] = {
        "add": int.__add__,
        "subtract": int.__sub__,
        "multiply": int.__mul__,
        "maximum": max,
        "minimum": min,
        "less": lambda x, y: int(x < y),
        "equal": lambda x, y: int(x == y),
    }
    pairs = zip(a.reshape(-1).tolist(), b.reshape(-1).tolist(), strict=True)
    wanted = np.array([exact[name](x, y) % 2**32 for x, y in pairs], np.uint32)
    assert_same(found, wanted.view(target.numpy).reshape(3, 8))


def test_32_bit_integers_on_the_vector_engine_go_through_fp32() -> None:
    def body() -> tuple[Array, Array]:
        a = tile(np.array([[(1 << 24) + 1]], np.int32))
        by_request, in_psum = empty((1, 1), dtypes.int32), empty((1, 1), dtypes.int32, PSUM)
        zero = tile(np.zeros((1, 1), np.int32))
        tensor_tensor(by_request, a, zero, nl.add, engine="vector")
        assert tensor_tensor(in_psum, a, zero, nl.add).engine is Engine.vector
        return contents(by_request), contents(in_psum)

    assert [x.item() for x in on_core(body)] == [1 << 24, 1 << 24]


def test_power_runs_on_gpsimd() -> None:
    def body() -> Array:
        dst = empty((1, 3))
        a, b = tile(np.array([[2.0, 9.0, 4.0]], F32)), tile(np.array([[3.0, 0.5, -1.0]], F32))
        assert tensor_tensor(dst, a, b, nl.power).engine is Engine.gpsimd
        return contents(dst)

    assert_near(on_core(body), np.array([[8.0, 3.0, 0.25]]))


def test_an_operand_in_psum_and_dst_in_place() -> None:
    def body() -> Array:
        t = tile(np.array([[1.0, 2.0]], F32))
        tensor_tensor(t, t, tile(np.array([[10.0, 20.0]], F32), region=PSUM), nl.add)
        return contents(t)

    assert on_core(body).tolist() == [[11, 22]]


def test_a_broadcast_view_as_operand() -> None:
    def body() -> Array:
        dst = empty((2, 3, 4))
        column = tile(np.array([[1, 2, 3], [4, 5, 6]], F32)).expand_dim(2).broadcast(2, 4)
        tensor_tensor(dst, tile(np.ones((2, 12), F32)), column, np.add)
        return contents(dst)

    assert on_core(body).tolist() == [
        [x + 1 for x in row for _ in range(4)] for row in ([1, 2, 3], [4, 5, 6])
    ]


def test_tensor_tensor_rejects() -> None:
    call = calling(
        tensor_tensor, dst=lambda: empty((4, 6)), data1=of((4, 6)), data2=of((4, 6)), op=nl.add
    )
    rejected(call(data2=of((4, 1))), "data2 is", "[4, 1]", "they must be equal")
    rejected(call(data1=of((3, 6))), "data1 has 3 partitions")
    rejected(
        call(data1=of((4, 6), region=PSUM), data2=of((4, 6), region=PSUM)),
        "data1 and data2",
        "PSUM",
    )
    rejected(call(op=nl.power, engine="vector"), "op is power", "GpSimd")
    rejected(call(op=nl.power, data1=of((4, 6), region=PSUM)), "data1 is", "PSUM")
    rejected(call(engine="gpsimd", data2=of((4, 6), region=PSUM)), "data2 is", "PSUM")
    rejected(call(engine="scalar"), "engine is engine.scalar", "vector")
    rejected(call(op=nl.bitwise_and), "dst is float32", "bitwise_and")
    ints = {"dst": lambda: empty((4, 6), dtypes.int32), "data1": of((4, 6), dtypes.int32)}
    rejected(call(op=nl.bitwise_and, **ints), "data2 is float32", "bitwise_and")
    for op in (nl.abs_, nl.invert, nl.bypass, nl.rsqrt):
        rejected(call(op=op), f"op is {op.__name__}", "one operand")
    rejected(call(op=nl.average), "op is average", "tensor_partition_reduce")
    rejected(call(op=nl.abs_max), "abs_max", "gen4", target="gen3")
    rejected(call(op=nl.exp), "op is exp", "maximum")
    rejected(call(data1=of((4, 6), dtypes.float8_e4m3fn_x4)), "data1 is float8_e4m3fn_x4")
    rejected(call(data2=lambda: empty((4, 6))), "data2 reads", "nothing has written")
    refused(call(data2=lambda: 1.0), "data2 is 1.0")
    warned(call(op=nl.divide), "op is divide, which does not compile")
