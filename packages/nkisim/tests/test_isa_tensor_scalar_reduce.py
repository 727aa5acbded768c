"""`tensor_scalar_reduce`: an operator with a number or a column, and a reduction of the result."""

from __future__ import annotations

from collections.abc import Callable
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
    assert_same,
    contents,
    core,
    empty,
    laid,
    on_core,
    refused,
    rejected,
    sample,
    stored,
    tile,
)
from reduction_tools import F32, IDENTITY, rows_in_double

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.enums import Engine, ReduceCmd
from nkisim.isa.reductions import tensor_scalar_reduce
from nkisim.settings import Rules

pytestmark = pytest.mark.filterwarnings("error")

ROWS = ("add", "multiply", "maximum", "minimum")


@settings(max_examples=120, deadline=None)
@given(
    op0=st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum", "abs", "less"]),
    reduce_op=st.sampled_from(ROWS),
    source=st.sampled_from(DTYPES),
    target=st.sampled_from(DTYPES),
    result=st.sampled_from(FLOATS[:3]),
    layouts=st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    partitions=st.sampled_from([1, 17, 32, 64, 100, 128]),
    elements=st.integers(1, 60),
    vector=st.booleans(),
    reverse=st.booleans(),
    negate=st.booleans(),
    seed=st.integers(0, 99),
)
def test_tensor_scalar_reduce(
    op0: str,
    reduce_op: str,
    source: dtypes.DType,
    target: dtypes.DType,
    result: dtypes.DType,
    layouts: tuple[str, str],
    partitions: int,
    elements: int,
    vector: bool,
    reverse: bool,
    negate: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    data = sample(rng, (partitions, elements), source, 1.0)
    if reduce_op == "multiply":
        data = np.clip(data, -1, 1)
    scalar = sample(rng, (partitions, 1), dtypes.float32, 1.0) if vector else np.full((1, 1), 0.75)

    def body() -> tuple[Array, Array]:
        operand: Any = None if op0 == "abs" else 0.75
        if vector and op0 != "abs":
            operand = tile(scalar, dtypes.float32)
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        reduced = empty((partitions, 1), result)
        tensor_scalar_reduce(
            dst,
            laid(data, source, layouts[1]),
            getattr(nl, "abs_" if op0 == "abs" else op0),
            operand,
            getattr(nl, reduce_op),
            reduced,
            reverse0=reverse,
            reduce_res_negate=negate,
        )
        return contents(dst), contents(reduced)

    a, b = (scalar, data) if reverse else (data, scalar)
    first: dict[str, Callable[[], Array]] = {
        "add": lambda: a + b,
        "subtract": lambda: a - b,
        "multiply": lambda: a * b,
        "maximum": lambda: np.maximum(a, b),
        "minimum": lambda: np.minimum(a, b),
        "abs": lambda: np.abs(data),
        "less": lambda: (a < b).astype(np.float64),
    }
    y = first[op0]()
    written, reduced = on_core(body, rules=Rules(fp8_overflow="off"))
    assert_same(written, stored(y, target))
    total = rows_in_double(reduce_op, y.astype(F32).astype(np.float64))[:, None]
    limit = float(np.abs(y).sum(1).max()) if reduce_op == "add" else 1.0
    assert_near(reduced, -total if negate else total, 1e-5, 1e-6 * max(limit, 1.0))


def test_the_row_maximum_of_magnitudes_is_taken_before_narrowing() -> None:
    # the idiom of quantization: 1.001 is 1.0 in bfloat16
    def body() -> tuple[Array, Array]:
        dst = empty((1, 2), dtypes.bfloat16)
        amax = empty((1, 1))
        data = tile(np.array([[-1.001, 0.5]], F32))
        tensor_scalar_reduce(dst, data, nl.abs_, 0.0, nl.max_, amax)
        return contents(dst), contents(amax)

    written, amax = on_core(body)
    assert written.astype(F32).tolist() == [[1.0, 0.5]]
    assert amax == F32(1.001)


@pytest.mark.parametrize("reduce_op", ROWS)
def test_reduce_cmd_of_tensor_scalar_reduce(reduce_op: str) -> None:
    chunks = sample(np.random.default_rng(7), (3, 40, 8), dtypes.float32, 1.0)
    op = getattr(nl, reduce_op)

    def body() -> list[Any]:
        res = empty((40, 1))
        seen: list[Any] = []

        def step(chunk: int, command: Any, read: bool = True, **more: Any) -> None:
            dst = empty((40, 8))
            tensor_scalar_reduce(
                dst, tile(chunks[chunk], dtypes.float32), "multiply", 1.0, op,
                res if read else None, reduce_cmd=command, **more,
            )  # fmt: skip
            assert_same(contents(dst), chunks[chunk].astype(F32))
            seen.append(contents(res) if read else None)

        step(0, ReduceCmd.reset_reduce, read=False)
        step(1, ReduceCmd.reduce)
        step(2, ReduceCmd.idle)
        step(2, "reduce")
        step(0, ReduceCmd.reset)
        step(1, ReduceCmd.load_reduce, reduce_init=0.5)
        step(2, ReduceCmd.load_reduce, reduce_init=tile(np.linspace(0, 1, 40)[:, None].astype(F32)))
        return seen

    seen = on_core(body)
    a, b, c = (rows_in_double(reduce_op, chunk) for chunk in chunks)

    def both(*parts: Any) -> Array:
        stacked = np.stack(np.broadcast_arrays(*parts), axis=-1)
        return rows_in_double(reduce_op, stacked)[:, None]

    assert seen[0] is None
    for found, wanted in [
        (seen[1], both(a, b)),
        (seen[2], both(a, b)),
        (seen[3], both(a, b, c)),
        (seen[4], np.full((40, 1), IDENTITY[reduce_op])),
        (seen[5], both(b, np.full(40, 0.5))),
        (seen[6], both(c, np.linspace(0, 1, 40))),
    ]:
        assert_near(found, wanted, 1e-5, 1e-5)


def test_registers_belong_to_physical_partitions_and_to_an_engine() -> None:
    def body() -> tuple[Array, Array]:
        core().accumulators[Engine.vector][:] = np.arange(128)
        core().accumulators[Engine.scalar][:] = -1
        data = tile(np.ones((32, 4), F32), partition=64)
        tensor_scalar_reduce(data, data, nl.multiply, 1.0, nl.add, reduce_cmd=ReduceCmd.reduce)
        registers = core().accumulators
        return registers[Engine.vector].copy(), registers[Engine.scalar].copy()

    vector, scalar = on_core(body)
    wanted = np.arange(128, dtype=F32)
    wanted[64:96] += 4
    assert_same(vector, wanted)
    assert (scalar == -1).all()


def test_reduce_res_may_lie_in_dst() -> None:
    def body() -> Array:
        tensor = tile(np.array([[1.0, 2.0, 3.0]], F32))
        tensor_scalar_reduce(tensor, tensor, nl.multiply, 2.0, nl.add, tensor[:, 0:1])
        return contents(tensor)

    assert on_core(body).tolist() == [[12.0, 4.0, 6.0]]


def test_tensor_scalar_reduce_rejects() -> None:
    def call(
        op0: Any = nl.multiply, operand0: Any = 2.0, reduce_op: Any = nl.add, dst: Any = None,
        data: Any = None, reduce_res: Any = None, **more: Any,
    ) -> Any:  # fmt: skip
        def body() -> None:
            target = empty((4, 6)) if dst is None else dst()
            source = tile(np.ones((4, 6), F32)) if data is None else data()
            result = empty((4, 1)) if reduce_res is None else reduce_res()
            operand = operand0() if callable(operand0) else operand0
            given = {k: v() if callable(v) else v for k, v in more.items()}
            tensor_scalar_reduce(target, source, op0, operand, reduce_op, result, **given)

        return body

    rejected(call(op0=nl.bitwise_and), "op0 is bitwise_and", "arithmetic")
    rejected(call(op0=nl.power), "op0 is power", "GpSimd")
    rejected(call(op0=nl.average), "op0 is average")
    rejected(call(op0=nl.square, operand0=None), "op0 square", "gen4", target="gen3")
    rejected(call(op0=nl.abs_, operand0=3.0), "operand0 is 3.0", "None or 0")
    refused(call(operand0=None), "operand0 is None")
    refused(call(operand0="2"), "operand0 is '2'")
    rejected(call(operand0=lambda: tile(np.ones((4, 2), F32))), "operand0 is", "[4, 2]")
    rejected(call(operand0=lambda: tile(np.ones((3, 1), F32))), "operand0 is", "[3, 1]")
    for op in (nl.subtract, nl.less, nl.logical_or, nl.bitwise_or, nl.abs_max):
        rejected(call(reduce_op=op), f"reduce_op is {op.__name__}", "maximum")
    rejected(call(reduce_res=lambda: empty((4, 2))), "reduce_res is", "[4, 2]")
    rejected(call(reduce_res=lambda: empty((3, 1))), "reduce_res is", "[3, 1]")
    rejected(
        call(reduce_res=lambda: empty((4, 1), dtypes.int32)), "reduce_res is int32", "floating"
    )
    rejected(call(dst=lambda: empty((4, 5))), "data is", "elements", "dst")
    rejected(call(dst=lambda: empty((3, 6))), "data has 4 partitions", "dst 3")
    rejected(call(dst=lambda: empty((4, 6), dtypes.float8_e5m2_x4)), "dst is float8_e5m2_x4")
    refused(call(reduce_cmd=2), "reduce_cmd is 2", "reduce_cmd.reset_reduce")
    refused(call(reduce_cmd=ReduceCmd.load_reduce), "reduce_init is None")
    rejected(call(reduce_init=1.0), "reduce_init is 1.0", "load_reduce")
    rejected(
        call(reduce_cmd=ReduceCmd.load_reduce, reduce_init=lambda: tile(np.ones((4, 2), F32))),
        "reduce_init is",
        "[4, 2]",
    )
    rejected(
        call(dst=lambda: empty((4, 6), address=(5, 0))),
        "dst starts at partition 5",
        "0, 32, 64 or 96",
    )
