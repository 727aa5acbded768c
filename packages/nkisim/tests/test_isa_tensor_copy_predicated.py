"""`tensor_copy_predicated`: copies where a predicate says so."""

from __future__ import annotations

import numpy as np
import pytest
from elementwise_tools import counts, three_layouts
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
)

from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.isa.vector import tensor_copy_predicated

pytestmark = pytest.mark.filterwarnings("error")

PSUM = MemoryRegion.psum


@settings(max_examples=80, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    predicate=st.sampled_from([dtypes.uint8, dtypes.uint16, dtypes.uint32]),
    layouts=three_layouts,
    partitions=counts,
    elements=st.integers(1, 60),
    number=st.booleans(),
    reverse=st.booleans(),
    seed=st.integers(0, 99),
)
def test_tensor_copy_predicated(
    dtype: DType,
    predicate: DType,
    layouts: tuple[str, str, str],
    partitions: int,
    elements: int,
    number: bool,
    reverse: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    shape = (partitions, elements)
    before, src = sample(rng, (2, *shape), dtype)
    chosen = rng.integers(0, 3, shape)
    where = "plain" if layouts[1] == layouts[2] == "psum" else layouts[1]

    def body() -> Array:
        dst = laid(before, dtype, layouts[0])
        source = 3 if number else laid(src, dtype, where)
        tensor_copy_predicated(
            dst, source, laid(chosen, predicate, layouts[2]), reverse_pred=reverse
        )
        return contents(dst)

    take = (chosen == 0) if reverse else (chosen != 0)
    assert_same(on_core(body), np.where(take, 3.0 if number else src, before).astype(dtype.numpy))


def test_tensor_copy_predicated_rejects() -> None:
    call = calling(
        tensor_copy_predicated,
        dst=of((4, 6)),
        src=of((4, 6)),
        predicate=of((4, 6), dtypes.uint8),
    )
    rejected(call(src=of((4, 6), dtypes.bfloat16)), "src is bfloat16", "dst float32")
    rejected(call(src=of((4, 1))), "src is", "[4, 1]")
    rejected(call(predicate=of((2, 6), dtypes.uint8)), "predicate has 2 partitions")
    for dtype in (dtypes.int8, dtypes.int32, dtypes.float32):
        rejected(call(predicate=of((4, 6), dtype)), f"predicate is {dtype}", "uint16")
    rejected(
        call(src=of((4, 6), region=PSUM), predicate=of((4, 6), dtypes.uint8, PSUM)),
        "src and predicate",
        "PSUM",
    )
    rejected(call(dst=lambda: empty((4, 6))), "dst reads", "nothing has written")
    refused(call(src=None), "src is None")
