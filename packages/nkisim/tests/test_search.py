from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nkisim import search
from nkisim.errors import NkiValidationError

pytestmark = pytest.mark.filterwarnings("error")

MISSING = 0xFFFFFFFF
INF, NAN = math.inf, math.nan


def rows(P: int, low: int, high: int) -> st.SearchStrategy[Any]:
    """[P, N] float32 with many equal elements."""
    return st.integers(low, high).flatmap(
        lambda N: hnp.arrays(np.float32, (P, N), elements=st.integers(-4, 4).map(float))
    )


# ---- the eight largest ----


@settings(deadline=None, max_examples=50)
@given(src=rows(3, 8, 40))
def test_max8(src: npt.NDArray[np.float32]) -> None:
    result = search.max8(src)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, [sorted(row, reverse=True)[:8] for row in src])


def test_max8_of_odd_values() -> None:
    src = np.array([[NAN, -INF, INF, 1, 2, 3, 4, 5, -1]], np.float32)
    np.testing.assert_array_equal(search.max8(src), [[NAN, INF, 5, 4, 3, 2, 1, -1]])
    with pytest.raises(NkiValidationError, match="src has 7 elements"):
        search.max8(src[:, :7])


@settings(deadline=None, max_examples=80)
@given(data=rows(2, 8, 30), vals=rows(2, 8, 8))
def test_find_index8(data: npt.NDArray[np.float32], vals: npt.NDArray[np.float32]) -> None:
    expected = []
    for row, wanted in zip(data.tolist(), vals.tolist(), strict=True):
        positions = {v: [i for i, x in enumerate(row) if x == v] for v in wanted}
        expected.append([positions[v].pop(0) if positions[v] else MISSING for v in wanted])
    result = search.find_index8(data, vals)
    assert result.dtype == np.uint32
    np.testing.assert_array_equal(result, expected)
    short = search.find_index8(data, vals, "uint16")
    assert short.dtype == np.uint16
    np.testing.assert_array_equal(short, np.array(expected) & 0xFFFF)


def test_largest_are_found_again() -> None:
    data = np.random.default_rng(0).integers(0, 50, (128, 300)).astype(np.float32)
    index = search.find_index8(data, search.max8(data)).astype(np.int64)
    np.testing.assert_array_equal(np.take_along_axis(data, index, 1), search.max8(data))
    assert all(len(set(row)) == 8 for row in index.tolist())


@settings(deadline=None, max_examples=80)
@given(data=rows(2, 8, 30), vals=rows(2, 8, 8), imm=st.sampled_from([-INF, 0.0, 3.0]))
def test_match_replace8(
    data: npt.NDArray[np.float32], vals: npt.NDArray[np.float32], imm: float
) -> None:
    before = data.copy()
    replaced, index = search.match_replace8(data, vals, imm)
    np.testing.assert_array_equal(data, before)
    for p in range(2):
        taken: dict[int, int] = {}
        for i in range(7, -1, -1):
            free = [j for j in range(data.shape[1]) if data[p, j] == vals[p, i] and j not in taken]
            if free:
                taken[free[0]] = i
            assert index[p, i] == (free[0] if free else MISSING)
        expected = [imm if j in taken else data[p, j] for j in range(data.shape[1])]
        np.testing.assert_array_equal(replaced[p], expected)


def test_match_replace8_documented_example() -> None:
    data = np.array([[1, 2, 3, 4] + 8 * [7]], np.float32)
    vals = np.array([[3] + 7 * [7]], np.float32)
    replaced, index = search.match_replace8(data, vals, 0.0, "uint16")
    np.testing.assert_array_equal(index, [[2, 10, 9, 8, 7, 6, 5, 4]])
    assert index.dtype == np.uint16
    np.testing.assert_array_equal(replaced, [[1, 2, 0, 4] + 7 * [0] + [7]])


def test_last_element_is_not_taken_for_a_missing_one() -> None:
    data = np.array([[1, 2, 3, 4, 5, 6, 7, 9]], np.float32)
    vals = np.array([[9, 8, 8, 8, 8, 8, 8, 8]], np.float32)
    expected = [[7] + 7 * [MISSING]]
    np.testing.assert_array_equal(search.find_index8(data, vals), expected)
    replaced, index = search.match_replace8(data, vals, -1.0)
    np.testing.assert_array_equal(index, expected)
    np.testing.assert_array_equal(replaced, [[1, 2, 3, 4, 5, 6, 7, -1]])


# ---- topk ----


@settings(deadline=None, max_examples=50)
@given(src=rows(32, 1, 4), data=st.data())
def test_topk(src: npt.NDArray[np.float32], data: st.DataObject) -> None:
    n = data.draw(st.integers(8, 16 * src.shape[1]))
    k = data.draw(st.integers(1, n))
    values, index = search.topk(src, n, k)
    assert values.shape == index.shape == (32, k) and index.dtype == np.uint32
    for p in range(32):
        group = src[p // 16 * 16 : p // 16 * 16 + 16]
        elements = [float(group[j % 16, j // 16]) for j in range(n)]
        # the largest, the lower index first among equals
        best = sorted(range(n), key=lambda j: (-elements[j], j))[:k][::-1]
        assert index[p].tolist() == best
        assert values[p].tolist() == [elements[j] for j in best]


def test_topk_keeps_the_type_and_checks_its_numbers() -> None:
    src = np.zeros((16, 2), np.float16)
    assert search.topk(src, 20, 3)[0].dtype == np.float16
    for n, k in ((33, 1), (8, 9), (8, 0)):
        with pytest.raises(NkiValidationError, match=f"n is {n} and k is {k}"):
            search.topk(src, n, k)
    with pytest.raises(NkiValidationError, match=r"src \[8, 2\]"):
        search.topk(src[:8], 8, 1)


# ---- gathering ----


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_local_gather(data: st.DataObject) -> None:
    P, C = data.draw(st.sampled_from([16, 48])), data.draw(st.integers(1, 3))
    length, W = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.integers(4, 9))
    valid = data.draw(st.one_of(st.none(), st.integers(1, 16 * C)))
    src = np.arange(P * W, dtype=np.int16).reshape(P, W)
    index = data.draw(hnp.arrays(np.uint16, (P, C), elements=st.integers(0, W - length)))
    result = search.local_gather(src, index, length, valid)
    count = valid or 16 * C
    assert result.shape == (P, count, length) and result.dtype == src.dtype
    for p in range(P):
        for i in range(count):
            first = index[p // 16 * 16 + i % 16, i // 16]
            assert result[p, i].tolist() == src[p, first : first + length].tolist()


def test_local_gather_is_checked() -> None:
    src, index = np.zeros((16, 4), np.float32), np.full((16, 1), 3, np.uint16)
    search.local_gather(src, index)
    with pytest.raises(NkiValidationError, match="index holds 3; it must be from 0 to 2"):
        search.local_gather(src, index, 2)
    with pytest.raises(NkiValidationError, match="num_valid_indices is 17; a group has 16"):
        search.local_gather(src, index, 1, 17)
    with pytest.raises(NkiValidationError, match="src has 8 partitions"):
        search.local_gather(src[:8], index[:8])


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_n_gather(data: st.DataObject) -> None:
    W, J = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 9))
    source = np.arange(3 * W, dtype=np.int32).reshape(3, W)
    indices = data.draw(hnp.arrays(np.uint32, (3, J), elements=st.integers(0, W - 1)))
    expected = [[source[p, j] for j in indices[p]] for p in range(3)]
    result = search.n_gather(source, indices)
    assert result.dtype == source.dtype
    np.testing.assert_array_equal(result, expected)
    indices[1, 0] = MISSING
    with pytest.raises(NkiValidationError, match="indices holds 4294967295"):
        search.n_gather(source, indices)


# ---- positions ----


@settings(deadline=None, max_examples=50)
@given(src=rows(33, 1, 9), offset=st.sampled_from([0, 100, -7]), padding=st.sampled_from([-1, 9]))
def test_nonzero_with_count(src: npt.NDArray[np.float32], offset: int, padding: int) -> None:
    result = search.nonzero_with_count(src, offset, padding)
    assert result.dtype == np.int32
    expected = []
    for row in src[[0, 16, 32]]:
        found = [i + offset for i, x in enumerate(row) if x != 0]
        expected.append(found + [padding] * (len(row) - len(found)) + [len(found)])
    np.testing.assert_array_equal(result, expected)


def test_nonzero_of_odd_values() -> None:
    src = np.array([[0.0, -0.0, NAN, 1e-45, INF]], np.float32)
    np.testing.assert_array_equal(search.nonzero_with_count(src), [[2, 3, 4, -1, -1, 3]])


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@settings(deadline=None, max_examples=50)
@given(ids=st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_sequence_bounds(dtype: Any, ids: list[int]) -> None:
    n = len(ids)
    expected: list[list[int]] = [[], []]
    for i, value in enumerate(ids):
        first, after = i, i
        while first > 0 and ids[first - 1] == value:
            first -= 1
        while after < n and ids[after] == value:
            after += 1
        expected[0].append(first if value else n)
        expected[1].append(after if value else -1)
    result = search.sequence_bounds(np.array([ids], dtype))
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, [expected])


# ---- shuffling ----


@settings(deadline=None, max_examples=50)
@given(
    quadrants=st.integers(1, 4),
    mask=st.lists(st.one_of(st.integers(0, 31), st.just(255)), min_size=32, max_size=32),
)
def test_stream_shuffle(quadrants: int, mask: list[int]) -> None:
    P = 32 * quadrants
    src = np.arange(2 * P, dtype=np.int32).reshape(P, 2)
    dst = -1 - src
    result = search.stream_shuffle(dst, src, mask)
    for p in range(P):
        entry = mask[p % 32]
        expected = dst[p] if entry == 255 else src[p // 32 * 32 + entry]
        np.testing.assert_array_equal(result[p], expected)
    # in place: every source is read before anything is written
    again = src.copy()
    again[...] = search.stream_shuffle(again, again, mask)
    for p in range(P):
        entry = mask[p % 32]
        np.testing.assert_array_equal(again[p], src[p if entry == 255 else p // 32 * 32 + entry])


def test_one_partition_is_broadcast() -> None:
    tile = np.arange(20, dtype=np.float32).reshape(20, 1)
    np.testing.assert_array_equal(
        search.stream_shuffle(tile, tile[:1], [0] * 32), np.zeros((20, 1))
    )
    # a smaller source serves all quadrants
    tall = np.ones((128, 1), np.float32)
    np.testing.assert_array_equal(
        search.stream_shuffle(tall, tile[3:4], [0] * 32), np.full((128, 1), 3)
    )


def test_shuffle_masks_are_checked() -> None:
    tile = np.zeros((32, 1), np.float32)
    for mask in ([0] * 31, [0] * 31 + [32], [-1] * 32, [0] * 31 + [254]):
        with pytest.raises(NkiValidationError, match="shuffle_mask is"):
            search.stream_shuffle(tile, tile, mask)
    with pytest.raises(NkiValidationError, match="reads partition 3; src has 1"):
        search.stream_shuffle(tile, tile[:1], [0, 3] + [0] * 30)
