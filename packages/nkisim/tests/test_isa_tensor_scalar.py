"""`tensor_scalar`: one or two operators with numbers or columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from elementwise_tools import ARITHMETIC, F32, QUIET, counts, two_layouts
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
    FLOATS,
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
from nkisim.isa.vector import tensor_scalar

pytestmark = pytest.mark.filterwarnings("error")

PSUM = MemoryRegion.psum
UNARY: dict[str, Callable[[Any], Any]] = {
    "abs_": np.abs,
    "square": np.square,
    "relu": lambda a: np.maximum(a, 0),
    "bypass": lambda a: a,
}


@settings(max_examples=150, deadline=None)
@given(
    names=st.tuples(
        *[st.sampled_from(sorted(set(ARITHMETIC) - {"divide", "mod"} | set(UNARY)))] * 2
    ),
    two=st.booleans(),
    source=st.sampled_from(DTYPES),
    target=st.sampled_from(DTYPES),
    operand_dtype=st.sampled_from([*FLOATS, dtypes.int32]),
    layouts=two_layouts,
    partitions=counts,
    elements=st.integers(1, 60),
    vectors=st.tuples(st.booleans(), st.booleans()),
    reverse=st.tuples(st.booleans(), st.booleans()),
    engine=st.sampled_from(["unknown", "vector", "gpsimd"]),
    seed=st.integers(0, 99),
)
def test_tensor_scalar(
    names: tuple[str, str],
    two: bool,
    source: DType,
    target: DType,
    operand_dtype: DType,
    layouts: tuple[str, str],
    partitions: int,
    elements: int,
    vectors: tuple[bool, bool],
    reverse: tuple[bool, bool],
    engine: str,
    seed: int,
) -> None:
    if engine == "gpsimd":
        layouts = tuple("plain" if layout == "psum" else layout for layout in layouts)  # type: ignore[assignment]
    rng = np.random.default_rng(seed)
    data = sample(rng, (partitions, elements), source)
    columns = sample(rng, (2, partitions, 1), operand_dtype)
    numbers = (1.5, -2)
    steps = names if two else names[:1]

    def body() -> Array:
        operands: list[Any] = [
            None if name in UNARY else tile(columns[k], operand_dtype) if vectors[k] else numbers[k]
            for k, name in enumerate(steps)
        ]
        more = {"op1": getattr(nl, names[1]), "operand1": operands[1]} if two else {}
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        tensor_scalar(
            dst,
            laid(data, source, layouts[1]),
            getattr(nl, names[0]),
            operands[0],
            reverse0=reverse[0],
            reverse1=reverse[1],
            engine=engine,
            **more,
        )
        return contents(dst)

    result = data
    for k, name in enumerate(steps):
        if name in UNARY:
            result = UNARY[name](result)
        else:
            other = columns[k] if vectors[k] else np.full((1, 1), numbers[k])
            pair = (other, result) if reverse[k] else (result, other)
            result = ARITHMETIC[name](*pair)
        result = np.asarray(result).astype(F32).astype(np.float64)
    found = on_core(body, rules=QUIET)
    assert_same(found, stored(result, target))


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.uint32], ids=str)
def test_addresses_are_computed_exactly(dtype: DType) -> None:
    base = (1 << 24) + 1

    def body() -> Array:
        dst = empty((4, 1), dtype)
        rows = tile(np.arange(4)[:, None], dtype)
        tensor_scalar(dst, rows, nl.multiply, 3, op1=nl.add, operand1=base)
        return contents(dst)

    assert on_core(body)[:, 0].tolist() == [base, base + 3, base + 6, base + 9]


def test_exact_subtraction_from_a_number() -> None:
    def body() -> Array:
        dst = empty((1, 2), dtypes.int32)
        x = tile(np.array([[1, 2**30]], np.int32))
        tensor_scalar(dst, x, nl.subtract, (1 << 25) + 1, reverse0=True)
        return contents(dst)

    assert on_core(body).tolist() == [[1 << 25, (1 << 25) + 1 - 2**30]]


def test_python_floats_as_operands() -> None:
    def body() -> Array:
        dst = empty((1, 1))
        tensor_scalar(dst, tile(np.full((1, 1), 3.0, F32)), "multiply", 0.7**2)
        return contents(dst)

    assert_same(on_core(body), np.array([[F32(3.0) * F32(0.7**2)]]))


def test_quantization_to_8_bits() -> None:
    rows = sample(np.random.default_rng(5), (16, 64), dtypes.float32)

    def body() -> Array:
        dst = empty((16, 64), dtypes.float8_e4m3fn)
        factors = tile(448 / np.abs(rows).max(1, keepdims=True), dtypes.float32)
        tensor_scalar(
            dst, tile(rows, dtypes.float32), nl.multiply, factors, op1=nl.minimum, operand1=448.0
        )
        return contents(dst)

    factors = (448 / np.abs(rows).max(1, keepdims=True)).astype(F32)
    wanted = np.minimum(rows.astype(F32) * factors, F32(448))
    assert_same(on_core(body), stored(wanted, dtypes.float8_e4m3fn))


@pytest.mark.parametrize(("op0", "op1"), [("multiply", None), ("multiply", "add"), ("add", None)])
def test_what_the_scalar_engine_computes(op0: str, op1: str | None) -> None:
    def body() -> Array:
        dst = empty((1, 2))
        more: dict[str, Any] = {} if op1 is None else {"op1": op1, "operand1": 0.5}
        x = tile(np.array([[1.0, -4.0]], F32))
        instruction = tensor_scalar(dst, x, op0, 3.0, engine="scalar", **more)
        assert instruction.engine is Engine.scalar
        assert instruction.details == {"op0": op0, "op1": op1}
        return contents(dst)

    first = ARITHMETIC[op0](np.array([[1.0, -4.0]]), 3.0)
    assert_same(on_core(body), (first + 0.5 * (op1 is not None)).astype(F32))


def test_tensor_scalar_rejects() -> None:
    call = calling(
        tensor_scalar, dst=lambda: empty((4, 6)), data=of((4, 6)), op0=nl.add, operand0=1.0
    )
    rejected(call(data=of((4, 5))), "data is", "[4, 5]")
    rejected(call(operand0=of((4, 6))), "operand0 is", "[4, 6]")
    rejected(call(operand0=of((1, 1))), "operand0 is", "4 partitions")
    rejected(call(operand0=of((4, 1), dtypes.float8_e5m2_x4)), "operand0 is float8_e5m2_x4")
    rejected(call(operand0=lambda: empty((4, 1))), "operand0 reads")
    refused(call(operand0=None), "operand0 is None", "add")
    refused(call(operand0="1"), "operand0 is '1'")
    rejected(call(op1=nl.multiply, operand1=of((4, 2))), "operand1 is", "[4, 2]")
    refused(call(op1=nl.multiply), "operand1 is None")
    rejected(call(operand1=2.0), "operand1 is 2.0", "no op1")
    rejected(call(op0=nl.abs_, operand0=2.0), "operand0 is 2.0", "None or 0")
    rejected(call(op1=nl.bitwise_and, operand1=1), "op0 is add and op1 bitwise_and")
    rejected(call(op0=nl.bitwise_and, operand0=1), "dst is float32")
    ints = {"dst": lambda: empty((4, 6), dtypes.int32), "data": of((4, 6), dtypes.int32)}
    rejected(call(op0=nl.bitwise_and, operand0=1.5, **ints), "operand0 is 1.5", "integers")
    rejected(call(op0=nl.bitwise_or, operand0=math.inf, **ints), "operand0 is inf")
    rejected(call(op0=nl.bitwise_and, operand0=of((4, 1)), **ints), "operand0 is float32")
    rejected(call(op0=nl.power, operand0=2.0, engine="vector"), "power", "GpSimd")
    rejected(call(engine="gpsimd", data=of((4, 6), region=PSUM)), "data is", "PSUM")
    rejected(call(engine="gpsimd", operand0=of((4, 1), region=PSUM)), "an operand is", "PSUM")
    rejected(call(engine="scalar", op0=nl.subtract), "op0 is subtract", "multiply then add")
    rejected(call(engine="scalar", op1=nl.multiply, operand1=2), "op0 is add and op1 multiply")
    rejected(call(engine="scalar"), "Scalar engine", "gen3", target="gen2")
    rejected(call(op0=nl.square, operand0=0), "op0 square", "gen4", target="gen3")
    refused(call(engine=1), "engine is 1")
