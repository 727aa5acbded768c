from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
    FLOATS,
    INTEGERS,
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
    warned,
)

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.vector import (
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_copy_predicated,
    tensor_scalar,
    tensor_tensor,
)
from nkisim.settings import Rules

pytestmark = pytest.mark.filterwarnings("error")

F32 = np.float32
PSUM = MemoryRegion.psum
QUIET = Rules(fp8_overflow="off", unsupported="off")

# on float64 arrays; the result rounded to float32 is exact
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": lambda a, b: (a == b) * 1.0,
    "not_equal": lambda a, b: (a != b) * 1.0,
    "less": lambda a, b: (a < b) * 1.0,
    "less_equal": lambda a, b: (a <= b) * 1.0,
    "greater": lambda a, b: (a > b) * 1.0,
    "greater_equal": lambda a, b: (a >= b) * 1.0,
    "logical_and": lambda a, b: ((a != 0) & (b != 0)) * 1.0,
    "logical_or": lambda a, b: ((a != 0) | (b != 0)) * 1.0,
    "logical_xor": lambda a, b: ((a != 0) ^ (b != 0)) * 1.0,
    "mod": lambda a, b: a - b * np.floor(a / b),
    "abs_max": lambda a, b: np.where(np.abs(a) > np.abs(b), a, b),
    "abs_min": lambda a, b: np.where(np.abs(a) < np.abs(b), a, b),
}
UNARY: dict[str, Callable[[Any], Any]] = {
    "abs_": np.abs,
    "square": np.square,
    "relu": lambda a: np.maximum(a, 0),
    "bypass": lambda a: a,
}
BITS: dict[str, Callable[[int, int, int], int]] = {
    "bitwise_and": lambda a, b, width: a & b,
    "bitwise_or": lambda a, b, width: a | b,
    "bitwise_xor": lambda a, b, width: a ^ b,
    "left_shift": lambda a, b, width: a << b if b < width else 0,
    "right_shift": lambda a, b, width: a >> b if b < width else 0,
}
two_layouts = st.tuples(*[st.sampled_from(LAYOUTS)] * 2)
three_layouts = st.tuples(*[st.sampled_from(LAYOUTS)] * 3)
counts = st.sampled_from([1, 2, 31, 32, 64, 100, 128])


def of(shape: tuple[int, ...], dtype: DType = dtypes.float32, region: Any = None) -> Any:
    return lambda: tile(np.ones(shape), dtype, region or MemoryRegion.sbuf)


def calling(function: Any, **defaults: Any) -> Any:
    """What makes a call of `function`; callables among the arguments make tensors."""

    def call(**changed: Any) -> Any:
        def body() -> Any:
            given = defaults | changed
            return function(
                **{
                    k: v() if callable(v) and not isinstance(v, nl.Operation) else v
                    for k, v in given.items()
                }
            )

        return body

    return call


def bits_of(array: Array, dtype: DType) -> Array:
    """As unsigned integers, in Python's."""
    return array.astype(dtype.numpy).view(f"u{dtype.itemsize}").astype(object)


# ---- tensor_copy ----


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


# ---- memset ----


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


# ---- tensor_copy_predicated ----


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


# ---- tensor_tensor ----


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


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(sorted(BITS)),
    dtype=st.sampled_from(INTEGERS),
    tensor=st.booleans(),
    layouts=three_layouts,
    seed=st.integers(0, 99),
)
def test_bit_operations(
    name: str, dtype: DType, tensor: bool, layouts: tuple[str, str, str], seed: int
) -> None:
    limits = np.iinfo(dtype.numpy)
    width = 8 * dtype.itemsize
    rng = np.random.default_rng(seed)
    a = rng.integers(limits.min, limits.max, (4, 12), endpoint=True)
    if "shift" in name:
        b = rng.integers(0, width + 1, (4, 12))
    else:
        b = rng.integers(limits.min, limits.max, (4, 12), endpoint=True)
    where = "plain" if layouts[1] == layouts[2] == "psum" else layouts[1]
    if not tensor:
        b[:] = b[0, 0]

    def body() -> Array:
        dst = laid(np.zeros((4, 12), np.int64), dtype, layouts[0])
        first = laid(a, dtype, where)
        if tensor:
            tensor_tensor(dst, first, laid(b, dtype, layouts[2]), getattr(nl, name))
        else:
            tensor_scalar(dst, first, getattr(nl, name), int(b[0, 0]))
        return contents(dst)

    pairs = np.frompyfunc(lambda x, y: BITS[name](x, y, width) % 2**width, 2, 1)
    wanted = pairs(bits_of(a, dtype), bits_of(b, dtype)).astype(f"u{dtype.itemsize}")
    assert_same(on_core(body), wanted.view(dtype.numpy))


def test_bits_are_not_converted_on_their_way_out() -> None:
    def body() -> tuple[Array, Array]:
        a = tile(np.array([[-1, -(2**31), 5]], np.int32))
        same_width, low_byte = empty((1, 3), dtypes.uint32), empty((1, 3), dtypes.uint8)
        tensor_scalar(same_width, a, nl.bitwise_or, 0)
        tensor_tensor(low_byte, a, a, nl.bitwise_and)
        return contents(same_width), contents(low_byte)

    same_width, low_byte = on_core(body)
    assert same_width.tolist() == [[2**32 - 1, 2**31, 5]]
    assert low_byte.tolist() == [[255, 0, 5]]


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


# ---- tensor_scalar ----


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


def test_fields_of_a_word() -> None:
    words = np.array([[0x12345678, -1, 0x0000FF00]], np.int32)

    def body() -> Array:
        dst = empty((1, 3), dtypes.uint8)
        tensor_scalar(dst, tile(words), nl.right_shift, 8, op1=nl.bitwise_and, operand1=0xFF)
        return contents(dst)

    assert on_core(body).tolist() == [[0x56, 0xFF, 0xFF]]


def test_shift_amounts_from_a_tensor() -> None:
    def body() -> Array:
        dst = empty((2, 2), dtypes.uint16)
        x = tile(np.array([[1, 2], [1, 2]], np.uint16))
        tensor_scalar(dst, x, nl.left_shift, tile(np.array([[1], [15]], np.int32)))
        return contents(dst)

    assert on_core(body).tolist() == [[2, 4], [1 << 15, 0]]


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


# ---- scalar_tensor_tensor ----


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


# ---- reciprocal ----


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


# ---- without numerics ----


def test_shapes_alone() -> None:
    def body() -> list[Any]:
        x, one, ints = empty((64, 16)), empty((64, 1)), empty((64, 16), dtypes.uint8)
        memset(x, 0.0)
        memset(one, 1.0)
        memset(ints, 1)
        tensor_copy(x, x)
        tensor_copy_predicated(x, x, ints)
        tensor_tensor(x, x, x, nl.add)
        tensor_scalar(x, x, nl.add, one, op1=nl.multiply, operand1=one)
        scalar_tensor_tensor(x, x, nl.add, one, nl.multiply, x)
        reciprocal(x, x)
        return [(i.op, len(i.reads), i.details) for i in core().trace][3:]

    assert on_core(body, numerics=False) == [
        ("tensor_copy", 1, None),
        ("tensor_copy_predicated", 3, None),
        ("tensor_tensor", 2, {"op0": "add"}),
        ("tensor_scalar", 3, {"op0": "add", "op1": "multiply"}),
        ("scalar_tensor_tensor", 3, {"op0": "add", "op1": "multiply"}),
        ("reciprocal", 1, None),
    ]
