"""Transposes by DMA, of rows as they are and of rows that an index chooses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dma_tiles import HBM, SBUF, SHARED, SKIP, bits, held, noise
from isa_tiles import (
    Array,
    assert_same,
    empty,
    on_core,
    rejected,
    tile,
)

import nkisim.isa as nisa
import nkisim.language as nl
from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import DgeMode, MemoryRegion, OobMode

AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
SHAPES = [
    (16, 8), (1, 1), (5, 128), (128, 7), (4, 1, 6), (3, 5, 7), (20, 1, 1, 64), (7, 1, 3, 9),
    (7, 3, 1, 9), (2, 3, 4, 5), (96, 1, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("region", [SBUF, HBM, SHARED])
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.int32, dtypes.float4_e2m1fn_x4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("given_axes", [False, True])
def test_a_transpose(
    shape: tuple[int, ...], dtype: DType, region: MemoryRegion, given_axes: bool
) -> None:
    values, axes = noise(shape, dtype), AXES[len(shape)]
    wanted = values.transpose(axes)

    def body() -> Array:
        target = empty(wanted.shape, dtype)
        order = list(axes) if given_axes else None
        instruction = nisa.dma_transpose(target, held(values, dtype, region), order)
        assert instruction.details is not None and instruction.details["transpose"]
        return bits(target.array())

    np.testing.assert_array_equal(on_core(body), bits(wanted))


@pytest.mark.parametrize("region", [SBUF, HBM])
def test_a_transpose_of_patterns_into_part_of_a_tile(region: MemoryRegion) -> None:
    """Rows s, columns 3:9 of a matrix, to partitions 0:6, columns 2, 5, 8, ... of a tile."""
    values = noise((20, 12), dtypes.bfloat16)

    def body() -> Array:
        source = held(values, dtypes.bfloat16, region)
        target = held(np.zeros((8, 64)), dtypes.bfloat16)
        nisa.dma_transpose(
            target.ap([[64, 6], [1, 1], [1, 1], [3, 20]], offset=2),
            source.ap([[12, 20], [1, 1], [1, 1], [1, 6]], offset=3),
            dge_mode=DgeMode.none,
        )
        return bits(target.array())

    wanted = np.zeros((8, 64), np.uint16)
    wanted[:6, 2:62:3] = bits(values)[:, 3:9].T
    np.testing.assert_array_equal(on_core(body), wanted)


def test_a_transpose_with_several_rows_in_the_third_place() -> None:
    values = noise((10, 3, 7), dtypes.int16)

    def body() -> Array:
        source = held(values, dtypes.int16, SBUF)
        target = empty((7, 3, 10), dtypes.int16)
        nisa.dma_transpose(target.expand_dim(1), source.expand_dim(1))
        return target.array().copy()

    np.testing.assert_array_equal(on_core(body), values.transpose(2, 1, 0))


def test_packed_rows_to_packed_partitions() -> None:
    """Rows of H codes and a scale, as words, to a tile of four codes an element."""
    S, H, tiles = 6, 2 * 512, 2
    values = noise((S, H + 4), dtypes.float8_e4m3fn)

    def body() -> list[Array]:
        packed = held(values, dtypes.float8_e4m3fn, HBM)
        tile4 = empty((128, tiles, S), dtypes.float8_e4m3fn_x4)
        words = (H + 4) // 4
        for t in range(tiles):
            nisa.dma_transpose(
                tile4.ap([[tiles * S, 128], [1, 1], [1, 1], [1, S]], t * S, dtype=nl.float32),
                packed.ap([[words, S], [1, 1], [1, 1], [1, 128]], t * 128, dtype=nl.float32),
            )
        scale = empty((S, 1))
        nisa.dma_copy(scale, packed.ap([[words, S], [1, 1]], words - 1, dtype=nl.float32))
        return [bits(tile4.array()), bits(scale.array())]

    found, scale = on_core(body)
    codes = bits(values)[:, :H].reshape(S, tiles, 128, 4)
    for s, t, p in itertools.product(range(S), range(tiles), range(128)):
        assert found[p, t, s : s + 1].view(np.uint8).tolist() == codes[s, t, p].tolist()
    assert_same(scale.view(np.uint8), bits(values)[:, H:])


def test_one_column_of_words_becomes_a_row() -> None:
    values = noise((24, 1, 1, 1), dtypes.int32)

    def body() -> Array:
        target = empty((1, 1, 1, 24), dtypes.int32)
        nisa.dma_transpose(target, held(values, dtypes.int32, HBM))
        return target.array().copy()

    np.testing.assert_array_equal(on_core(body).reshape(-1), values.reshape(-1))


def test_a_square_is_transposed_in_place() -> None:
    values = noise((9, 9), dtypes.int16)

    def body() -> Array:
        tensor = held(values, dtypes.int16)
        nisa.dma_transpose(tensor, tensor)
        return tensor.array().copy()

    np.testing.assert_array_equal(on_core(body), values.T)


def test_a_transpose_of_a_part_that_a_register_chooses() -> None:
    values = noise((3, 4, 5), dtypes.int16)

    def body() -> Array:
        register = nisa.register_alloc(1)
        target = held(np.zeros((5, 3, 4)), dtypes.int16)
        source = held(values, dtypes.int16, HBM)
        nisa.dma_transpose(target[:, register], source[register])
        return target.array().copy()

    wanted = np.zeros((5, 3, 4), np.int16)
    wanted[:, 1] = values[1].T
    np.testing.assert_array_equal(on_core(body), wanted)


def test_a_part_out_of_range_is_left_alone() -> None:
    def body() -> Array:
        target = held(np.full((5, 4), 3), dtypes.int16)
        source = held(noise((3, 4, 5), dtypes.int16), dtypes.int16, HBM)
        nisa.dma_transpose(target, source[nisa.register_alloc(3)], oob_mode=SKIP)
        return target.array().copy()

    assert (on_core(body) == 3).all()


def _transpose(
    shape: tuple[int, ...],
    dtype: DType = dtypes.bfloat16,
    into: DType | None = None,
    shown: tuple[int, ...] | None = None,
    region: MemoryRegion = SBUF,
    **options: Any,
) -> Callable[[], Any]:
    def body() -> None:
        turned = tuple(shape[axis] for axis in AXES.get(len(shape), range(len(shape))))
        target = empty(shown or turned, into or dtype, region)
        nisa.dma_transpose(target, held(np.zeros(shape), dtype, HBM), **options)

    return body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (_transpose((4, 129), shown=(128, 4)), "at most 128"),
        (_transpose((4, 5), shown=(4, 5)), "[5, 4]"),
        (_transpose((4, 1, 5), shown=(5, 4)), "rank included"),
        (_transpose((4, 5), into=dtypes.float16), "must agree"),
        (_transpose((4, 5), dtypes.uint8), "2 or 4"),
        (_transpose((4, 5), dtypes.float8_e4m3), "2 or 4"),
        (_transpose((4, 5), axes=(0, 1)), "(1, 0)"),
        (_transpose((4, 1, 1, 5), axes=(3, 2, 1, 0)), "(3, 1, 2, 0)"),
        (_transpose((4, 5), region=HBM), "in SBUF"),
        (_transpose((2, 2, 2, 2, 2)), "2, 3 or 4 dimensions"),
        (_transpose((4,), shown=(4, 1)), "2, 3 or 4 dimensions"),
        (_transpose((4, 5), dge_mode=DgeMode.swdge), "vector_offset"),
        (_transpose((4, 5), oob_mode=SKIP), "dynamic index"),
        (_transpose((4, 5), priority=5), "priority is 5"),
        (_transpose((8, 5), dge_mode=DgeMode.hwdge), "must be 16"),
        (_transpose((16, 5), dtypes.int32, dge_mode=DgeMode.hwdge), "2-byte"),
        (_transpose((3, 16, 5), dge_mode=DgeMode.hwdge), "1, 2, 4, 8 or 16"),
        (_transpose((8, 3, 5), dge_mode=DgeMode.hwdge), "multiple of 16"),
        (_transpose((4, 16, 2, 5), dge_mode=DgeMode.hwdge), "multiple of 16"),
    ],
)  # fmt: skip
def test_transposes_that_do_not_exist(body: Callable[[], Any], words: str) -> None:
    rejected(body, "dma_transpose", words)


@pytest.mark.parametrize(
    "shape", [(16, 5), (16, 1, 5), (8, 2, 5), (1, 16, 5), (4, 3, 4, 5), (2, 1, 8, 128)]
)
def test_transposes_of_the_hardware(shape: tuple[int, ...]) -> None:
    on_core(_transpose(shape, dge_mode=DgeMode.hwdge), "gen3")
    rejected(_transpose(shape, dge_mode=DgeMode.hwdge), "gen3", target="gen2")


# Transposes of gathered rows


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("inner", [(64,), (1, 64), (3, 64), (3, 1, 40), (1, 3, 40)])
def test_a_transpose_of_gathered_rows(columns: int, inner: tuple[int, ...]) -> None:
    rng = np.random.default_rng(columns)
    partitions = 128 if columns > 1 else 48
    index = rng.integers(0, 50, (partitions, columns))
    rows = partitions * columns - 16
    values = noise((50, *inner), dtypes.bfloat16)
    steps = [math.prod(inner[k:]) for k in range(len(inner) + 1)]
    pattern = [[steps[0], rows], *([steps[k + 1], inner[k]] for k in range(len(inner)))]
    gathered = bits(values)[index.T.reshape(-1)[:rows]]
    wanted = gathered.transpose(AXES[1 + len(inner)])

    def body() -> Array:
        source = held(values, dtypes.bfloat16, HBM)
        view = source.ap(pattern, vector_offset=tile(index, dtypes.uint32))
        target = empty(wanted.shape, dtypes.bfloat16)
        nisa.dma_transpose(target, view, dge_mode=DgeMode.swdge)
        return bits(target.array())

    np.testing.assert_array_equal(on_core(body, "gen3"), wanted)


def test_skipped_rows_leave_their_columns_alone() -> None:
    index = np.arange(32)
    index[[3, 20]] = 50
    values = noise((50, 24), dtypes.float16)

    def body(mode: OobMode) -> Array:
        source = held(values, dtypes.float16, HBM)
        view = source.ap([[24, 32], [1, 24]], vector_offset=tile(index[:, None], dtypes.uint32))
        target = held(np.ones((24, 32)), dtypes.float16)
        nisa.dma_transpose(target, view, oob_mode=mode)
        return bits(target.array())

    wanted = np.full((24, 32), np.float16(1).view(np.uint16))
    kept = np.isin(np.arange(32), [3, 20])
    wanted[:, ~kept] = bits(values)[index[~kept]].T
    np.testing.assert_array_equal(on_core(lambda: body(SKIP)), wanted)
    rejected(lambda: body(OobMode.error), "row 3", "is 50", "0..49")


@pytest.mark.parametrize(
    ("partitions", "columns", "rows", "options", "words"),
    [
        (32, 2, 32, {}, "128 with several"),
        (24, 1, 16, {}, "16, 32, ... 128"),
        (8, 1, 8, {}, "16, 32, ... 128"),
        (32, 1, 24, {}, "multiple of 16"),
        (32, 1, 32, {"dtype": dtypes.int32}, "2-byte"),
        (32, 1, 32, {"index": dtypes.int32}, "uint32"),
        (32, 1, 32, {"inner": (2, 3, 4)}, "must be 1"),
        (32, 1, 32, {"dge_mode": DgeMode.hwdge}, "swdge"),
        (32, 1, 32, {"target": "gen2"}, "gen3"),
    ],
)
def test_gathered_transposes_that_do_not_exist(
    partitions: int, columns: int, rows: int, options: dict[str, Any], words: str
) -> None:
    dtype = options.get("dtype", dtypes.bfloat16)
    inner = options.get("inner", (8,))
    mode = options.get("dge_mode", DgeMode.unknown)

    def body() -> None:
        source = held(np.zeros((50, *inner)), dtype, HBM)
        index = tile(np.zeros((partitions, columns)), options.get("index", dtypes.uint32))
        steps = [math.prod(inner[k:]) for k in range(len(inner) + 1)]
        pattern = [[steps[0], rows], *([steps[k + 1], inner[k]] for k in range(len(inner)))]
        shape = tuple((rows, *inner)[axis] for axis in AXES[1 + len(inner)])
        nisa.dma_transpose(empty(shape, dtype), source.ap(pattern, vector_offset=index),
                           dge_mode=mode)  # fmt: skip

    rejected(body, words, target=options.get("target", "gen4"))
