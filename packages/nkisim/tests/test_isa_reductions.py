from __future__ import annotations

import itertools
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
)

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.enums import Engine, MemoryRegion, ReduceCmd
from nkisim.isa.reductions import (
    tensor_reduce,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor_scan,
)
from nkisim.settings import Rules

pytestmark = pytest.mark.filterwarnings("error")

PSUM = MemoryRegion.psum
F32 = np.float32

PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: F32(a + b),
    "subtract": lambda a, b: F32(a - b),
    "multiply": lambda a, b: F32(a * b),
    "maximum": max,
    "minimum": min,
    "logical_and": lambda a, b: F32(a != 0 and b != 0),
    "logical_or": lambda a, b: F32(a != 0 or b != 0),
    "logical_xor": lambda a, b: F32((a != 0) != (b != 0)),
}


def rows_in_double(op: str, rows: Array) -> Array:
    """`op` over the last axis, in float64."""
    nonzero = (rows != 0).sum(-1)
    found: Array = {
        "add": lambda: rows.sum(-1),
        "subtract": lambda: 2 * rows[..., 0] - rows.sum(-1),
        "multiply": lambda: rows.prod(-1),
        "maximum": lambda: rows.max(-1),
        "minimum": lambda: rows.min(-1),
        "logical_and": lambda: (nonzero == rows.shape[-1]).astype(np.float64),
        "logical_or": lambda: (nonzero > 0).astype(np.float64),
        "logical_xor": lambda: (nonzero % 2 == 1).astype(np.float64),
    }[op]()
    return found


# ---- tensor_reduce ----


@settings(max_examples=120, deadline=None)
@given(
    op=st.sampled_from(sorted(PAIRS)),
    source=st.sampled_from(DTYPES),
    target=st.sampled_from(FLOATS[:3] + INTEGERS),
    partitions=st.sampled_from([1, 2, 31, 32, 64, 128]),
    free=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    kept=st.integers(0, 3),
    negate=st.booleans(),
    psum=st.booleans(),
    seed=st.integers(0, 99),
)
def test_tensor_reduce(
    op: str,
    source: dtypes.DType,
    target: dtypes.DType,
    partitions: int,
    free: list[int],
    kept: int,
    negate: bool,
    psum: bool,
    seed: int,
) -> None:
    kept = min(kept, len(free) - 1)
    scale = 1.0 if op == "multiply" else 3.0
    shape = (partitions, *free)
    data = sample(np.random.default_rng(seed), shape, source, scale)
    if op == "multiply":
        # a product of thousands stays finite
        data = np.clip(data, -1, 1)
    # 4 KiB of a partition's 16 for each of the two
    region = PSUM if psum and math.prod(free) <= 1024 else MemoryRegion.sbuf
    axes = list(range(1 + kept, len(shape)))

    def body() -> Array:
        dst = empty((partitions, *free[:kept]), target, region)
        tensor_reduce(dst, getattr(nl, op), tile(data, source, region), axes, negate=negate)
        return contents(dst)

    rows = data.reshape(partitions, math.prod(free[:kept]), -1)
    wanted = rows_in_double(op, rows) * (-1 if negate else 1)
    limit = np.abs(rows).sum(-1).max() if op in ("add", "subtract") else 1.0
    assert_near(on_core(body), wanted, 1e-5, 1e-6 * max(float(limit), 1.0))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensor_reduce_reads_every_layout(layout: str, dtype: dtypes.DType) -> None:
    data = sample(np.random.default_rng(1), (32, 60), dtype)

    def body() -> Array:
        dst = empty((32, 1))
        view = laid(data, dtype, layout)
        tensor_reduce(dst, nl.maximum, view, list(range(1, view.ndim)))
        return contents(dst)

    assert_same(on_core(body), data.max(1, keepdims=True).astype(F32))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bit_reductions_keep_all_bits(op: str, dtype: dtypes.DType) -> None:
    limits = np.iinfo(dtype.numpy)
    data = np.random.default_rng(2).integers(limits.min, limits.max, (5, 3, 7), endpoint=True)
    data[0] |= limits.max

    def body() -> Array:
        dst = empty((5, 3), dtype)
        tensor_reduce(dst, getattr(nl, op), tile(data, dtype), axis=-1)
        return contents(dst)

    combine = {"bitwise_and": int.__and__, "bitwise_or": int.__or__, "bitwise_xor": int.__xor__}[op]
    wanted = [[list(itertools.accumulate(row, combine))[-1] for row in p] for p in data.tolist()]
    assert_same(on_core(body), np.array(wanted).astype(dtype.numpy))


@pytest.mark.parametrize("axis", [2, -1, [2], (2,), [-1], np.int64(2), [np.int32(2)]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_axis_in_every_form(axis: Any, keepdims: bool) -> None:
    data = sample(np.random.default_rng(3), (4, 5, 6), dtypes.float32)

    def body() -> Array:
        dst = empty((4, 5, 1) if keepdims else (4, 5))
        tensor_reduce(dst, nl.minimum, tile(data, dtypes.float32), axis, keepdims=keepdims)
        return contents(dst)

    assert_same(on_core(body), data.min(2).astype(F32))


@pytest.mark.parametrize("axis", [[1, 2], (2, 1), [-2, -1], [1, -1]])
def test_axes_in_any_order(axis: Any) -> None:
    data = sample(np.random.default_rng(4), (3, 5, 6), dtypes.float32)

    def body() -> Array:
        dst = empty((3, 1))
        tensor_reduce(dst, np.maximum, tile(data, dtypes.float32), axis)
        return contents(dst)

    assert_same(on_core(body), data.max((1, 2))[:, None].astype(F32))


@pytest.mark.parametrize("op", [nl.max_, nl.maximum, np.maximum, "maximum", "max", max])
def test_names_of_an_operator(op: Any) -> None:
    data = sample(np.random.default_rng(5), (3, 9), dtypes.float32)

    def body() -> Array:
        dst = empty((3, 1))
        instruction = tensor_reduce(dst, op, tile(data, dtypes.float32), 1)
        assert instruction.details == {"op0": "maximum"} and instruction.engine is Engine.vector
        return contents(dst)

    assert_same(on_core(body), data.max(1, keepdims=True).astype(F32))


def test_a_broadcast_view_counts_each_time() -> None:
    def body() -> Array:
        dst = empty((2, 1))
        view = tile(np.array([[1.5], [-2.0]], F32)).broadcast(1, 100)
        tensor_reduce(dst, nl.sum_, view, 1)
        return contents(dst)

    assert_same(on_core(body), np.array([[150.0], [-200.0]], F32))


def test_dst_may_be_part_of_data() -> None:
    data = sample(np.random.default_rng(6), (8, 16), dtypes.float32)

    def body() -> Array:
        tensor = tile(data, dtypes.float32)
        tensor_reduce(tensor[:, 3:4], nl.maximum, tensor, 1)
        return contents(tensor)

    wanted = data.astype(F32)
    wanted[:, 3] = data.max(1)
    assert_same(on_core(body), wanted)


def test_tensor_reduce_rejects() -> None:
    def call(
        op: Any = nl.add, axis: Any = 1, dst: Any = None, data: Any = None, **more: Any
    ) -> Any:
        def body() -> None:
            target = empty((4, 1)) if dst is None else dst()
            source = tile(np.ones((4, 6), F32)) if data is None else data()
            tensor_reduce(target, op, source, axis, **more)

        return body

    def deep() -> Any:
        return tile(np.ones((4, 2, 3), F32))

    rejected(call(axis=0), "axis is 0", "last dimensions")
    rejected(call(axis=[0, 1]), "axis is [0, 1]", "not dimension 0")
    rejected(call(axis=[]), "axis is []")
    rejected(call(axis=2), "axis is 2")
    rejected(call(axis=[1, 1]), "axis is [1, 1]")
    rejected(call(axis=1, data=deep), "axis is 1")
    refused(call(axis="1"), "axis is '1'")
    refused(call(axis=1.0), "axis is 1.0")
    rejected(call(dst=lambda: empty((4, 2))), "dst is", "[4, 2]", "partitions of 1 elements")
    rejected(call(dst=lambda: empty((3, 1))), "dst is", "[3, 1]", "4 partitions")
    rejected(call(op=nl.divide), "op is divide", rules=Rules(unsupported="off"))
    for op in (nl.abs_max, nl.less, nl.bypass, nl.power, nl.left_shift):
        rejected(call(op=op), f"op is {op.__name__}", "add")
    rejected(call(op=nl.average), "op is average", "tensor_partition_reduce")
    rejected(call(op="sine"), "op is 'sine'")
    rejected(call(op=nl.bitwise_or), "dst is float32", "bitwise_or")
    rejected(
        call(op=nl.bitwise_or, dst=lambda: empty((4, 1), dtypes.int32)),
        "data is float32",
        "bitwise_or",
    )
    rejected(
        call(
            op=nl.bitwise_or,
            dst=lambda: empty((4, 1), dtypes.int32),
            data=lambda: tile(np.ones((4, 6), np.int32)),
            negate=True,
        ),
        "negate is True",
        "bitwise_or",
    )
    rejected(call(data=lambda: empty((4, 6))), "data reads", "nothing has written")
    rejected(
        call(data=lambda: tile(np.ones((4, 6)), dtypes.float8_e4m3fn_x4)),
        "data is float8_e4m3fn_x4",
    )
    rejected(
        call(data=lambda: core().allocate((4, 6), dtypes.float32, MemoryRegion.private_hbm)),
        "data is",
        "PSUM or SBUF",
    )
    refused(call(data=lambda: np.ones((4, 6))), "data is array")


# ---- tensor_scalar_reduce ----

ROWS = ("add", "multiply", "maximum", "minimum")
IDENTITY = {"add": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf}


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


# ---- tensor_scalar_cumulative ----

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


# ---- tensor_tensor_scan ----


@settings(max_examples=100, deadline=None)
@given(
    op0=st.sampled_from(["multiply", "add", "subtract", "maximum", "minimum"]),
    op1=st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum"]),
    sources=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    target=st.sampled_from(DTYPES),
    layouts=st.lists(st.sampled_from(LAYOUTS), min_size=3, max_size=3),
    partitions=st.sampled_from([1, 5, 32, 50]),
    elements=st.integers(1, 30),
    reverse=st.tuples(st.booleans(), st.booleans()),
    vector=st.booleans(),
    seed=st.integers(0, 99),
)
def test_tensor_tensor_scan(
    op0: str,
    op1: str,
    sources: tuple[dtypes.DType, dtypes.DType],
    target: dtypes.DType,
    layouts: list[str],
    partitions: int,
    elements: int,
    reverse: tuple[bool, bool],
    vector: bool,
    seed: int,
) -> None:
    if layouts[1] == layouts[2] == "psum":
        layouts[2] = "plain"
    rng = np.random.default_rng(seed)
    data0 = sample(rng, (partitions, elements), sources[0], 0.5)
    data1 = sample(rng, (partitions, elements), sources[1], 0.5)
    initial = (
        sample(rng, (partitions, 1), dtypes.float32) if vector else np.full((partitions, 1), 2)
    )

    def body() -> Array:
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        tensor_tensor_scan(
            dst,
            laid(data0, sources[0], layouts[1]),
            laid(data1, sources[1], layouts[2]),
            tile(initial, dtypes.float32) if vector else 2,
            getattr(nl, op0),
            getattr(nl, op1),
            reverse0=reverse[0],
            reverse1=reverse[1],
        )
        return contents(dst)

    wanted = np.empty((partitions, elements), F32)
    with np.errstate(over="ignore", invalid="ignore"):
        for p in range(partitions):
            state = F32(initial[p, 0])
            for i in range(elements):
                x, y = F32(data0[p, i]), F32(data1[p, i])
                middle = PAIRS[op0](state, x) if reverse[0] else PAIRS[op0](x, state)
                state = PAIRS[op1](y, middle) if reverse[1] else PAIRS[op1](middle, y)
                wanted[p, i] = state
        found = on_core(body, rules=Rules(fp8_overflow="off"))
    if np.isfinite(wanted).all():
        assert_same(found, stored(wanted, target))


def test_a_scan_in_place() -> None:
    decay = sample(np.random.default_rng(9), (6, 12), dtypes.float32, 0.3)
    value = sample(np.random.default_rng(10), (6, 12), dtypes.float32)

    def body() -> Array:
        x = tile(value, dtypes.float32)
        tensor_tensor_scan(x, tile(decay, dtypes.float32), x, 0.0, nl.multiply, nl.add)
        return contents(x)

    wanted = np.empty((6, 12), F32)
    state = np.zeros(6, F32)
    for i in range(12):
        state = (decay[:, i].astype(F32) * state) + value[:, i].astype(F32)
        wanted[:, i] = state
    assert_same(on_core(body), wanted)


def test_tensor_tensor_scan_rejects() -> None:
    def call(
        op0: Any = nl.multiply, op1: Any = nl.add, initial: Any = 0.0, dst: Any = None,
        data0: Any = None, data1: Any = None,
    ) -> Any:  # fmt: skip
        def body() -> None:
            ones = np.ones((4, 6), F32)
            target = empty((4, 6)) if dst is None else dst()
            first = tile(ones) if data0 is None else data0()
            second = tile(ones) if data1 is None else data1()
            start = initial() if callable(initial) else initial
            tensor_tensor_scan(target, first, second, start, op0, op1)

        return body

    def in_psum() -> Any:
        return tile(np.ones((4, 6), F32), region=PSUM)

    rejected(call(op0=nl.bitwise_and), "op0 is bitwise_and")
    rejected(call(op1=nl.left_shift), "op1 is left_shift")
    rejected(call(op1=nl.power), "op1 is power")
    rejected(call(data0=in_psum, data1=in_psum), "data0 and data1", "PSUM")
    rejected(call(data0=lambda: tile(np.ones((4, 5), F32))), "data0 is", "[4, 5]")
    rejected(call(data1=lambda: tile(np.ones((2, 6), F32))), "data1 has 2 partitions")
    rejected(call(initial=lambda: tile(np.ones((4, 6), F32))), "initial is", "[4, 6]")
    rejected(call(initial=lambda: empty((4, 1))), "initial reads", "nothing has written")
    refused(call(initial=None), "initial is None")
    rejected(call(data0=lambda: tile(np.ones((4, 6)), dtypes.float4_e2m1fn_x4)), "data0 is float4")


# ---- without numerics ----


def test_shapes_alone() -> None:
    def body() -> list[str]:
        data = empty((64, 128))
        data.storage.coverage.full = True
        one = empty((64, 1))
        tensor_reduce(one, nl.add, data, 1)
        tensor_scalar_reduce(data, data, nl.abs_, 0, nl.maximum, one)
        tensor_scalar_cumulative(data, data, nl.add, nl.add, 1.0)
        tensor_tensor_scan(data, data, data, one, nl.multiply, nl.add)
        assert data.storage.data is None
        return [f"{i.op} {len(i.writes)} {len(i.reads)}" for i in core().trace]

    assert on_core(body, numerics=False) == [
        "tensor_reduce 1 1",
        "tensor_scalar_reduce 2 1",
        "tensor_scalar_cumulative 1 1",
        "tensor_tensor_scan 1 3",
    ]
