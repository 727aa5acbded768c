"""`reciprocal` of every type and layout."""

from __future__ import annotations

import math

import numpy as np
import pytest
from elementwise_tools import F32, QUIET, counts, two_layouts
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
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
)

from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import Engine
from nkisim.isa.vector import reciprocal

pytestmark = pytest.mark.filterwarnings("error")


@settings(max_examples=60, deadline=None)
@given(
    source=st.sampled_from(DTYPES),
    target=st.sampled_from(DTYPES),
    layouts=two_layouts,
    partitions=counts,
    elements=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_reciprocal(
    source: DType,
    target: DType,
    layouts: tuple[str, str],
    partitions: int,
    elements: int,
    seed: int,
) -> None:
    data = sample(np.random.default_rng(seed), (partitions, elements), source)

    def body() -> Array:
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        assert reciprocal(dst, laid(data, source, layouts[1])).engine is Engine.vector
        return contents(dst)

    with np.errstate(divide="ignore"):
        wanted = 1 / data
    assert_same(on_core(body, rules=QUIET), stored(wanted, target))


def test_reciprocal_of_a_column_in_place() -> None:
    def body() -> Array:
        t = tile(np.array([[4.0], [0.0], [-math.inf]], F32))
        reciprocal(t, t)
        return contents(t)

    assert on_core(body)[:, 0].tolist() == [0.25, math.inf, 0.0]


def test_reciprocal_rejects() -> None:
    call = calling(reciprocal, dst=lambda: empty((4, 6)), data=of((4, 6)))
    rejected(call(data=of((4, 5))), "data is", "[4, 5]")
    rejected(call(data=of((4, 6), dtypes.float8_e5m2_x4)), "data is float8_e5m2_x4")
    refused(call(data=None), "data is None")
