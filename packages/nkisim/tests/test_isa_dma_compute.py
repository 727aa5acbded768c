"""Sums on the way through the DMA engines."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from dma_tiles import HBM, PSUM, REACHED, SBUF, SKIP, held, noise, row_index
from isa_tiles import (
    Array,
    assert_same,
    empty,
    on_core,
    rejected,
    sample,
    stored,
)

import nkisim.isa as nisa
import nkisim.language as nl
from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion, OobMode


@pytest.mark.parametrize("count", [1, 2, 3, 16])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.int16])
@pytest.mark.parametrize("into", REACHED)
def test_a_sum_on_the_way(count: int, dtype: DType, into: MemoryRegion) -> None:
    values = [sample(np.random.default_rng(k), (6, 8), dtype) for k in range(count)]

    def body() -> Array:
        target = empty((6, 8), dtype, into)
        regions = itertools.cycle(REACHED)
        sources = [held(v.astype(dtype.numpy), dtype, next(regions)) for v in values]
        nisa.dma_compute(target, tuple(sources), nl.add, [1.0] * count)
        return target.array().copy()

    total = np.zeros((6, 8), np.float32)
    for part in values:
        total += part.astype(np.float32)
    assert_same(on_core(body), stored(total, dtype))


def test_a_sum_over_its_own_target_and_other_shapes() -> None:
    def body() -> Array:
        table = held(np.arange(12).reshape(3, 4), dtypes.float32, HBM)
        nisa.dma_compute(table, srcs=[table, table.permute((1, 0)).reshape_dim(0, (2, 2))],
                         reduce_op=nl.add, scales=(1.0, 1.0))  # fmt: skip
        return table.array().copy()

    old = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(on_core(body), old + old.T.reshape(3, 4))


def test_a_sum_is_rounded_once() -> None:
    def body() -> Array:
        target = empty((1, 1), dtypes.bfloat16)
        parts = [held(np.full((1, 1), v), dtypes.bfloat16) for v in (256.0, 1.0, 1.0)]
        nisa.dma_compute(target, parts, nl.add)
        return target.array().copy()

    # 256 + 1 alone would be rounded to 256
    assert float(on_core(body)[0, 0]) == 258.0


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_rows_are_added_to(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    old, new = (sample(rng, (n, 4), dtype).astype(dtype.numpy) for n in (9, 3))
    rows = [7, 0, 4]

    def body(swapped: bool, again: bool) -> Array:
        table, index = held(old, dtype, HBM), row_index(*rows)
        target = table.vector_select(0, index)
        same = table.vector_select(0, index) if again else target
        sources = [same, held(new, dtype)]
        nisa.dma_compute(target, sources[::-1] if swapped else sources, nl.add)
        return table.array().copy()

    wanted = old.astype(np.float32)
    wanted[rows] += new.astype(np.float32)
    for swapped, again in itertools.product((False, True), repeat=2):
        found = on_core(partial(body, swapped, again))
        assert_same(found, stored(wanted, dtype))


def test_gathered_rows_are_added() -> None:
    old, table, rows = noise((3, 4), dtypes.int8), noise((9, 4), dtypes.int8, 1), [7, 0, 7]

    def body() -> Array:
        target = held(old, dtypes.int8)
        source = held(table, dtypes.int8, HBM).vector_select(0, row_index(*rows))
        nisa.dma_compute(target, [source, target], nl.add, unique_indices=True)
        return target.array().copy()

    wanted = old.astype(np.float32) + table[rows].astype(np.float32)
    assert_same(on_core(body), stored(wanted, dtypes.int8))


def test_rows_that_stand_twice() -> None:
    def body(unique: bool) -> Array:
        table = held(np.zeros((4, 2)), dtypes.float32, HBM)
        target = table.vector_select(0, row_index(1, 2, 1))
        added = held(np.array([[1, 2], [3, 4], [5, 6]]), dtypes.float32)
        nisa.dma_compute(target, [target, added], nl.add, unique_indices=unique)
        return table.array().copy()

    assert on_core(lambda: body(False)).tolist() == [[0, 0], [6, 8], [3, 4], [0, 0]]
    rejected(lambda: body(True), "unique_indices")


def test_sums_skip_rows_out_of_range() -> None:
    def scatter(mode: OobMode) -> Array:
        table = held(np.ones((4, 2)), dtypes.float32, HBM)
        target = table.vector_select(0, row_index(1, 9, -1))
        added = held(np.full((3, 2), 2), dtypes.float32)
        nisa.dma_compute(target, [target, added], nl.add, oob_mode=mode)
        return table.array().copy()

    def gather(mode: OobMode) -> Array:
        target = held(np.ones((3, 2)), dtypes.float32)
        source = held(np.full((4, 2), 2), dtypes.float32, HBM).vector_select(0, row_index(1, 9, 3))
        nisa.dma_compute(target, [source, target], nl.add, oob_mode=mode)
        return target.array().copy()

    assert on_core(lambda: scatter(SKIP)).tolist() == [[1, 1], [3, 3], [1, 1], [1, 1]]
    assert on_core(lambda: gather(SKIP)).tolist() == [[3, 3], [1, 1], [3, 3]]
    rejected(lambda: scatter(OobMode.error), "row 1")
    rejected(lambda: gather(OobMode.error), "row 1")


def _compute(*counts: int, **options: Any) -> Callable[[], Any]:
    def body() -> None:
        sources = [held(np.zeros((2, n)), options.get("dtype", dtypes.float32)) for n in counts]
        target = empty((2, 3), region=options.get("region", SBUF))
        nisa.dma_compute(target, sources, options.get("op", nl.add), options.get("scales"))

    return body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_compute(), "0 tensors"),
        (_compute(*[3] * 17), "17 tensors"),
        (_compute(3, 4), "srcs[1]"),
        (_compute(3, op=nl.multiply), "nl.add"),
        (_compute(3, 3, scales=[1.0, 2.0]), "scales"),
        (_compute(3, 3, scales=[1.0]), "scales"),
        (_compute(3, region=PSUM), "SBUF and HBM"),
        (_compute(3, dtype=dtypes.float8_e4m3fn_x4), "float8_e4m3fn_x4"),
    ],
)
def test_sums_that_do_not_exist(body: Callable[[], Any], words: str) -> None:
    rejected(body, "dma_compute", words)


def test_sums_with_an_index_have_two_sources() -> None:
    def body(count: int, own: bool) -> None:
        table = held(np.zeros((4, 2)), dtypes.float32, HBM)
        target = table.vector_select(0, row_index(1, 2))
        others = [held(np.zeros((2, 2)), dtypes.float32) for _ in range(count)]
        nisa.dma_compute(target, [target, *others] if own else others, nl.add)

    on_core(lambda: body(1, True))
    rejected(lambda: body(2, True), "there must be two")
    rejected(lambda: body(2, False), "the same view")
