"""`tensor_scalar_cumulative`: an operator with a number or a column, and a running reduction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    FLOATS,
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
from reduction_tools import F32, IDENTITY, PAIRS

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.enums import Engine, ReduceCmd
from nkisim.isa.reductions import tensor_scalar_cumulative
from nkisim.settings import Rules

pytestmark = pytest.mark.filterwarnings("error")

CUMULATIVE = ("add", "subtract", "multiply", "maximum", "minimum")
NARROW = (*FLOATS, dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16)
START = IDENTITY | {"subtract": 0.0}


def running(op1: str, terms: Array, start: Array) -> Array:
    """`r[i] = op1(terms[i], r[i - 1])`, each step rounded to float32."""
    result = np.empty(terms.shape, F32)
    for p, row in enumerate(terms.astype(F32)):
        state = F32(start[p])
        for i, value in enumerate(row):
            state = PAIRS[op1](value, state)
            result[p, i] = state
    return result


@settings(max_examples=100, deadline=None)
@given(
    op0=st.sampled_from(["add", "multiply", "maximum", "subtract"]),
    op1=st.sampled_from(CUMULATIVE),
    source=st.sampled_from(NARROW),
    target=st.sampled_from(NARROW),
    layouts=st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    partitions=st.sampled_from([1, 3, 32, 40]),
    elements=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_tensor_scalar_cumulative(
    op0: str,
    op1: str,
    source: dtypes.DType,
    target: dtypes.DType,
    layouts: tuple[str, str],
    partitions: int,
    elements: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    src = sample(rng, (partitions, elements), source, 0.5)
    imm0 = sample(rng, (partitions, 1), dtypes.bfloat16, 0.5)

    def body() -> Array:
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        source_tile = laid(src, source, layouts[1])
        scalar = tile(imm0, dtypes.bfloat16)
        tensor_scalar_cumulative(dst, source_tile, getattr(nl, op0), getattr(nl, op1), scalar)
        return contents(dst)

    first = {"add": src + imm0, "multiply": src * imm0, "maximum": np.maximum(src, imm0),
             "subtract": src - imm0}[op0]  # fmt: skip
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = running(op1, first, np.full(partitions, START[op1]))
        assert_same(on_core(body, rules=Rules(fp8_overflow="off")), stored(wanted, target))


@pytest.mark.parametrize("op1", CUMULATIVE)
def test_reduce_cmd_of_tensor_scalar_cumulative(op1: str) -> None:
    src = sample(np.random.default_rng(8), (4, 20), dtypes.float32, 1.0)

    def body() -> tuple[Array, Array, Array]:
        halves = tile(src, dtypes.float32)
        dst, loaded, tensor_loaded = empty((4, 20)), empty((4, 20)), empty((4, 20))
        op = getattr(nl, op1)
        first = tensor_scalar_cumulative(dst[:, :11], halves[:, :11], "add", op, 0.25)
        assert first.engine is Engine.vector
        tensor_scalar_cumulative(
            dst[:, 11:], halves[:, 11:], "add", op, 0.25, reduce_cmd=ReduceCmd.reduce
        )
        load = ReduceCmd.load_reduce
        tensor_scalar_cumulative(loaded, halves, "add", op, 0.25, imm1=0.5, reduce_cmd=load)
        starts = tile(np.array([[1], [2], [-3], [0]], F32))
        tensor_scalar_cumulative(tensor_loaded, halves, "add", op, 0.25, starts, load)
        return contents(dst), contents(loaded), contents(tensor_loaded)

    continued, loaded, tensor_loaded = on_core(body)
    terms = (src + 0.25).astype(F32)
    assert_same(continued, running(op1, terms, np.full(4, START[op1])))
    assert_same(loaded, running(op1, terms, np.full(4, 0.5)))
    assert_same(tensor_loaded, running(op1, terms, np.array([1, 2, -3, 0])))


def test_the_running_value_is_not_narrowed() -> None:
    def body() -> Array:
        dst = empty((1, 300), dtypes.bfloat16)
        tensor_scalar_cumulative(dst, tile(np.ones((1, 300), F32)), nl.bypass, nl.add, None)
        return contents(dst)

    # in bfloat16, 256 + 1 is 256
    assert_same(on_core(body), stored(np.arange(1, 301)[None], dtypes.bfloat16))


def test_tensor_scalar_cumulative_rejects() -> None:
    def call(
        op0: Any = nl.add, op1: Any = nl.add, imm0: Any = 0.0, dst: Any = None, src: Any = None,
        **more: Any,
    ) -> Any:  # fmt: skip
        def body() -> None:
            target = empty((4, 6)) if dst is None else dst()
            source = tile(np.ones((4, 6), F32)) if src is None else src()
            tensor_scalar_cumulative(target, source, op0, op1, imm0, **more)

        return body

    rejected(call(op0=nl.bitwise_or), "op0 is bitwise_or")
    rejected(call(op0=nl.power), "op0 is power")
    for op in (nl.logical_and, nl.bypass, nl.bitwise_and, nl.abs_min, nl.greater):
        rejected(call(op1=op), f"op1 is {op.__name__}", "subtract")
    refused(call(imm0=None), "imm0 is None")
    rejected(call(op0=nl.abs_, imm0=1.0), "imm0 is 1.0")
    rejected(call(dst=lambda: empty((4, 6), dtypes.int32)), "dst is int32")
    rejected(call(src=lambda: tile(np.ones((4, 6), np.uint32))), "src is uint32")
    rejected(call(src=lambda: tile(np.ones((4, 7), F32))), "src is", "[4, 7]")
    rejected(call(reduce_cmd=ReduceCmd.idle), "reduce_cmd is reduce_cmd.idle", "reset_reduce")
    rejected(call(reduce_cmd=ReduceCmd.reset), "reduce_cmd is reduce_cmd.reset", "load_reduce")
    refused(call(reduce_cmd=4), "reduce_cmd is 4")
    refused(call(reduce_cmd=ReduceCmd.load_reduce), "imm1 is None")
    rejected(call(imm1=1.0), "imm1 is 1.0", "load_reduce")
