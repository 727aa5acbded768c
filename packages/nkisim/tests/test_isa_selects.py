from __future__ import annotations

import operator
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
from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion, ReduceCmd
from nkisim.isa.selects import nc_stream_shuffle, range_select, select_reduce
from nkisim.settings import Rules
from nkisim.tensor import NkiTensor

pytestmark = pytest.mark.filterwarnings("error")

PSUM = MemoryRegion.psum
F32 = np.float32
LOWEST = float(np.finfo(F32).min)
PREDICATES = (dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint16)
SELECTED = tuple(d for d in DTYPES if d not in (dtypes.int32, dtypes.uint32))


# ---- select_reduce ----


@settings(max_examples=120, deadline=None)
@given(
    predicate=st.sampled_from(PREDICATES),
    source=st.sampled_from(SELECTED),
    target=st.sampled_from(DTYPES),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 3),
    partitions=st.sampled_from([1, 9, 32, 64, 128]),
    elements=st.integers(1, 60),
    vector=st.booleans(),
    reverse=st.booleans(),
    seed=st.integers(0, 99),
)
def test_select_reduce(
    predicate: DType,
    source: DType,
    target: DType,
    layouts: tuple[str, str, str],
    partitions: int,
    elements: int,
    vector: bool,
    reverse: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    shape = (partitions, elements)
    chosen = rng.integers(0, 3, shape).astype(np.float64)
    on_true = sample(rng, shape, source)
    on_false = sample(rng, (partitions, 1), dtypes.float32) if vector else np.full((1, 1), -4.5)
    where = layouts[1], "plain" if layouts[1] == layouts[2] == "psum" else layouts[2]

    def body() -> tuple[Array, Array]:
        dst = laid(np.zeros(shape), target, layouts[0])
        maximum = empty((partitions, 1))
        select_reduce(
            dst,
            laid(chosen, predicate, where[0]),
            laid(on_true, source, where[1]),
            tile(on_false, dtypes.float32) if vector else -4.5,
            maximum,
            ReduceCmd.reset_reduce,
            reverse_pred=reverse,
        )
        return contents(dst), contents(maximum)

    take = (chosen == 0) if reverse else (chosen != 0)
    wanted = np.where(take, on_true, on_false)
    written, maximum = on_core(body)
    assert_same(written, stored(wanted, target))
    assert_same(maximum, wanted.max(1, keepdims=True).astype(F32))


def test_reduce_cmd_of_select_reduce() -> None:
    x = np.array([[1.0, 5.0, 2.0], [-3.0, -4.0, -9.0]], F32)
    y = np.array([[4.0, 1.0, 9.0], [-8.0, -8.0, -8.0]], F32)

    def body() -> list[Any]:
        yes = tile(np.ones((2, 3), np.uint8))
        dst, res = empty((2, 3)), empty((2, 1))
        seen: list[Any] = []

        def step(values: Array, command: Any, **more: Any) -> None:
            i = select_reduce(dst, yes, tile(values), 0.0, res, command, **more)
            assert i.engine is Engine.vector and len(i.writes) == 2
            seen.append(contents(res)[:, 0].tolist())

        step(x, "reset_reduce", reduce_op=nl.max_)
        step(y, ReduceCmd.reduce, reduce_op=np.maximum)
        step(x, ReduceCmd.idle)
        step(x, ReduceCmd.reset)
        select_reduce(dst, yes, tile(y), 0.0)
        assert_same(contents(dst), y)
        seen.append(core().accumulators[Engine.vector][:2].tolist())
        return seen

    low = -np.inf
    assert on_core(body) == [[5, -3], [9, -3], [9, -3], [low, low], [low, low]]


def test_select_reduce_takes_operands_of_other_ranks() -> None:
    on_true = np.arange(24, dtype=F32).reshape(2, 3, 4)
    predicate = (np.arange(24) % 2).astype(np.uint8).reshape(2, 12)

    def body() -> Array:
        dst = empty((2, 2, 2, 3))
        select_reduce(dst, tile(predicate), tile(on_true), -1)
        return contents(dst)

    assert_same(on_core(body), np.where(predicate, on_true.reshape(2, 12), F32(-1)))


def test_select_reduce_in_place_keeps_infinities() -> None:
    def body() -> Array:
        x = tile(np.array([[1.0, np.inf, -np.inf, 3.0]], F32))
        select_reduce(x, tile(np.array([[1, 1, 0, 0]], np.int8)), x, float("-inf"))
        return contents(x)

    assert on_core(body).tolist() == [[1.0, np.inf, -np.inf, -np.inf]]


def test_select_reduce_rejects() -> None:
    def call(
        predicate: Any = None, on_true: Any = None, on_false: Any = 0.0, dst: Any = None,
        reduce_res: Any = None, **more: Any,
    ) -> Any:  # fmt: skip
        def body() -> None:
            target = empty((4, 6)) if dst is None else dst()
            which = tile(np.ones((4, 6), np.uint8)) if predicate is None else predicate()
            source = tile(np.ones((4, 6), F32)) if on_true is None else on_true()
            other = on_false() if callable(on_false) else on_false
            result = reduce_res() if callable(reduce_res) else reduce_res
            select_reduce(target, which, source, other, result, **more)

        return body

    def ones(dtype: DType, shape: tuple[int, int] = (4, 6), region: Any = MemoryRegion.sbuf) -> Any:
        return lambda: tile(np.ones(shape), dtype, region)

    for dtype in (dtypes.tfloat32, dtypes.int32, dtypes.uint32):
        rejected(call(on_true=ones(dtype)), f"on_true is {dtype}")
    for dtype in (dtypes.int32, dtypes.uint32, dtypes.float32, dtypes.bfloat16):
        rejected(call(predicate=ones(dtype)), f"predicate is {dtype}", "uint8")
    rejected(
        call(predicate=ones(dtypes.uint8, region=PSUM), on_true=ones(dtypes.float32, region=PSUM)),
        "predicate and on_true",
        "PSUM",
    )
    rejected(call(predicate=ones(dtypes.uint8, (4, 1))), "predicate is", "[4, 1]")
    rejected(call(on_true=ones(dtypes.float32, (3, 6))), "on_true has 3 partitions")
    rejected(call(on_false=ones(dtypes.float32)), "on_false is", "[4, 6]")
    refused(call(on_false=None), "on_false is None")
    rejected(call(reduce_res=ones(dtypes.float32, (4, 2))), "reduce_res is", "[4, 2]")
    rejected(call(reduce_res=ones(dtypes.int16, (4, 1))), "reduce_res is int16")
    for op in (nl.add, nl.minimum, nl.abs_max):
        rejected(call(reduce_op=op), f"reduce_op is {op.__name__}", "maximum")
    rejected(call(reduce_cmd=ReduceCmd.load_reduce), "reduce_cmd is reduce_cmd.load_reduce")
    refused(call(reduce_cmd=0), "reduce_cmd is 0")
    rejected(call(on_true=lambda: empty((4, 6))), "on_true reads", "nothing has written")
    rejected(call(dst=lambda: empty((4, 6), dtypes.float4_e2m1fn_x4)), "dst is float4_e2m1fn_x4")


# ---- range_select ----

COMPARISONS = {
    "equal": operator.eq,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


@settings(max_examples=120, deadline=None)
@given(
    comparisons=st.tuples(*[st.sampled_from(sorted(COMPARISONS))] * 2),
    source=st.sampled_from(FLOATS[:3]),
    target=st.sampled_from(FLOATS),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    partitions=st.sampled_from([1, 5, 32, 64, 128]),
    elements=st.integers(1, 60),
    begin=st.sampled_from([0, 1, 100, (1 << 24) - 60, 3.0]),
    seed=st.integers(0, 99),
)
def test_range_select(
    comparisons: tuple[str, str],
    source: DType,
    target: DType,
    layouts: tuple[str, str],
    partitions: int,
    elements: int,
    begin: Any,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    values = sample(rng, (partitions, elements), source)
    bounds = begin + rng.integers(-2, elements + 2, (2, partitions, 1)).astype(F32)

    def body() -> tuple[Array, Array]:
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        maximum = empty((partitions, 1))
        range_select(
            dst,
            laid(values, source, layouts[1]),
            getattr(nl, comparisons[0]),
            getattr(nl, comparisons[1]),
            tile(bounds[0]),
            tile(bounds[1]),
            reduce_res=maximum,
            range_start=begin,
        )
        return contents(dst), contents(maximum)

    wanted = np.empty((partitions, elements), F32)
    for p in range(partitions):
        for i in range(elements):
            inside = all(
                COMPARISONS[name](begin + i, bound[p, 0])
                for name, bound in zip(comparisons, bounds, strict=True)
            )
            wanted[p, i] = values[p, i] if inside else LOWEST
    # what is too large for an 8-bit type is the point here
    written, maximum = on_core(body, rules=Rules(fp8_overflow="off"))
    assert_same(written, stored(wanted, target))
    assert_same(maximum, wanted.max(1, keepdims=True))


def causal(dtype: DType = dtypes.float32, **more: Any) -> Any:
    """Row p of 4 keeps elements 0..p of 6."""

    def body() -> tuple[Array, Array]:
        dst = empty((4, 6), dtype)
        low, high = tile(np.zeros((4, 1), F32)), tile(np.arange(4, dtype=F32)[:, None])
        ones = tile(np.ones((4, 6), F32))
        result = empty((4, 1))
        range_select(
            dst, ones, nl.greater_equal, nl.less_equal, low, high, reduce_res=result, **more
        )
        return contents(dst), contents(result)

    return on_core(body)


def test_a_causal_mask_in_bfloat16() -> None:
    written, result = causal(dtypes.bfloat16)
    kept = np.arange(6) <= np.arange(4)[:, None]
    assert_same(written.astype(F32), np.where(kept, F32(1), F32(-np.inf)))
    assert (result == 1).all()


@pytest.mark.parametrize("value", [LOWEST, np.float32(LOWEST), -3.4028235e38])
def test_on_false_value_is_the_least_number(value: Any) -> None:
    written, _ = causal(on_false_value=value)
    assert written[0].tolist() == [1.0] + [LOWEST] * 5


def test_reduce_cmd_of_range_select() -> None:
    def body() -> list[Any]:
        dst, res = empty((1, 4)), empty((1, 1))
        low, high = tile(np.zeros((1, 1), F32)), tile(np.full((1, 1), 2, F32))
        seen: list[Any] = []

        def step(values: list[float], command: Any = ReduceCmd.reset_reduce) -> None:
            x = tile(np.array([values], F32))
            range_select(dst, x, nl.greater_equal, nl.less, low, high, command, res)
            seen.append(contents(res).item())

        step([1, 2, 30, 40])
        step([7, 8, 30, 40], ReduceCmd.reduce)
        step([99, 0, 0, 0], ReduceCmd.idle)
        step([5, 0, 0, 0], ReduceCmd.reduce)
        step([5, 0, 0, 0], ReduceCmd.reset)
        step([5, 0, 0, 0], "reset_reduce")
        return seen

    assert on_core(body) == [2, 8, 8, 8, -np.inf, 5]


def test_range_select_rejects() -> None:
    def call(
        comp_op0: Any = nl.greater_equal, comp_op1: Any = nl.less, bound0: Any = None,
        bound1: Any = None, dst: Any = None, on_true_tile: Any = None, **more: Any,
    ) -> Any:  # fmt: skip
        def body() -> None:
            bound = np.ones((4, 1), F32)
            given = {k: v() if callable(v) and k == "reduce_res" else v for k, v in more.items()}
            range_select(
                empty((4, 6)) if dst is None else dst(),
                tile(np.ones((4, 6), F32)) if on_true_tile is None else on_true_tile(),
                comp_op0,
                comp_op1,
                tile(bound) if bound0 is None else bound0(),
                tile(bound) if bound1 is None else bound1(),
                **given,
            )

        return body

    rejected(call(), "range_select", "gen3", target="gen2")
    rejected(call(comp_op0=nl.not_equal), "comp_op0 is not_equal", "less_equal")
    rejected(call(comp_op1=nl.add), "comp_op1 is add", "greater")
    rejected(call(bound0=lambda: tile(np.ones((4, 1)), dtypes.bfloat16)), "bound0 is bfloat16")
    rejected(call(bound1=lambda: tile(np.ones((4, 1)), dtypes.int32)), "bound1 is int32")
    rejected(call(bound1=lambda: tile(np.ones((4, 2), F32))), "bound1 is", "[4, 2]")
    refused(call(bound0=lambda: 1.0), "bound0 is 1.0")
    rejected(call(dst=lambda: empty((4, 6), dtypes.int32)), "dst is int32", "floating")
    rejected(call(on_true_tile=lambda: tile(np.ones((4, 6), np.int8))), "on_true_tile is int8")
    rejected(call(on_true_tile=lambda: tile(np.ones((4, 5), F32))), "on_true_tile is", "[4, 5]")
    for value in (0.0, -1e38, float("-inf"), float("nan"), None, "min"):
        rejected(call(on_false_value=value), f"on_false_value is {value!r}")
    rejected(call(range_start=-1), "range_start is -1")
    rejected(call(range_start=(1 << 24) - 5), f"range_start is {(1 << 24) - 5}", f"{(1 << 24) - 6}")
    refused(call(range_start=0.5), "range_start is 0.5")
    refused(call(range_start="0"), "range_start is '0'")
    rejected(call(reduce_op=nl.add), "reduce_op is add", "maximum")
    rejected(call(reduce_cmd=ReduceCmd.load_reduce), "load_reduce")
    refused(call(reduce_cmd=3), "reduce_cmd is 3")
    rejected(call(reduce_res=lambda: empty((4, 3))), "reduce_res is", "[4, 3]")
    rejected(call(reduce_res=lambda: empty((4, 1), dtypes.uint8)), "reduce_res is uint8")


# ---- nc_stream_shuffle ----

KEEP = 255


@settings(max_examples=80, deadline=None)
@given(
    mask=st.lists(st.integers(0, 31) | st.just(KEEP), min_size=32, max_size=32),
    dtype=st.sampled_from(DTYPES),
    quadrants=st.integers(1, 4),
    layouts=st.tuples(*[st.sampled_from(["plain", "three", "strided", "permuted", "psum"])] * 2),
    elements=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_nc_stream_shuffle(
    mask: list[int],
    dtype: DType,
    quadrants: int,
    layouts: tuple[str, str],
    elements: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    before, source = sample(rng, (2, 32 * quadrants, elements), dtype)

    def body() -> Array:
        dst = laid(before, dtype, layouts[0])
        nc_stream_shuffle(dst, laid(source, dtype, layouts[1]), mask)
        return contents(dst)

    wanted = before.copy()
    for q in range(quadrants):
        for i, entry in enumerate(mask):
            if entry != KEEP:
                wanted[32 * q + i] = source[32 * q + entry]
    assert_same(on_core(body), wanted.astype(dtype.numpy))


@pytest.mark.parametrize("partitions", [1, 7, 32, 40, 64, 96, 128])
def test_one_partition_for_all(partitions: int) -> None:
    row = np.linspace(-1, 1, 20, dtype=F32)[None]

    def body() -> Array:
        dst = empty((partitions, 20))
        instruction = nc_stream_shuffle(dst, tile(row), [0] * 32)
        assert instruction.engine is Engine.vector and len(instruction.reads) == 1
        return contents(dst)

    assert_same(on_core(body), np.repeat(row, partitions, 0))


def test_the_first_partition_of_a_tile_to_all_of_it() -> None:
    def body() -> Array:
        t = tile(np.arange(96, dtype=np.int32).reshape(32, 3))
        nc_stream_shuffle(t, t[0:1], tuple([0] * 32))
        return contents(t)

    assert_same(on_core(body), np.tile(np.array([0, 1, 2], np.int32), (32, 1)))


def test_an_exchange_in_place() -> None:
    values = np.arange(64, dtype=F32)[:, None]

    def body() -> Array:
        t = tile(values)
        mask = np.arange(32) ^ 1
        nc_stream_shuffle(t, t, mask)
        return contents(t)

    assert_same(on_core(body), values.reshape(32, 2)[:, ::-1].reshape(64, 1).copy())


def test_a_kept_partition_is_read() -> None:
    def body() -> None:
        nc_stream_shuffle(empty((32, 4)), tile(np.ones((32, 4), F32)), [KEEP] + [0] * 31)

    rejected(body, "dst reads", "nothing has written")


def test_nc_stream_shuffle_keeps_bits() -> None:
    bits = np.array([[0x7FA00001, 0xFFC12345]], np.uint32)

    def body() -> Array:
        source = tile(bits)
        dst = empty((2, 2))
        nc_stream_shuffle(dst, source.view(dtypes.float32), [0] * 32)
        return contents(dst.view(dtypes.uint32))

    assert_same(on_core(body), np.repeat(bits, 2, 0))


def test_nc_stream_shuffle_rejects() -> None:
    def call(mask: Any = None, dst: Any = None, src: Any = None) -> Any:
        def body() -> None:
            nc_stream_shuffle(
                empty((32, 4)) if dst is None else dst(),
                tile(np.ones((32, 4), F32)) if src is None else src(),
                [0] * 32 if mask is None else mask,
            )

        return body

    def at(partitions: int, first: int) -> Any:
        def make() -> NkiTensor:
            address = (first, 4096 * len(core().trace.places))
            tensor = empty((partitions, 4), address=address)
            tensor.storage.coverage.full = True
            return tensor

        return make

    rejected(call(mask=[0] * 31), "shuffle_mask is", "32 numbers")
    rejected(call(mask=[0] * 31 + [32]), "shuffle_mask is", "255")
    rejected(call(mask=[0] * 31 + [-1]), "shuffle_mask is")
    refused(call(mask=[0] * 31 + ["0"]), "shuffle_mask is")
    refused(call(mask=5), "shuffle_mask is 5")
    rejected(
        call(src=lambda: tile(np.ones((32, 4)), dtypes.bfloat16)), "src is bfloat16", "float32"
    )
    rejected(call(src=lambda: tile(np.ones((32, 5), F32))), "src is", "[32, 5]")
    rejected(call(mask=[20] * 32, src=lambda: tile(np.ones((20, 4), F32))), "partition 20", "20")
    rejected(
        call(mask=[20] * 32, src=lambda: tile(np.ones((20, 4), F32))),
        "partition 20",
        numerics=False,
    )
    # up to 32 partitions could begin at 32 by themselves; with 64 active ones they cannot
    rejected(
        call(dst=at(64, 0), src=at(1, 32)), "src starts at partition 32", "64 active", "0 and 64"
    )
    rejected(
        call(dst=at(32, 32), src=at(96, 0)), "dst starts at partition 32", "96 active", "only 0"
    )
    assert on_core(call(dst=at(64, 64), src=at(1, 0))) is None
    assert on_core(call(dst=at(32, 96), src=at(32, 32))) is None


# ---- without numerics ----


def test_shapes_alone() -> None:
    def body() -> list[str]:
        x, one = empty((64, 16)), empty((64, 1))
        pred = empty((64, 16), dtypes.uint8)
        for tensor in (x, one, pred):
            tensor.storage.coverage.full = True
        select_reduce(x, pred, x, one, one, ReduceCmd.reduce)
        range_select(x, x, nl.greater, nl.less, one, one, reduce_res=one)
        nc_stream_shuffle(x, x, [KEEP] * 32)
        return [f"{i.op} {len(i.writes)} {len(i.reads)}" for i in core().trace]

    assert on_core(body, numerics=False) == [
        "select_reduce 2 3",
        "range_select 2 3",
        "nc_stream_shuffle 1 2",
    ]
    assert set(PREDICATES) < set(INTEGERS)
