from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
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
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.gpsimd import (
    affine_select,
    iota,
    nonzero_with_count,
    sequence_bounds,
    tensor_partition_reduce,
)
from nkisim.register import VirtualRegister

PSUM = MemoryRegion.psum
SBUF_LAYOUTS = [layout for layout in LAYOUTS if layout != "psum"]
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
}


def wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def affine(P: int, pattern: Sequence[Sequence[int]], offset: int, multiplier: int) -> Array:
    """The documented formula, one element at a time in Python integers, modulo 2 ** 32."""
    steps = [step for step, _ in pattern]
    places = itertools.product(*(range(num) for _, num in pattern))
    free = [sum(s * i for s, i in zip(steps, place, strict=True)) for place in places]
    rows = [[wrapped(offset + p * multiplier + f) for f in free] for p in range(P)]
    return np.array(rows, np.int64)


# ---- iota ----


@pytest.mark.parametrize("dtype", [*FLOATS[:3], *INTEGERS])
@pytest.mark.parametrize(
    ("P", "pattern", "offset", "multiplier"),
    [
        (128, [[1, 512]], 0, 0),
        (128, [[0, 4]], 0, 1),
        (4, [[-3, 5], [2, 7]], -9, 100),
        (33, [(2, 2), (3, 3), (-5, 2), (0, 4)], 70000, -11),
        (1, [[1, 1]], -1, 5),
    ],
)
def test_iota(dtype: Any, P: int, pattern: Any, offset: int, multiplier: int) -> None:
    N = math.prod(num for _, num in pattern)

    def body() -> Array:
        dst = empty((P, N), dtype)
        iota(dst, pattern, offset, multiplier)
        return contents(dst)

    numbers = affine(P, pattern, offset, multiplier)
    assert_same(on_core(body), stored(numbers, dtype))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.lists(
        st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(1, 4)), min_size=1, max_size=4
    ),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
)
def test_iota_is_exact_modulo_two_to_the_32(
    P: int, pattern: Any, offset: int, multiplier: int
) -> None:
    def body() -> Array:
        dst = empty((P, math.prod(num for _, num in pattern)), dtypes.int32)
        iota(dst, pattern, offset, channel_multiplier=multiplier)
        return contents(dst)

    assert_same(on_core(body), affine(P, pattern, offset, multiplier).astype(np.int32))


def test_iota_counts_from_the_first_partition_of_a_strided_dst() -> None:
    def body() -> tuple[Array, Array]:
        whole = tile(np.full((128, 9), 7), dtypes.int32)
        iota(whole[32:64, 1:9:2], [[10, 2], [1, 2]], 5, 1000)
        return contents(whole), contents(whole[32:64, 1:9:2])

    whole, view = on_core(body)
    assert_same(view, affine(32, [[10, 2], [1, 2]], 5, 1000).astype(np.int32))
    whole[32:64, 1:9:2] = 7
    assert (whole == 7).all()


@pytest.mark.parametrize("value", [0, 3, -70000, 2**31 - 1])
def test_offset_in_a_register(value: int) -> None:
    def body() -> tuple[Array, Array]:
        register = VirtualRegister(value)
        dst, picked = empty((4, 6), dtypes.int32), empty((4, 6))
        iota(dst, [[1, 6]], offset=register, channel_multiplier=2)
        ones = tile(np.ones((4, 6)), dtypes.float32)
        affine_select(picked, [[1, 6]], 2, ones, 0.0, nl.greater, offset=register)
        return contents(dst), contents(picked)

    numbers = affine(4, [[1, 6]], value, 2)
    dst, picked = on_core(body)
    assert_same(dst, numbers.astype(np.int32))
    assert_same(picked, (numbers > 0).astype(np.float32))


def test_register_without_a_value() -> None:
    def body() -> None:
        dst = empty((4, 6), dtypes.int32)
        iota(dst, [[1, 6]], VirtualRegister())
        affine_select(dst, [[1, 6]], 1, dst, 0, offset=VirtualRegister())

    rejected(body, "iota: offset", "no value")
    # addresses do not depend on it, so a run without numerics has no need of it
    on_core(body, numerics=False)


def test_register_with_a_fraction() -> None:
    rejected(
        lambda: iota(empty((4, 6), dtypes.int32), [[1, 6]], VirtualRegister(2.5)),
        "iota: offset", "2.5", "integer",
    )  # fmt: skip


def test_iota_belongs_to_gpsimd() -> None:
    instruction = on_core(lambda: iota(empty((4, 6)), [[1, 6]], name="numbers"))
    assert instruction.engine is Engine.gpsimd
    assert (instruction.op, instruction.name, instruction.reads) == ("iota", "numbers", ())
    assert len(instruction.writes) == 1


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ([[1, 5]], ("pattern", "[[1, 5]]", "5 elements", "6")),
        ([[1, 2], [1, 2]], ("pattern", "4 elements")),
        ([[1, 6], [1, 1], [1, 1], [1, 1], [1, 1]], ("pattern", "1 to 4 pairs")),
        ([], ("pattern", "[]", "1 to 4 pairs")),
        ([[1, 0]], ("pattern", "[[1, 0]]", "num at least 1")),
    ],
)
def test_patterns_that_are_none(pattern: Any, words: tuple[str, ...]) -> None:
    rejected(lambda: iota(empty((4, 6)), pattern), "iota", *words)
    rejected(
        lambda: affine_select(empty((4, 6)), pattern, 1, tile(np.ones((4, 6)), dtypes.float32), 0),
        "affine_select", *words,
    )  # fmt: skip


def test_what_iota_rejects() -> None:
    rejected(lambda: iota(empty((4, 6), region=PSUM), [[1, 6]]), "iota: dst", "SBUF")
    rejected(lambda: iota(empty((8, 6))[3:7], [[1, 6]]), "iota: dst", "partition 3")
    packed = dtypes.float8_e4m3fn_x4
    rejected(lambda: iota(empty((4, 6), packed), [[1, 6]]), "iota: dst", "float8_e4m3fn_x4")
    refused(lambda: iota(empty((4, 6)), [[1.5, 6]]), "iota: pattern", "1.5")
    refused(lambda: iota(empty((4, 6)), 6), "iota: pattern", "6")
    refused(lambda: iota(empty((4, 6)), [[1, 6]], 0.5), "iota: offset", "0.5")
    refused(lambda: iota(empty((4, 6)), [[1, 6]], 0, 0.5), "iota: channel_multiplier", "0.5")
    refused(lambda: iota(np.zeros((4, 6)), [[1, 6]]), "iota: dst", "tensor")


# ---- affine_select ----


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("layout", SBUF_LAYOUTS)
def test_affine_select_layouts(name: str, layout: str) -> None:
    P, pattern, offset, multiplier = 32, [[-4, 6], [1, 4]], 2, 1
    values = sample(np.random.default_rng(3), (P, 24), dtypes.float32)

    def body() -> tuple[Array, Array]:
        data = laid(values, dtypes.float32, layout)
        other, same = empty((P, 24)), laid(values, dtypes.float32, layout)
        affine_select(other, pattern, multiplier, data, -1.5, getattr(nl, name), offset)
        affine_select(same, pattern, multiplier, same, -1.5, getattr(nl, name), offset)
        return contents(other), contents(same)

    numbers = affine(P, pattern, offset, multiplier)
    wanted = [
        [v if COMPARISONS[name](int(n), 0) else -1.5 for v, n in zip(row, line, strict=True)]
        for row, line in zip(values, numbers, strict=True)
    ]
    for found in on_core(body):
        assert_same(found, np.array(wanted, np.float32))


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", [dtypes.float32, dtypes.bfloat16, dtypes.int16, dtypes.uint8])
def test_affine_select_converts(source: Any, target: Any) -> None:
    values = sample(np.random.default_rng(4), (16, 10), source)

    def body() -> Array:
        dst = empty((16, 10), target)
        affine_select(dst, [[-1, 10]], 1, tile(values, source), 2.5, nl.greater_equal)
        return contents(dst)

    mask = affine(16, [[-1, 10]], 0, 1) >= 0
    assert_same(on_core(body), stored(np.where(mask, values, 2.5), target))


def test_causal_mask() -> None:
    """Key k is seen by query q when q - k >= 0; the usual mask of attention."""
    scores = np.random.default_rng(5).standard_normal((64, 64)).astype(np.float32)
    lowest = -3.4028235e38

    def body() -> tuple[Array, Array]:
        data = tile(scores)
        dst, narrow = empty((64, 64)), empty((64, 64), dtypes.bfloat16)
        affine_select(
            dst, pattern=[[-1, 64]], channel_multiplier=1, on_true_tile=data,
            on_false_value=lowest, cmp_op=nl.greater_equal,
        )  # fmt: skip
        affine_select(narrow, [[-1, 64]], 1, data, lowest, nl.greater_equal)
        return contents(dst), contents(narrow)

    dst, narrow = on_core(body)
    visible = np.tril(np.ones((64, 64), bool))
    assert_same(dst, np.where(visible, scores, np.float32(lowest)))
    # the lowest float32 rounds past what bfloat16 holds
    assert np.isneginf(narrow.astype(np.float32)[~visible]).all()


def test_affine_select_by_default_compares_for_equality_at_offset_zero() -> None:
    def body() -> Array:
        dst = empty((8, 8))
        affine_select(dst, [[-1, 8]], 1, tile(np.ones((8, 8)), dtypes.float32), 0)
        return contents(dst)

    assert_same(on_core(body), np.eye(8, dtype=np.float32))


def test_same_integers_and_bits_stay_exact() -> None:
    odd = np.array([[2**24 + 1, -(2**31), 2**31 - 1, 0x01234567]], np.int64)
    payload = np.array([[0x7F800001, 0xFFC12345, 0x80000000, 1]], np.uint32)

    def body() -> tuple[Array, Array]:
        integers, floats = empty((1, 4), dtypes.int32), empty((1, 4))
        affine_select(integers, [[1, 4]], 0, tile(odd, dtypes.int32), 2**24 + 3, nl.less)
        same = empty((1, 4), dtypes.int32)
        affine_select(same, [[1, 4]], 0, tile(odd, dtypes.int32), 0, nl.greater_equal)
        affine_select(floats, [[1, 4]], 0, tile(payload.view(np.float32)), 0.5, nl.greater_equal)
        return contents(integers), contents(same), contents(floats).view(np.uint32)

    other, same, floats = on_core(body)
    assert (other == 2**24 + 3).all()
    assert_same(same, odd.astype(np.int32))
    assert_same(floats, payload)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(COMPARISONS)),
    st.lists(st.tuples(st.integers(-40, 40), st.integers(1, 5)), min_size=1, max_size=4),
    st.integers(-60, 60),
    st.integers(-9, 9),
    st.integers(1, 9),
)
def test_affine_select_anywhere(
    name: str, pattern: Any, offset: int, multiplier: int, P: int
) -> None:
    N = math.prod(num for _, num in pattern)
    values = np.arange(P * N, dtype=np.float32).reshape(P, N)

    def body() -> Array:
        dst = empty((P, N))
        affine_select(dst, pattern, multiplier, tile(values), -1, name, offset)
        return contents(dst)

    numbers = affine(P, pattern, offset, multiplier)
    mask = np.array([[COMPARISONS[name](int(n), 0) for n in row] for row in numbers])
    assert_same(on_core(body), np.where(mask, values, np.float32(-1)))


def test_what_affine_select_rejects() -> None:
    def ones() -> Any:
        return tile(np.ones((4, 6)), dtypes.float32)

    def select(dst: Any = None, data: Any = None, value: Any = 0.0, op: Any = nl.less) -> Any:
        dst = empty((4, 6)) if dst is None else dst
        return affine_select(dst, [[1, 6]], 1, ones() if data is None else data, value, op)

    def in_psum() -> Any:
        return tile(np.ones((4, 6)), dtypes.float32, PSUM)

    rejected(lambda: select(dst=in_psum()), "affine_select: dst", "SBUF")
    rejected(lambda: select(data=in_psum()), "affine_select: on_true_tile", "SBUF")
    rejected(lambda: select(dst=empty((5, 6))), "on_true_tile has 4 partitions", "dst 5")
    rejected(lambda: select(dst=empty((4, 7))), "on_true_tile", "6 elements", "7")
    rejected(lambda: select(op=nl.add), "cmp_op is add", "less_equal")
    rejected(lambda: select(op="nonsense"), "cmp_op", "nonsense")
    packed = dtypes.float8_e5m2_x4
    rejected(lambda: select(dst=empty((4, 6), packed)), "dst", "float8_e5m2_x4")
    rejected(lambda: select(data=empty((4, 6))), "on_true_tile", "nothing has written")
    refused(lambda: select(value=ones()), "on_false_value", "number")
    refused(lambda: select(data=np.ones((4, 6))), "on_true_tile", "tensor")


# ---- tensor_partition_reduce ----

IN_DOUBLE: dict[str, Callable[[Array], Array]] = {
    "add": lambda x: x.sum(0),
    "average": lambda x: x.mean(0),
    "max": lambda x: x.max(0),
}


@pytest.mark.parametrize("name", IN_DOUBLE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("P", [1, 2, 77, 128])
def test_partition_reduce_dtypes(name: str, dtype: Any, P: int) -> None:
    values = sample(np.random.default_rng(P), (P, 20), dtype)
    op = {"add": nl.add, "average": nl.average, "max": nl.max_}[name]

    def body() -> tuple[Array, Array]:
        data = tile(values, dtype)
        single, same = empty((1, 20)), empty((1, 20), dtypes.bfloat16)
        tensor_partition_reduce(single, op, data)
        tensor_partition_reduce(same, op, data)
        return contents(single), contents(same)

    single, same = on_core(body)
    wanted = IN_DOUBLE[name](values)[None]
    assert_near(single, wanted, absolute=1e-4)
    assert_near(same, wanted, absolute=1e-4)


@pytest.mark.parametrize("layout", SBUF_LAYOUTS)
@pytest.mark.parametrize("name", ["bitwise_or", "bitwise_and"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_partition_reduce_bits(name: str, dtype: Any, layout: str) -> None:
    limits = np.iinfo(dtype.numpy)
    rng = np.random.default_rng(9)
    values = rng.integers(limits.min, limits.max, (40, 12), endpoint=True)
    if name == "bitwise_and":
        values |= rng.integers(0, limits.max, (1, 12))

    def body() -> Array:
        dst = empty((1, 12), dtype)
        tensor_partition_reduce(dst, getattr(nl, name), laid(values, dtype, layout))
        return contents(dst)

    expected = []
    for column in values.T.tolist():
        bits = column[0]
        for value in column[1:]:
            bits = bits | value if name == "bitwise_or" else bits & value
        expected.append(bits)
    assert_same(on_core(body), np.array([expected], np.int64).astype(dtype.numpy))


def test_signs_of_equal_width_keep_their_bits() -> None:
    def body() -> Array:
        dst = empty((1, 1), dtypes.uint32)
        data = tile([[-(2**31)], [1]], dtypes.int32)
        tensor_partition_reduce(dst, nl.bitwise_or, data)
        return contents(dst)

    assert on_core(body) == 0x80000001


def test_only_the_first_partition_is_written() -> None:
    """The ring attention kernel gives one tile as dst and data, and reads its first row."""
    values = sample(np.random.default_rng(1), (128, 3), dtypes.float32)

    def body() -> tuple[Array, Array, Array]:
        both = tile(values, dtypes.float32)
        tensor_partition_reduce(both, nl.maximum, both)
        upper = tile(values, dtypes.float32)
        tensor_partition_reduce(upper[64:128], nl.add, upper[0:64])
        fresh = empty((128, 3))
        instruction = tensor_partition_reduce(fresh, nl.add, tile(values, dtypes.float32))
        assert instruction.engine is Engine.gpsimd
        return contents(both), contents(upper), contents(fresh[0:1])

    both, upper, fresh = on_core(body)
    assert_same(both[0], values.max(0).astype(np.float32))
    assert_same(both[1:], values[1:].astype(np.float32))
    assert_near(upper[64], values[:64].sum(0))
    assert_same(np.delete(upper, 64, 0), np.delete(values, 64, 0).astype(np.float32))
    assert_near(fresh[0], values.sum(0), absolute=1e-4)


def test_the_other_partitions_of_dst_stay_unwritten() -> None:
    def body() -> None:
        dst = empty((4, 3))
        tensor_partition_reduce(dst, nl.add, tile(np.ones((4, 3)), dtypes.float32))
        affine_select(empty((4, 3)), [[1, 3]], 0, dst, 0.0)

    rejected(body, "on_true_tile", "nothing has written")


def test_what_partition_reduce_rejects() -> None:
    def reduce(op: Any, dst: Any = None, data: Any = None) -> Any:
        dst = empty((1, 6)) if dst is None else dst
        data = tile(np.ones((4, 6)), dtypes.float32) if data is None else data
        return tensor_partition_reduce(dst, op, data)

    what = "tensor_partition_reduce: "
    rejected(lambda: reduce(nl.multiply), what + "op is multiply", "average, bitwise_and")
    rejected(lambda: reduce(nl.min_), what + "op is minimum")
    rejected(lambda: reduce(nl.bitwise_or), what + "dst is float32", "integers")
    rejected(lambda: reduce(nl.add, empty((1, 6), region=PSUM)), what + "dst", "SBUF")
    in_psum = lambda: tile(np.ones((4, 6)), dtypes.float32, PSUM)  # noqa: E731
    rejected(lambda: reduce(nl.add, data=in_psum()), what + "data", "SBUF")
    rejected(lambda: reduce(nl.add, empty((1, 7))), what + "dst", "7 elements", "6")
    rejected(
        lambda: reduce(nl.bitwise_or, empty((1, 6), dtypes.int16), tile([[1] * 6], dtypes.int32)),
        what + "dst is int16 and data int32", "same width",
    )  # fmt: skip
    rejected(lambda: reduce(nl.add, empty((1, 6), dtypes.float8_e4m3fn_x4)), what + "dst", "packed")


# ---- nonzero_with_count ----


def nonzero(src: Array, shift: int, padding: int) -> dict[int, list[int]]:
    T = src.shape[1]
    rows = {}
    for p in range(0, src.shape[0], 16):
        found = [i + shift for i in range(T) if src[p, i] != 0]
        rows[p] = found + [padding] * (T - len(found)) + [len(found)]
    return rows


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int32])
@pytest.mark.parametrize("layout", SBUF_LAYOUTS)
@pytest.mark.parametrize(("P", "shift", "padding"), [(128, 0, -1), (20, 100, -7), (1, -3, 0)])
def test_nonzero_with_count(dtype: Any, layout: str, P: int, shift: int, padding: int) -> None:
    rng = np.random.default_rng(P)
    src = np.round(rng.standard_normal((P, 24))) * (rng.random((P, 24)) < 0.6)

    def body() -> Array:
        dst = tile(np.full((P, 25), 12345), dtypes.int32)
        nonzero_with_count(dst, laid(src, dtype, layout), shift, padding_val=padding)
        return contents(dst)

    wanted = np.full((P, 25), 12345, np.int32)
    for p, row in nonzero(src, shift, padding).items():
        wanted[p] = row
    assert_same(on_core(body, "gen3"), wanted)


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ([0.0, -0.0, 0.0], [-1, -1, -1, 0]),
        ([math.nan, 0.0, 2.0**-149], [0, 2, -1, 2]),
        ([1.0, math.inf, -1.0], [0, 1, 2, 3]),
    ],
)
def test_what_is_nonzero(row: list[float], wanted: list[int]) -> None:
    def body() -> Array:
        dst = empty((1, 4), dtypes.int32)
        nonzero_with_count(dst, tile([row], dtypes.float32))
        return contents(dst)

    assert on_core(body).tolist() == [wanted]


def test_nonzero_leaves_partitions_between_unread_and_unwritten() -> None:
    def body() -> Array:
        src, dst = empty((32, 3)), empty((32, 4), dtypes.int32)
        for p in (0, 16):
            src[p : p + 1].assign(np.array([[p, 0, 1]], np.float32))
        # marks no more than these two rows as written
        core().issue("dma_copy", Engine.dma, [src[0:1], src[16:17]], [])
        instruction = nonzero_with_count(dst, src)
        assert [(w.p0, w.p1) for w in instruction.writes] == [(0, 1), (16, 17)]
        return np.concatenate([contents(dst[p : p + 1]) for p in (0, 16)])

    assert on_core(body).tolist() == [[2, -1, -1, 1], [0, 2, -1, 2]]


def test_what_nonzero_with_count_rejects() -> None:
    def count(dst: Any = None, src: Any = None, **options: Any) -> Any:
        dst = empty((16, 5), dtypes.int32) if dst is None else dst
        src = tile(np.ones((16, 4)), dtypes.float32) if src is None else src
        return nonzero_with_count(dst, src, **options)

    what = "nonzero_with_count"
    rejected(count, what, "gen3", "gen2", target="gen2")
    rejected(lambda: count(empty((16, 4), dtypes.int32)), what + ": dst", "5 elements")
    rejected(lambda: count(empty((32, 5), dtypes.int32)), what + ": dst", "16 partitions")
    rejected(lambda: count(empty((16, 5))), what + ": dst is float32", "int32")
    half = lambda: tile(np.ones((16, 4)), dtypes.bfloat16)  # noqa: E731
    rejected(lambda: count(src=half()), what + ": src is bfloat16", "float32, int32")
    rejected(lambda: count(empty((16, 5), dtypes.int32, PSUM)), what + ": dst", "SBUF")
    psum = lambda: tile(np.ones((16, 4)), dtypes.float32, PSUM)  # noqa: E731
    rejected(lambda: count(src=psum()), what + ": src", "SBUF")
    refused(lambda: count(index_offset=0.5), what + ": index_offset", "0.5")
    refused(lambda: count(padding_val=0.5), what + ": padding_val", "0.5")


# ---- sequence_bounds ----


def bounds(ids: Sequence[float]) -> list[list[int]]:
    """For each element: walk to both ends of its run."""
    n = len(ids)
    starts, ends = [], []
    for i, own in enumerate(ids):
        first, after = i, i + 1
        while first and ids[first - 1] == own:
            first -= 1
        while after < n and ids[after] == own:
            after += 1
        starts.append(n if own == 0 else first)
        ends.append(-1 if own == 0 else after)
    return [starts, ends]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(-1, 3), min_size=1, max_size=40),
    st.sampled_from([dtypes.float32, dtypes.int32]),
    st.sampled_from([dtypes.float32, dtypes.int32]),
)
def test_sequence_bounds(ids: list[int], source: Any, target: Any) -> None:
    def body() -> Array:
        dst = empty((1, 2, len(ids)), target)
        instruction = sequence_bounds(dst, tile([ids], source))
        assert instruction.engine is Engine.gpsimd
        return dst.array().copy()

    found = on_core(body)
    assert found.dtype == target.numpy
    assert found[0].tolist() == bounds(ids)


def test_sequence_bounds_of_a_packed_batch() -> None:
    """Sequences of 3, 2 and 1 tokens, then padding."""

    def body() -> Array:
        dst = empty((1, 2, 8), dtypes.int32)
        sequence_bounds(dst, tile([[1, 1, 1, 2, 2, 3, 0, 0]], dtypes.int32))
        return dst.array().copy()

    assert on_core(body)[0].tolist() == [[0, 0, 0, 3, 3, 5, 8, 8], [3, 3, 3, 5, 5, 6, -1, -1]]


def test_what_sequence_bounds_rejects() -> None:
    def find(dst: Any = None, ids: Any = None) -> Any:
        dst = empty((1, 2, 6), dtypes.int32) if dst is None else dst
        return sequence_bounds(dst, tile([[1] * 6], dtypes.int32) if ids is None else ids)

    what = "sequence_bounds: "
    two = lambda: tile([[1] * 6] * 2, dtypes.int32)  # noqa: E731
    rejected(lambda: find(ids=two()), what + "segment_ids", "one partition")
    rejected(lambda: find(empty((1, 12), dtypes.int32)), what + "dst", "[1, 2, 6]")
    rejected(lambda: find(empty((1, 2, 7), dtypes.int32)), what + "dst", "[1, 2, 6]")
    rejected(lambda: find(empty((1, 2, 6), dtypes.int16)), what + "dst is int16", "float32, int32")
    short = lambda: tile([[1] * 6], dtypes.uint16)  # noqa: E731
    rejected(lambda: find(ids=short()), what + "segment_ids is uint16", "float32, int32")
    rejected(lambda: find(empty((1, 2, 6), dtypes.int32, PSUM)), what + "dst", "SBUF")
