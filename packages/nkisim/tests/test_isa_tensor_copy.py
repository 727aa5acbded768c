"""`tensor_copy`: every type into every other, in every layout, on each engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from elementwise_tools import F32, QUIET, counts, two_layouts
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
    INTEGERS,
    Array,
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
from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.vector import tensor_copy

pytestmark = pytest.mark.filterwarnings("error")

PSUM = MemoryRegion.psum


@settings(max_examples=120, deadline=None)
@given(
    source=st.sampled_from(DTYPES),
    target=st.sampled_from(DTYPES),
    layouts=two_layouts,
    partitions=counts,
    elements=st.integers(1, 60),
    engine=st.sampled_from(["unknown", "vector", "scalar", "gpsimd"]),
    seed=st.integers(0, 99),
)
def test_tensor_copy(
    source: DType,
    target: DType,
    layouts: tuple[str, str],
    partitions: int,
    elements: int,
    engine: str,
    seed: int,
) -> None:
    if engine == "gpsimd":
        layouts = tuple("plain" if layout == "psum" else layout for layout in layouts)  # type: ignore[assignment]
    data = sample(np.random.default_rng(seed), (partitions, elements), source, 100.0)

    def body() -> tuple[Array, Any]:
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        instruction = tensor_copy(dst, laid(data, source, layouts[1]), engine)
        return contents(dst), instruction.engine

    found, used = on_core(body, rules=QUIET)
    assert_same(found, stored(data, target))
    assert used.name == ("vector" if engine == "unknown" else engine)


@pytest.mark.parametrize("dtype", [*INTEGERS, dtypes.float32], ids=str)
def test_copies_of_one_type_keep_every_bit(dtype: DType) -> None:
    raw = np.random.default_rng(3).integers(0, 256, (8, 5 * dtype.itemsize), np.uint8)

    def body() -> Array:
        dst = empty((8, 5), dtype)
        tensor_copy(dst, tile(raw).view(dtype))
        return contents(dst.view(dtypes.uint8))

    assert_same(on_core(body), raw)


@pytest.mark.parametrize(
    ("values", "dtype", "wanted"),
    [
        ([0.5, 1.5, 2.5, -0.5, -1.5, 300, -300], dtypes.int8, [0, 2, 2, 0, -2, 127, -128]),
        ([0.5, 254.5, 255.5, 1e9, -1, math.nan], dtypes.uint8, [0, 254, 255, 255, 0, 0]),
        ([65535.5, 65534.5, math.inf, -math.inf], dtypes.uint16, [65535, 65534, 65535, 0]),
        ([3e9, -3e9, 16777217], dtypes.int32, [2**31 - 1, -(2**31), 16777216]),
        ([5e9, -1.0], dtypes.uint32, [2**32 - 1, 0]),
    ],
)
def test_floats_become_integers_by_rounding_and_saturation(
    values: list[float], dtype: DType, wanted: list[int]
) -> None:
    def body() -> Array:
        dst = empty((1, len(values)), dtype)
        tensor_copy(dst, tile(np.array([values], F32)))
        return contents(dst)

    assert on_core(body).tolist() == [wanted]


def test_integers_lose_bits_on_their_way_through_fp32() -> None:
    def body() -> Array:
        dst = empty((1, 2), dtypes.uint32)
        tensor_copy(dst, tile(np.array([[(1 << 24) + 1, 5]], np.int32)))
        return contents(dst)

    assert on_core(body).tolist() == [[1 << 24, 5]]


def test_an_overlapping_copy_reads_first() -> None:
    def body() -> Array:
        t = tile(np.arange(10, dtype=F32)[None])
        tensor_copy(t[:, 1:], t[:, :-1])
        return contents(t)

    assert on_core(body).tolist() == [[0, 0, 1, 2, 3, 4, 5, 6, 7, 8]]


def test_a_narrow_type_that_is_too_narrow() -> None:
    def body() -> Array:
        dst = empty((1, 2), dtypes.float8_e4m3)
        tensor_copy(dst, tile(np.array([[1.0, 500.0]], F32)))
        return contents(dst)

    found = warned(body, "values up to 500 do not fit dst")
    assert found.astype(F32).tolist() == [[1.0, math.inf]]


def test_tensor_copy_rejects() -> None:
    call = calling(tensor_copy, dst=lambda: empty((4, 6)), src=of((4, 6)))
    rejected(call(src=of((4, 5))), "src is", "[4, 5]", "dst")
    rejected(call(src=of((3, 6))), "src has 3 partitions")
    rejected(call(engine=Engine.scalar), "Scalar engine", "gen3", target="gen2")
    rejected(call(engine=Engine.tensor), "engine is engine.tensor", "gpsimd", "vector")
    rejected(call(engine="gpsimd", src=of((4, 6), region=PSUM)), "src is", "PSUM", "GpSimd")
    rejected(call(engine="gpsimd", dst=lambda: empty((4, 6), region=PSUM)), "dst is", "PSUM")
    refused(call(engine=5), "engine is 5")
    refused(call(src=lambda: 1.0), "src is 1.0")
    rejected(call(src=lambda: empty((4, 6))), "src reads", "nothing has written")
    x4 = dtypes.float8_e4m3fn_x4
    rejected(call(src=of((4, 6), x4)), "dst is float32", f"src {x4}")
    assert on_core(call(dst=lambda: empty((4, 6), x4), src=of((4, 6), x4))) is not None
    rejected(call(dst=lambda: empty((33, 6), address=(32, 0)), src=of((33, 6))), "dst starts", "64")
    rejected(call(dst=lambda: empty((65, 6), address=(63, 0)), src=of((65, 6))), "dst starts")
