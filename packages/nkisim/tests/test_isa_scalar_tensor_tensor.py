"""`scalar_tensor_tensor`: a number or a column, then a tile."""

from __future__ import annotations

import numpy as np
import pytest
from elementwise_tools import ARITHMETIC, F32, QUIET, counts, three_layouts
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
from nkisim import operations as nl
from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.vector import scalar_tensor_tensor

pytestmark = pytest.mark.filterwarnings("error")

PSUM = MemoryRegion.psum


@settings(max_examples=120, deadline=None)
@given(
    names=st.tuples(*[st.sampled_from(sorted(set(ARITHMETIC) - {"divide", "mod"}))] * 2),
    sources=st.tuples(*[st.sampled_from(DTYPES)] * 2),
    target=st.sampled_from(DTYPES),
    layouts=three_layouts,
    partitions=counts,
    elements=st.integers(1, 60),
    vector=st.booleans(),
    reverse=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 99),
)
def test_scalar_tensor_tensor(
    names: tuple[str, str],
    sources: tuple[DType, DType],
    target: DType,
    layouts: tuple[str, str, str],
    partitions: int,
    elements: int,
    vector: bool,
    reverse: tuple[bool, bool],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    data = sample(rng, (partitions, elements), sources[0])
    other = sample(rng, (partitions, elements), sources[1])
    column = sample(rng, (partitions, 1), dtypes.float32) if vector else np.full((1, 1), 0.3)
    where = "plain" if layouts[1] == layouts[2] == "psum" else layouts[1]

    def body() -> Array:
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        instruction = scalar_tensor_tensor(
            dst,
            laid(data, sources[0], where),
            getattr(nl, names[0]),
            tile(column, dtypes.float32) if vector else 0.3,
            getattr(nl, names[1]),
            laid(other, sources[1], layouts[2]),
            reverse[0],
            reverse[1],
        )
        assert instruction.engine is Engine.vector
        return contents(dst)

    column = column.astype(F32).astype(np.float64)
    middle = ARITHMETIC[names[0]](*((column, data) if reverse[0] else (data, column)))
    middle = np.asarray(middle).astype(F32).astype(np.float64)
    wanted = ARITHMETIC[names[1]](*((other, middle) if reverse[1] else (middle, other)))
    assert_same(on_core(body, rules=QUIET), stored(wanted, target))


def test_scalar_tensor_tensor_rejects() -> None:
    call = calling(
        scalar_tensor_tensor, dst=lambda: empty((4, 6)), data=of((4, 6)), op0=nl.multiply,
        operand0=2.0, op1=nl.add, operand1=of((4, 6)),
    )  # fmt: skip
    rejected(call(op0=nl.bitwise_and), "op0 is bitwise_and", "arithmetic")
    rejected(call(op1=nl.left_shift), "op1 is left_shift", "arithmetic")
    rejected(call(op0=nl.power), "op0 is power", "GpSimd")
    rejected(call(op1=nl.power), "op1 is power", "GpSimd")
    rejected(call(operand0=of((4, 2))), "operand0 is", "[4, 2]")
    refused(call(operand0=None), "operand0 is None")
    refused(call(operand1=1.0), "operand1 is 1.0")
    rejected(call(operand1=of((4, 1))), "operand1 is", "[4, 1]")
    rejected(call(data=of((2, 6))), "data has 2 partitions")
    rejected(
        call(data=of((4, 6), region=PSUM), operand1=of((4, 6), region=PSUM)), "data and operand1"
    )
    rejected(call(operand1=of((4, 6), dtypes.float4_e2m1fn_x4)), "operand1 is float4_e2m1fn_x4")
