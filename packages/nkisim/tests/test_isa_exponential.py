"""`exponential` of the Vector engine."""

from __future__ import annotations

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
    empty,
    laid,
    of,
    on_core,
    refused,
    rejected,
    sample,
    tile,
)

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.dtypes import DType
from nkisim.enums import Engine, ReduceCmd
from nkisim.isa.reductions import tensor_scalar_reduce
from nkisim.isa.vector_exponential import exponential

pytestmark = pytest.mark.filterwarnings("error")

F32 = np.float32


@settings(max_examples=80, deadline=None)
@given(
    source=st.sampled_from(DTYPES),
    target=st.sampled_from(FLOATS[:3]),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    partitions=st.sampled_from([1, 32, 64, 128]),
    elements=st.integers(1, 60),
    vector=st.booleans(),
    seed=st.integers(0, 99),
)
def test_exponential(
    source: DType,
    target: DType,
    layouts: tuple[str, str],
    partitions: int,
    elements: int,
    vector: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    src = sample(rng, (partitions, elements), source, 1.0)
    largest = src.max(1, keepdims=True) if vector else np.full((1, 1), 20.0)

    def body() -> tuple[Array, Array]:
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        total = empty((partitions, 1))
        maximum = tile(largest, dtypes.float32) if vector else 20
        instruction = exponential(
            dst, laid(src, source, layouts[1]), maximum, total, ReduceCmd.reset_reduce
        )
        assert instruction.engine is Engine.vector
        return contents(dst), contents(total)

    wanted = np.exp(src - largest)
    written, total = on_core(body)
    size = max(1.0, float(wanted.max()))
    assert_near(written, wanted, 1e-5, 1e-6 * size)
    assert_near(total, wanted.sum(1, keepdims=True), 1e-5, 1e-6 * size)


def test_reduce_cmd_of_exponential() -> None:
    def body() -> list[float]:
        src, dst, res = tile(np.zeros((1, 3), F32)), empty((1, 3)), empty((1, 1))
        seen = []

        def step(*command: Any, **more: Any) -> None:
            exponential(dst, src, 0.0, res, *command, **more)
            assert contents(dst).tolist() == [[1, 1, 1]]
            seen.append(contents(res).item())

        step("reset_reduce")
        step(ReduceCmd.reduce)
        step()
        step(ReduceCmd.load_reduce, 0.5)
        step(ReduceCmd.load_reduce, reduce_init=tile(np.full((1, 1), -3, F32)))
        step(ReduceCmd.reset)
        # registers that tensor_scalar_reduce shares
        tensor_scalar_reduce(dst, src, nl.add, 10.0, nl.add)
        step(ReduceCmd.reduce)
        return seen

    assert on_core(body) == [3, 6, 6, 3.5, 0, 0, 33]


def test_a_row_of_nothing_but_masked_scores() -> None:
    def body() -> Array:
        src = tile(np.array([[-np.inf, 0.0, -np.inf]], F32))
        exponential(src, src, 0.0)
        return contents(src)

    assert on_core(body).tolist() == [[0, 1, 0]]


def test_exponential_rejects() -> None:
    def call(**more: Any) -> Any:
        def body() -> None:
            given: dict[str, Any] = {
                "dst": lambda: empty((4, 6)),
                "src": lambda: tile(np.ones((4, 6), F32)),
            } | more
            exponential(**{k: v() if callable(v) else v for k, v in given.items()})

        return body

    rejected(call(), "exponential", "gen4", target="gen3")
    rejected(call(src=of((4, 5))), "src is", "[4, 5]")
    rejected(call(src=of((4, 6), dtypes.float4_e2m1fn_x4)), "src is float4_e2m1fn_x4")
    rejected(call(src=lambda: empty((4, 6))), "src reads")
    rejected(call(max_value=of((4, 1), dtypes.bfloat16)), "max_value is bfloat16", "float32")
    rejected(call(max_value=of((4, 6))), "max_value is", "[4, 6]")
    refused(call(max_value=None), "max_value is None")
    rejected(call(reduce_res=of((4, 1), dtypes.uint8)), "reduce_res is uint8")
    rejected(call(reduce_res=of((4, 6))), "reduce_res is", "[4, 6]")
    rejected(call(reduce_init=2.0), "reduce_init is 2.0", "load_reduce")
    rejected(
        call(reduce_cmd=ReduceCmd.load_reduce, reduce_init=of((4, 2))), "reduce_init is", "[4, 2]"
    )
    refused(call(reduce_cmd=ReduceCmd.load_reduce, reduce_init=None), "reduce_init is None")
    refused(call(reduce_cmd=4), "reduce_cmd is 4")
