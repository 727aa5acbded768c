from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
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
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.search import max8, nc_find_index8, nc_match_replace8, topk

SBUF, PSUM = MemoryRegion.sbuf, MemoryRegion.psum
MISSING = {dtypes.uint16: 0xFFFF, dtypes.uint32: 0xFFFFFFFF}
INDICES = sorted(MISSING)


def ones(shape: tuple[int, ...], dtype: Any = dtypes.float32, region: MemoryRegion = SBUF) -> Any:
    return tile(np.ones(shape), dtype, region)


# ---- max8 ----


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "four"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_max8(dtype: Any, layout: str) -> None:
    values = sample(np.random.default_rng(1), (24, 60), dtype)

    def body() -> tuple[Array, Array, Array]:
        data = laid(values, dtype, layout)
        same, single, psum = empty((24, 8), dtype), empty((24, 8)), empty((24, 8), region=PSUM)
        for dst in (same, single, psum):
            max8(dst, data)
        return contents(same), contents(single), contents(psum)

    wanted = np.array([sorted(row, reverse=True)[:8] for row in values.tolist()])
    same, single, psum = on_core(body)
    assert_same(same, stored(wanted, dtype))
    assert_same(single, wanted.astype(np.float32))
    assert_same(psum, single)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(-3, 3), min_size=9, max_size=9), min_size=1, max_size=4))
def test_max8_with_equal_values(rows: list[list[int]]) -> None:
    def body() -> Array:
        dst = empty((len(rows), 8))
        max8(dst, tile(rows, dtypes.float32))
        return contents(dst)

    assert on_core(body).tolist() == [sorted(row, reverse=True)[:8] for row in rows]


def test_max8_runs_on_vector() -> None:
    instruction = on_core(lambda: max8(empty((128, 8)), ones((128, 16384)), name="largest"))
    assert (instruction.engine, instruction.op, instruction.name) == (
        Engine.vector,
        "max8",
        "largest",
    )


def test_what_max8_rejects() -> None:
    rejected(lambda: max8(empty((4, 8)), ones((4, 7))), "max8: src", "7 elements", "8 to 16384")
    rejected(lambda: max8(empty((4, 8)), ones((4, 16385))), "max8: src", "16385 elements")
    rejected(lambda: max8(empty((4, 7)), ones((4, 9))), "max8: dst", "[4, 7]", "8 elements")
    rejected(lambda: max8(empty((5, 8)), ones((4, 9))), "max8: dst", "4 partitions")
    rejected(lambda: max8(empty((4, 8)), ones((4, 2, 2, 3))), "max8: src", "4 dimensions")
    packed = dtypes.float8_e4m3fn_x4
    rejected(lambda: max8(empty((4, 8), packed), ones((4, 9))), "max8: dst", "packed")
    rejected(lambda: max8(empty((4, 8)), empty((4, 9))), "max8: src", "nothing has written")
    hbm = lambda: ones((4, 9), region=MemoryRegion.private_hbm)  # noqa: E731
    rejected(lambda: max8(empty((4, 8)), hbm()), "max8: src", "PSUM or SBUF")
    refused(lambda: max8(empty((4, 8)), np.ones((4, 9))), "max8: src", "tensor")


# ---- nc_find_index8 ----


def find(data: list[float], vals: list[float], missing: int) -> list[int]:
    """Each value looks for the first place that no earlier equal value has."""
    found: list[int] = []
    for j, value in enumerate(vals):
        used = {found[k] for k in range(j) if vals[k] == value}
        places = [i for i, x in enumerate(data) if x == value and i not in used]
        found.append(places[0] if places else missing)
    return found


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.int16])
def test_find_index8(index: Any, layout: str, dtype: Any) -> None:
    rng = np.random.default_rng(2)
    data = rng.integers(-6, 6, (32, 24)).astype(np.float64)
    vals = rng.integers(-8, 8, (32, 8)).astype(np.float64)

    def body() -> tuple[Array, Array]:
        dst, psum = empty((32, 8), index), empty((32, 8), index, PSUM)
        tensor = laid(data, dtype, layout)
        nc_find_index8(dst, tensor, tile(vals, dtypes.float32))
        nc_find_index8(psum, tensor, tile(vals, dtype, PSUM))
        return contents(dst), contents(psum)

    rows = [find(d, v, MISSING[index]) for d, v in zip(data.tolist(), vals.tolist(), strict=True)]
    for found in on_core(body):
        assert_same(found, np.array(rows, np.int64).astype(index.numpy))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=8, max_size=20),
    st.lists(st.integers(0, 5), min_size=8, max_size=8),
)
def test_find_index8_with_duplicates(data: list[int], vals: list[int]) -> None:
    def body() -> Array:
        dst = empty((1, 8), dtypes.uint32)
        nc_find_index8(dst, tile([data], dtypes.float32), tile([vals], dtypes.float32))
        return contents(dst)

    assert on_core(body)[0].tolist() == find(list(data), list(vals), 0xFFFFFFFF)


def test_max8_then_find_index8_sorts() -> None:
    """The way kernels take a top 8: values first, then where they stand."""
    values = np.random.default_rng(3).permutation(np.arange(128 * 100)).reshape(128, 100)

    def body() -> Array:
        data = tile(values, dtypes.float32)
        largest, where = empty((128, 8)), empty((128, 8), dtypes.uint16)
        max8(largest, data)
        nc_find_index8(where, data, largest)
        return contents(where)

    assert_same(on_core(body), np.argsort(-values, axis=1)[:, :8].astype(np.uint16))


def test_what_find_index8_rejects() -> None:
    def call(dst: Any = None, data: Any = None, vals: Any = None) -> Any:
        return nc_find_index8(
            empty((4, 8), dtypes.uint32) if dst is None else dst,
            ones((4, 9)) if data is None else data,
            ones((4, 8)) if vals is None else vals,
        )

    what = "nc_find_index8: "
    rejected(lambda: call(empty((4, 8))), what + "dst is float32", "uint16, uint32")
    rejected(lambda: call(empty((4, 8), dtypes.int32)), what + "dst is int32", "uint16, uint32")
    rejected(lambda: call(empty((4, 9), dtypes.uint32)), what + "dst", "8 elements")
    rejected(lambda: call(vals=ones((4, 7))), what + "vals", "8 elements")
    rejected(lambda: call(vals=ones((3, 8))), what + "vals", "4 partitions")
    rejected(lambda: call(data=ones((4, 7))), what + "data", "7 elements", "8 to 16384")
    rejected(lambda: call(data=ones((4, 16385))), what + "data", "16385 elements")
    rejected(lambda: call(data=empty((4, 9), dtypes.float8_e5m2_x4)), what + "data", "packed")
    rejected(lambda: call(vals=empty((4, 8))), what + "vals", "nothing has written")


# ---- nc_match_replace8 ----


def replace(
    data: list[float], vals: list[float], imm: float, missing: int
) -> tuple[list[float], list[int]]:
    result, taken, where = list(data), set[int](), [missing] * 8
    for j in range(7, -1, -1):
        for i, x in enumerate(data):
            if x == vals[j] and i not in taken:
                taken.add(i)
                where[j], result[i] = i, imm
                break
    return result, where


def test_the_documented_example() -> None:
    row = [1, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]

    def body() -> tuple[Array, Array]:
        dst, where = empty((1, 11)), empty((1, 8), dtypes.uint32)
        vals = tile([[3, 8, 8, 8, 8, 8, 8, 8]], dtypes.float32)
        nc_match_replace8(dst, tile([row], dtypes.float32), vals, -1.0, dst_idx=where)
        return contents(dst), contents(where)

    dst, where = on_core(body)
    assert where.tolist() == [[2, 10, 9, 8, 7, 6, 5, 4]]
    assert dst.tolist() == [[1, 2, -1, 4, -1, -1, -1, -1, -1, -1, -1]]


@pytest.mark.parametrize("index", [None, *INDICES])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.uint8])
def test_match_replace8(index: Any, layout: str, dtype: Any) -> None:
    rng = np.random.default_rng(4)
    data = rng.integers(0, 9, (32, 24)).astype(np.float64)
    vals = rng.integers(0, 12, (32, 8)).astype(np.float64)

    def body() -> tuple[Array, ...]:
        tensor = laid(data, dtype, layout)
        other = empty((32, 24), region=PSUM)
        where = None if index is None else empty((32, 8), index)
        nc_match_replace8(other, tensor, tile(vals, dtypes.float32), 77.25)
        nc_match_replace8(tensor, tensor, tile(vals, dtype), 77.25, where)
        found = () if where is None else (contents(where),)
        return contents(other), contents(tensor), *found

    missing = 0 if index is None else MISSING[index]
    rows = [
        replace(d, v, 77.25, missing) for d, v in zip(data.tolist(), vals.tolist(), strict=True)
    ]
    wanted = np.array([row for row, _ in rows])
    other, same, *where = on_core(body)
    assert_same(other, wanted.astype(np.float32))
    assert_same(same, stored(wanted, dtype))
    if where:
        assert_same(where[0], np.array([w for _, w in rows], np.int64).astype(index.numpy))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=8, max_size=20),
    st.lists(st.integers(0, 5), min_size=8, max_size=8),
)
def test_match_replace8_with_duplicates(data: list[int], vals: list[int]) -> None:
    def body() -> tuple[Array, Array]:
        dst, where = empty((1, len(data))), empty((1, 8), dtypes.uint16)
        source = tile([data], dtypes.float32)
        nc_match_replace8(dst, source, tile([vals], dtypes.float32), -9, where)
        return contents(dst)[0].tolist(), contents(where)[0].tolist()

    assert on_core(body) == replace(list(data), list(vals), -9.0, 0xFFFF)


def test_top_k_in_rounds_of_eight() -> None:
    """How kernels take more than eight: the eight largest, then the next eight of the rest."""
    values = np.random.default_rng(5).permutation(4000).reshape(8, 500)

    def body() -> Array:
        data = tile(values, dtypes.float32)
        result = empty((8, 24))
        for k in range(0, 24, 8):
            max8(result[:, k : k + 8], data)
            nc_match_replace8(data, data, result[:, k : k + 8], -1e30)
        return contents(result)

    assert_same(on_core(body), -np.sort(-values, axis=1)[:, :24].astype(np.float32))


def test_what_match_replace8_rejects() -> None:
    def call(
        dst: Any = None, data: Any = None, vals: Any = None, imm: Any = 0.0, where: Any = None
    ) -> Any:
        return nc_match_replace8(
            empty((4, 9)) if dst is None else dst,
            ones((4, 9)) if data is None else data,
            ones((4, 8)) if vals is None else vals,
            imm,
            where,
        )

    what = "nc_match_replace8: "
    rejected(lambda: call(empty((4, 10))), what + "dst", "10 elements", "9")
    rejected(lambda: call(empty((5, 9))), what + "dst has 5 partitions", "4")
    rejected(lambda: call(vals=ones((4, 9))), what + "vals", "8 elements")
    rejected(lambda: call(empty((4, 7)), ones((4, 7))), what + "data", "7 elements")
    rejected(lambda: call(where=empty((4, 8), dtypes.int32)), what + "dst_idx is int32", "uint16")
    rejected(lambda: call(where=empty((4, 9), dtypes.uint32)), what + "dst_idx", "8 elements")
    rejected(lambda: call(empty((4, 9), dtypes.float8_e5m2_x4)), what + "dst", "packed")
    refused(lambda: call(imm=ones((4, 1))), what + "imm", "number")


# ---- topk ----


def largest(src: Array, n: int, k: int) -> tuple[Array, Array]:
    """Group by group in Python: the elements by value, of equal ones the lowest place first."""
    P = src.shape[0]
    values, places = np.zeros((P, k)), np.zeros((P, k), np.uint32)
    for first in range(0, P, 16):
        snake = [float(src[first + j % 16, j // 16]) for j in range(n)]
        best = sorted(range(n), key=lambda j: (-snake[j], j))[:k][::-1]
        values[first : first + 16] = [snake[j] for j in best]
        places[first : first + 16] = best
    return values, places


@pytest.mark.parametrize(
    ("P", "W", "n", "k"), [(16, 1, 8, 1), (128, 5, 80, 80), (32, 7, 100, 9), (48, 64, 1023, 64)]
)
@pytest.mark.parametrize("layout", ["plain", "strided", "addressed"])
def test_topk(P: int, W: int, n: int, k: int, layout: str) -> None:
    src = sample(np.random.default_rng(n), (P, W), dtypes.bfloat16)

    def body() -> tuple[Array, Array]:
        values, places = empty((P, k), dtypes.bfloat16), empty((P, k), dtypes.uint32)
        instruction = topk(values, places, laid(src, dtypes.bfloat16, layout), n)
        assert instruction.engine is Engine.gpsimd
        assert instruction.details == {"n": n}
        return contents(values), contents(places)

    values, places = on_core(body)
    wanted_values, wanted_places = largest(src, n, k)
    assert_same(values, stored(wanted_values, dtypes.bfloat16))
    assert_same(places, wanted_places)


@settings(max_examples=40, deadline=None)
@given(st.integers(8, 48), st.data())
def test_topk_with_equal_values(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    snake = data.draw(st.lists(st.integers(-2, 2), min_size=48, max_size=48))
    src = np.array(snake, np.float64).reshape(3, 16).T

    def body() -> tuple[Array, Array]:
        values, places = empty((16, k), dtypes.bfloat16), empty((16, k), dtypes.uint32)
        topk(values, places, tile(src, dtypes.bfloat16), n)
        return contents(values), contents(places)

    values, places = on_core(body)
    wanted_values, wanted_places = largest(src, n, k)
    assert values.astype(np.float64).tolist() == wanted_values.tolist()
    assert_same(places, wanted_places)


def test_topk_of_more_dimensions() -> None:
    src = sample(np.random.default_rng(8), (16, 24), dtypes.bfloat16)

    def body() -> tuple[Array, Array]:
        values, places = empty((16, 4), dtypes.bfloat16), empty((16, 2, 2), dtypes.uint32)
        topk(values, places, laid(src, dtypes.bfloat16, "permuted"), 300)
        return contents(values), contents(places)

    assert_same(on_core(body)[1], largest(src, 300, 4)[1])


def test_topk_reads_its_active_elements_only() -> None:
    """Sequences rarely fill whole columns; what follows the last element needs no contents."""

    def body() -> Array:
        src = empty((32, 4), dtypes.bfloat16)
        written = [src[:, :2], src[0:3, 2:3], src[16:19, 2:3]]
        for part in written:
            part.assign(np.ones(part.shape, dtypes.bfloat16.numpy))
        core().issue("dma_copy", Engine.dma, written, [])
        values, places = empty((32, 2), dtypes.bfloat16), empty((32, 2), dtypes.uint32)
        topk(values, places, src, 35)
        return contents(places)

    assert on_core(body).tolist() == [[1, 0]] * 32

    def too_many() -> None:
        src = empty((16, 4), dtypes.bfloat16)
        src[:, :2].assign(np.ones((16, 2), dtypes.bfloat16.numpy))
        core().issue("dma_copy", Engine.dma, [src[:, :2]], [])
        topk(empty((16, 2), dtypes.bfloat16), empty((16, 2), dtypes.uint32), src, 33)

    rejected(too_many, "topk", "nothing has written")


def test_what_topk_rejects() -> None:
    bf16, u32 = dtypes.bfloat16, dtypes.uint32

    def call(
        values: Any = None, places: Any = None, src: Any = None, n: Any = 64, k: int = 4
    ) -> Any:
        return topk(
            empty((16, k), bf16) if values is None else values,
            empty((16, k), u32) if places is None else places,
            ones((16, 4), bf16) if src is None else src,
            n,
        )

    rejected(lambda: call(n=7), "topk: n is 7", "8 <= n < 65536")
    rejected(lambda: call(n=65), "topk: n is 65", "64 elements")
    rejected(lambda: call(src=ones((16, 4100), bf16), n=65536), "topk: n is 65536", "65536")
    rejected(lambda: call(n=8, k=9), "topk: val_dst has 9", "n = 8")
    wide = lambda: ones((16, 2049), bf16)  # noqa: E731
    rejected(lambda: call(src=wide(), n=32784, k=32768), "topk: val_dst has 32768", "fewer than")
    rejected(lambda: call(empty((16, 4))), "topk: val_dst is float32", "bfloat16")
    rejected(lambda: call(places=empty((16, 4), dtypes.int32)), "topk: idx_dst is int32", "uint32")
    rejected(lambda: call(src=ones((16, 4))), "topk: src is float32", "bfloat16")
    rejected(lambda: call(places=empty((16, 5), u32)), "topk: idx_dst has 5", "val_dst 4")
    rejected(
        lambda: call(empty((20, 4), bf16), empty((20, 4), u32), ones((20, 4), bf16)),
        "topk: val_dst has 20 partitions", "multiple of 16",
    )  # fmt: skip
    rejected(lambda: call(src=ones((32, 4), bf16)), "topk: val_dst has 16 partitions", "src 32")
    rejected(lambda: call(src=ones((16, 4), bf16, PSUM)), "topk: src", "SBUF")
    rejected(lambda: call(empty((16, 4), bf16, PSUM)), "topk: val_dst", "SBUF")
    refused(lambda: call(n=8.0), "topk: n is 8.0", "integer")
