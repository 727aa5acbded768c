"""`memset`: numbers into tiles of every type and layout."""

from __future__ import annotations

import math

import numpy as np
import pytest
from elementwise_tools import F32, QUIET, counts
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
    LAYOUTS,
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
    stored,
    warned,
)

from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.vector import memset

pytestmark = pytest.mark.filterwarnings("error")

PSUM = MemoryRegion.psum


@settings(max_examples=80, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
    partitions=counts,
    elements=st.integers(1, 60),
    value=st.sampled_from([0, 1, 7, -3, 0.5, -0.25, 1e30, math.inf]),
)
def test_memset(dtype: DType, layout: str, partitions: int, elements: int, value: float) -> None:
    if dtype.is_integer:
        value = 7 if isinstance(value, float) else value

    def body() -> Array:
        dst = laid(np.ones((partitions, elements)), dtype, layout)
        assert memset(dst, value).engine is Engine.vector
        return contents(dst)

    assert_same(on_core(body, rules=QUIET), stored(np.full((partitions, elements), value), dtype))


def test_memset_of_parts() -> None:
    def body() -> Array:
        dst = empty((40, 4))
        memset(dst, value=0)
        memset(dst[32:, 1:3], np.int64(2), engine=Engine.gpsimd)
        memset(dst[0:1], True)
        return contents(dst)

    wanted = np.zeros((40, 4), F32)
    wanted[32:, 1:3] = 2
    wanted[0] = 1
    assert_same(on_core(body), wanted)


def test_memset_rejects() -> None:
    call = calling(memset, dst=lambda: empty((4, 6)), value=0)
    rejected(call(dst=lambda: empty((4, 6), dtypes.int16), value=1.0), "value is 1.0", "int16")
    rejected(
        call(dst=lambda: empty((4, 6), dtypes.float8_e5m2_x4), value=1), "value is 1", "only 0"
    )
    assert on_core(call(dst=lambda: empty((4, 6), dtypes.float8_e5m2_x4))) is not None
    refused(call(value=None), "value is None")
    refused(call(value=of((4, 1))), "value is NkiTensor")
    rejected(call(engine="scalar"), "engine is engine.scalar")
    rejected(call(engine="gpsimd", dst=lambda: empty((4, 6), region=PSUM)), "dst is", "PSUM")
    rejected(call(dst=lambda: empty((16, 6))[5:10]), "dst starts at partition 5", "0, 32, 64 or 96")
    rejected(call(dst=lambda: empty((16, 6))[0:16:2]), "dst takes every 2th partition")
    warned(
        call(dst=lambda: empty((4, 6), dtypes.float8_e4m3fn), value=1000),
        "values up to 1000 do not",
    )
