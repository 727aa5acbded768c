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
from nkisim.isa.gathers import local_gather, nc_n_gather

PSUM = MemoryRegion.psum
SBUF_LAYOUTS = [layout for layout in LAYOUTS if layout != "psum"]


def gathered(src: Array, index: Array, run: int, valid: int) -> Array:
    """One element at a time, by the definition."""
    rows = []
    for p in range(src.shape[0]):
        group = index[p // 16 * 16 : p // 16 * 16 + 16]
        snake = [int(group[i % 16, i // 16]) for i in range(valid)]
        rows.append([src[p, k + t] for k in snake for t in range(run)])
    return np.array(rows, src.dtype)


# ---- local_gather ----


@pytest.mark.parametrize("run", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("dtype", [*DTYPES, dtypes.float8_e4m3fn_x4])
def test_local_gather(run: int, dtype: Any) -> None:
    rng = np.random.default_rng(run)
    bits = rng.integers(0, 256, (48, 64 * dtype.itemsize), np.uint8)
    src = bits.view(dtype.numpy)
    index = rng.integers(0, 64 - run + 1, (48, 3), np.uint16)
    valid = 41

    def body() -> Array:
        dst = empty((48, valid, run), dtype)
        source = empty((48, 64), dtype)
        source.assign(src)
        source.storage.coverage.full = True
        instruction = local_gather(dst, source, tile(index), run, num_valid_indices=valid)
        assert instruction.engine is Engine.gpsimd
        assert instruction.details == {"per_index": run}
        return contents(dst).view(np.uint8)

    # bit for bit, NaN and all
    words = {1: np.uint8, 2: np.uint16, 4: np.uint32}[dtype.itemsize]
    assert_same(on_core(body), gathered(bits.view(words), index, run, valid).view(np.uint8))


@pytest.mark.parametrize("layout", SBUF_LAYOUTS)
def test_local_gather_on_views(layout: str) -> None:
    rng = np.random.default_rng(3)
    src = sample(rng, (64, 24), dtypes.bfloat16)
    index = rng.integers(0, 21, (64, 2)).astype(np.float64)

    def body() -> Array:
        wide = tile(np.full((64, 2 * 32 * 4), -1.0), dtypes.bfloat16)
        dst = wide[:, 0:256:2]
        local_gather(
            dst, laid(src, dtypes.bfloat16, layout), laid(index, dtypes.uint16, "strided"), 4
        )
        assert (contents(wide)[:, 1::2] == -1).all()
        return contents(dst)

    wanted = gathered(src, index.astype(np.int64), 4, 32)
    assert_same(on_core(body), stored(wanted, dtypes.bfloat16))


def test_local_gather_on_a_slice_of_a_larger_tile() -> None:
    src = np.arange(128 * 40).reshape(128, 40)

    def body() -> Array:
        whole = tile(src, dtypes.int32)
        index = tile(np.full((128, 1), 3), dtypes.uint16)
        dst = empty((128, 16), dtypes.int32)
        local_gather(dst[32:64], whole[32:64, 10:20], index[32:64])
        return contents(dst[32:64])

    assert_same(on_core(body), np.repeat(src[32:64, 13:14], 16, axis=1).astype(np.int32))


def test_the_documented_use_with_indices_of_blocks() -> None:
    """Logical indices count blocks; the instruction takes elements, so they are multiplied."""
    blocks = np.arange(16 * 8 * 4).reshape(16, 8, 4)
    logical = np.array([[7], [0], [3], [3], *[[1]] * 12])

    def body() -> Array:
        dst = empty((16, 4, 4), dtypes.int16)
        index = tile(logical * 4, dtypes.uint16)
        local_gather(dst, tile(blocks, dtypes.int16), index, 4, 4)
        return dst.array().copy()

    assert_same(on_core(body), blocks[:, [7, 0, 3, 3]].astype(np.int16))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2, 4]), st.data())
def test_local_gather_anywhere(groups: int, columns: int, run: int, data: st.DataObject) -> None:
    P, W = 16 * groups, data.draw(st.integers(run, 12))
    valid = data.draw(st.integers(1, 16 * columns))
    seed = data.draw(st.integers(0, 2**32 - 1))
    index = np.random.default_rng(seed).integers(0, W - run + 1, (P, columns), np.uint16)
    src = np.arange(P * W, dtype=np.float32).reshape(P, W)

    def body() -> Array:
        dst = empty((P, valid * run))
        local_gather(dst, tile(src), tile(index), run, valid)
        return contents(dst)

    assert_same(on_core(body), gathered(src, index, run, valid))


def test_local_gather_reads_valid_indices_only() -> None:
    def gather(valid: int) -> Array:
        index = empty((16, 2), dtypes.uint16)
        parts = [index[:, 0:1], index[0:5, 1:2]]
        for part in parts:
            part.assign(np.full(part.shape, 2, np.uint16))
        core().issue("dma_copy", Engine.dma, parts, [])
        dst = empty((16, valid))
        local_gather(dst, tile(np.ones((16, 4)), dtypes.float32), index, 1, valid)
        return contents(dst)

    assert (on_core(lambda: gather(21)) == 1).all()
    rejected(lambda: gather(22), "local_gather", "nothing has written")


def test_what_local_gather_rejects() -> None:
    f32, u16 = dtypes.float32, dtypes.uint16

    def call(
        dst: Any = None, src: Any = None, index: Any = None, run: Any = 1, valid: Any = None
    ) -> Any:
        return local_gather(
            empty((16, 32)) if dst is None else dst,
            tile(np.ones((16, 8)), f32) if src is None else src,
            tile(np.ones((16, 2)), u16) if index is None else index,
            run,
            valid,
        )

    def ones(shape: tuple[int, ...], dtype: Any, region: Any = MemoryRegion.sbuf) -> Any:
        return tile(np.ones(shape), dtype, region)

    what = "local_gather: "
    on_core(call)
    rejected(lambda: call(index=ones((16, 2), dtypes.uint32)), what + "index is uint32", "uint16")
    rejected(lambda: call(index=ones((16, 2), dtypes.int16)), what + "index is int16", "uint16")
    rejected(lambda: call(src=ones((20, 8), f32)), what + "src_buffer has 20", "multiple of 16")
    rejected(lambda: call(index=ones((20, 2), u16)), what + "index has 20", "multiple of 16")
    rejected(lambda: call(dst=empty((20, 32))), what + "dst has 20", "multiple of 16")
    rejected(lambda: call(index=ones((32, 2), u16)), what + "index has 32 partitions", "16")
    rejected(lambda: call(dst=empty((32, 32))), what + "dst has 32 partitions", "16")
    rejected(lambda: call(run=3), what + "num_elem_per_idx is 3", "1, 2, 4, 8, 16, 32")
    rejected(lambda: call(run=64), what + "num_elem_per_idx is 64", "1, 2, 4, 8, 16, 32")
    rejected(lambda: call(valid=33), what + "num_valid_indices is 33", "32")
    rejected(lambda: call(valid=0), what + "num_valid_indices is 0")
    many = lambda: ones((16, 257), u16)  # noqa: E731
    rejected(lambda: call(index=many()), what + "num_valid_indices is 4112", "4096")
    rejected(lambda: call(empty((16, 31))), what + "dst", "31 elements", "32")
    rejected(lambda: call(empty((16, 32), dtypes.bfloat16)), what + "dst is bfloat16", "float32")
    rejected(lambda: call(src=ones((16, 8), f32, PSUM)), what + "src_buffer", "SBUF")
    rejected(lambda: call(dst=empty((16, 32), region=PSUM)), what + "dst", "SBUF")
    rejected(lambda: call(index=ones((16, 2), u16, PSUM)), what + "index", "SBUF")
    far = lambda: tile(np.full((16, 2), 8), u16)  # noqa: E731
    rejected(lambda: call(index=far()), what + "index holds 8", "0 to 7")
    last = lambda: tile(np.full((16, 2), 7), u16)  # noqa: E731
    rejected(lambda: call(empty((16, 64)), index=last(), run=2), what + "index holds 7", "0 to 6")
    refused(lambda: call(run=2.0), what + "num_elem_per_idx is 2.0", "integer")
    refused(lambda: call(valid=2.0), what + "num_valid_indices is 2.0", "integer")


def test_indices_out_of_range_that_do_not_count_do_no_harm() -> None:
    index = np.ones((16, 2), np.uint16)
    index[3:, 1] = 65535

    def body() -> Array:
        dst = empty((16, 19))
        local_gather(dst, tile(np.ones((16, 4)), dtypes.float32), tile(index), 1, 19)
        return contents(dst)

    assert (on_core(body) == 1).all()


# ---- nc_n_gather ----


@pytest.mark.parametrize("layout", SBUF_LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_n_gather(dtype: Any, layout: str) -> None:
    rng = np.random.default_rng(1)
    data = sample(rng, (32, 24), dtype)
    indices = rng.integers(0, 24, (32, 50)).astype(np.float64)

    def body() -> tuple[Array, Array]:
        source = laid(data, dtype, layout)
        same, single = empty((32, 50), dtype), empty((32, 5, 10))
        instruction = nc_n_gather(same, source, laid(indices, dtypes.uint32, layout))
        assert instruction.engine is Engine.gpsimd
        nc_n_gather(single, source, laid(indices, dtypes.uint32, layout))
        return contents(same), contents(single)

    rows = zip(data, indices.astype(int), strict=True)
    wanted = np.array([[row[i] for i in line] for row, line in rows])
    same, single = on_core(body)
    assert_same(same, stored(wanted, dtype))
    assert_same(single, wanted.astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_n_gather_anywhere(P: int, W: int, J: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = rng.integers(-(2**31), 2**31, (P, W)).astype(np.int32)
    indices = rng.integers(0, W, (P, J), np.uint32)

    def body() -> Array:
        dst = empty((P, J), dtypes.int32)
        nc_n_gather(dst, tile(data), tile(indices))
        return contents(dst)

    wanted = [[data[p, indices[p, j]] for j in range(J)] for p in range(P)]
    assert_same(on_core(body), np.array(wanted, np.int32))


def test_n_gather_in_place() -> None:
    def body() -> Array:
        data = tile(np.arange(8).reshape(2, 4), dtypes.float32)
        nc_n_gather(data, data, tile([[3, 2, 1, 0]] * 2, dtypes.uint32))
        return contents(data)

    assert on_core(body).tolist() == [[3, 2, 1, 0], [7, 6, 5, 4]]


def test_what_n_gather_rejects() -> None:
    def call(dst: Any = None, data: Any = None, indices: Any = None) -> Any:
        return nc_n_gather(
            empty((4, 6)) if dst is None else dst,
            tile(np.ones((4, 9)), dtypes.float32) if data is None else data,
            tile(np.ones((4, 6)), dtypes.uint32) if indices is None else indices,
        )

    def ones(shape: tuple[int, ...], dtype: Any, region: Any = MemoryRegion.sbuf) -> Any:
        return tile(np.ones(shape), dtype, region)

    what = "nc_n_gather: "
    on_core(call)
    rejected(lambda: call(indices=ones((4, 6), dtypes.int32)), what + "indices is int32", "uint32")
    rejected(lambda: call(indices=ones((4, 6), dtypes.uint16)), what + "indices", "uint32")
    rejected(lambda: call(empty((4, 7))), what + "dst", "7 elements", "6")
    rejected(lambda: call(data=ones((5, 9), dtypes.float32)), what + "indices has 4", "5")
    rejected(lambda: call(data=ones((4, 9), dtypes.float32, PSUM)), what + "data", "SBUF")
    rejected(lambda: call(indices=ones((4, 6), dtypes.uint32, PSUM)), what + "indices", "SBUF")
    rejected(lambda: call(empty((4, 6), region=PSUM)), what + "dst", "SBUF")
    packed = dtypes.float8_e4m3fn_x4
    rejected(lambda: call(empty((4, 6), packed)), what + "dst is float8_e4m3fn_x4", "float32")
    far = lambda: tile(np.full((4, 6), 9), dtypes.uint32)  # noqa: E731
    rejected(lambda: call(indices=far()), what + "indices holds 9", "0 to 8")
    huge = lambda: tile(np.full((4, 6), 2**32 - 1), dtypes.uint32)  # noqa: E731
    rejected(lambda: call(indices=huge()), what + "indices holds 4294967295", "0 to 8")
    refused(lambda: call(data=np.ones((4, 9))), what + "data", "tensor")
