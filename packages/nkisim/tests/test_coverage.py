"""Sets of bytes against tables of booleans."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim.coverage import Coverage, interval, row_bands, strided

Table = npt.NDArray[np.bool_]


@st.composite
def rectangles(draw: st.DrawFn, rows: int, width: int) -> tuple[int, int, int, int]:
    p0 = draw(st.integers(0, rows - 1))
    lo = draw(st.integers(0, width - 1))
    return p0, draw(st.integers(p0 + 1, rows)), lo, draw(st.integers(lo + 1, width))


def table_of(bands: list[tuple[int, int, int]], rows: int, width: int) -> Table:
    table = np.zeros((rows, width), np.bool_)
    for first, last, mask in bands:
        assert 0 <= first < last <= rows
        assert mask >> width == 0
        table[first:last] |= [bool(mask >> byte & 1) for byte in range(width)]
    return table


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_set_is_the_table_of_its_bytes(data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 11))
    coverage, table = Coverage(rows, width), np.zeros((rows, width), np.bool_)
    for _ in range(data.draw(st.integers(1, 12))):
        p0, p1, lo, hi = data.draw(rectangles(rows, width))
        if data.draw(st.booleans()):
            coverage.add(p0, p1, interval(lo, hi))
            table[p0:p1, lo:hi] = True
        else:
            coverage.remove(p0, p1, interval(lo, hi))
            table[p0:p1, lo:hi] = False
        np.testing.assert_array_equal(coverage.bits(), table)
        assert coverage.full == table.all()
        assert coverage.empty == (not table.any())

        p0, p1, lo, hi = data.draw(rectangles(rows, width))
        part = np.zeros_like(table)
        part[p0:p1, lo:hi] = True
        assert coverage.covers(p0, p1, interval(lo, hi)) == table[p0:p1, lo:hi].all()
        assert coverage.touches(p0, p1, interval(lo, hi)) == table[p0:p1, lo:hi].any()
        both = coverage.touches(p0, p1, interval(lo, hi)), coverage.covers(p0, p1, interval(lo, hi))
        assert coverage.shares(p0, p1, interval(lo, hi)) == both
        missing = coverage.missing(p0, p1, interval(lo, hi))
        np.testing.assert_array_equal(table_of(missing, rows, width), part & ~table)
        within = coverage.within(p0, p1)
        held = [(a, b, have & interval(lo, hi)) for a, b, have in within]
        np.testing.assert_array_equal(table_of(held, rows, width), part & table)


def test_a_full_set_stays_full() -> None:
    coverage = Coverage(4, 4, full=True)
    coverage.add(1, 2, interval(1, 2))
    assert coverage.full and coverage.covers(0, 4, interval(0, 4)) and coverage.bits().all()


def test_nothing_added_is_nothing_covered() -> None:
    coverage = Coverage(4, 4)
    coverage.add(0, 4, 0)
    assert coverage.empty


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_strided_pattern_is_the_bytes_it_names(data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 10)), data.draw(st.integers(1, 10))
    run = data.draw(st.integers(1, rows * width))
    lo = data.draw(st.integers(0, rows * width - run))
    left = rows * width - lo - run
    steps = []
    for _ in range(data.draw(st.integers(0, 3))):
        step = data.draw(st.sampled_from([0, 1, 2, 3, run, width, width + 1, 2 * width]))
        count = data.draw(st.integers(1, 1 + (min(left // step, 5) if step else 3)))
        left -= step * (count - 1)
        steps.append((step, count))

    starts = [lo]
    for step, count in steps:
        starts = [start + step * k for start in starts for k in range(count)]
    flat = np.zeros(rows * width, np.bool_)
    for start in starts:
        flat[start : start + run] = True

    mask = strided(lo, run, tuple(steps))
    assert [bool(mask >> byte & 1) for byte in range(rows * width)] == flat.tolist()
    bands = row_bands(lo, run, tuple(steps), width)
    np.testing.assert_array_equal(table_of(bands, rows, width), flat.reshape(rows, width))


def test_a_tile_of_a_matrix_is_one_band() -> None:
    # rows 3 and on, columns 8:24 of a matrix of 64 bytes a row
    assert row_bands(3 * 64 + 8, 16, ((64, 1000),), 64) == [(3, 1003, interval(8, 24))]


def test_every_other_byte_of_many_rows_is_one_band() -> None:
    bands = row_bands(0, 1, ((64, 1000), (2, 32)), 64)
    assert bands == [(0, 1000, int("01" * 32, 2))]


def test_a_long_run_takes_three_bands() -> None:
    whole = interval(0, 64)
    wanted = [(0, 1, interval(60, 64)), (1, 1_000_000, whole), (1_000_000, 1_000_001, 3)]
    assert row_bands(60, 4 + 64 * 999_999 + 2, (), 64) == wanted
