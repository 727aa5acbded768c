"""Overlap of strided patterns against sets of bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nkisim import dtypes, extents
from nkisim.enums import MemoryRegion
from nkisim.extents import overlap
from nkisim.trace import Access, Place

Steps = tuple[tuple[int, int], ...]


def place(
    region: MemoryRegion = MemoryRegion.sbuf, address: int | None = None, core: int | None = 0
) -> Place:
    made = Place(0, region, "t", (128, 4096), dtypes.uint8, 128, 4096, core)
    made.address = address
    return made


def access(
    of: Place, lo: int, run: int, steps: Steps = (), partitions: tuple[int, int] = (0, 1)
) -> Access:
    hi = lo + run + sum(step * (count - 1) for step, count in steps)
    return Access(of, dtypes.uint8, *partitions, lo, hi, run, steps, run, 1, False)


def touched(of: Access, shift: int = 0) -> set[int]:
    starts = {of.lo + shift}
    for step, count in of.steps:
        starts = {start + index * step for start in starts for index in range(count)}
    return {start + byte for start in starts for byte in range(of.run)}


TENSOR = place()
patterns = st.builds(
    access,
    st.just(TENSOR),
    st.integers(0, 80),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 8)), max_size=3).map(tuple),
)


@settings(deadline=None, max_examples=600)
@given(patterns, patterns)
def test_any_two_small_patterns(a: Access, b: Access) -> None:
    expected = bool(touched(a) & touched(b))
    assert overlap(a, b) == expected
    assert overlap(b, a) == expected


@settings(deadline=None, max_examples=200)
@given(
    *[st.integers(0, 3000), st.integers(1, 40), st.integers(1, 400), st.integers(1, 300)] * 2,
)
def test_any_two_long_rows(
    lo_a: int, run_a: int, step_a: int, count_a: int,
    lo_b: int, run_b: int, step_b: int, count_b: int,
) -> None:  # fmt: skip
    a = access(TENSOR, lo_a, run_a, ((step_a, count_a),))
    b = access(TENSOR, lo_b, run_b, ((step_b, count_b),))
    assert overlap(a, b) == bool(touched(a) & touched(b))


@settings(deadline=None)
@given(st.data())
def test_blocks_of_one_tensor_of_any_size(data: st.DataObject) -> None:
    """Slices of a [B, R, C] tensor overlap exactly if they do in every dimension."""
    shape = [data.draw(st.integers(1, 5000)) for _ in range(3)]
    cuts = []
    for _ in range(2):
        cut = []
        for extent in shape:
            start = data.draw(st.integers(0, extent - 1))
            cut.append((start, data.draw(st.integers(start + 1, extent))))
        cuts.append(cut)

    def block(cut: list[tuple[int, int]]) -> Access:
        rows, columns = shape[1], shape[2]
        (b0, b1), (r0, r1), (c0, c1) = cut
        lo = (b0 * rows + r0) * columns + c0
        return access(TENSOR, lo, c1 - c0, ((rows * columns, b1 - b0), (columns, r1 - r0)))

    expected = all(x0 < y1 and y0 < x1 for (x0, x1), (y0, y1) in zip(*cuts, strict=True))
    assert overlap(block(cuts[0]), block(cuts[1])) == expected


def test_huge_interleaved_rows_are_exact() -> None:
    even = access(TENSOR, 0, 2, ((4, 10**6), (4 * 10**6, 10**5)))
    odd = access(TENSOR, 2, 2, ((4, 10**6), (4 * 10**6, 10**5)))
    assert not overlap(even, odd)
    assert overlap(even, access(TENSOR, 2, 2, ((4, 10**6), (4 * 10**6 + 2, 10**5))))
    # coprime steps meet late: 7 * i == 11 * 10**6 * j + 3 for the first time at j = 2
    rows = access(TENSOR, 0, 1, ((7, 10**7),))
    assert overlap(rows, access(TENSOR, 3, 1, ((11 * 10**6, 3),))) == any(
        (11 * 10**6 * j + 3) % 7 == 0 for j in range(3)
    )


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(extents, "SEARCH_LIMIT", 0)
    extents._meet.cache_clear()
    yield
    extents._meet.cache_clear()


@settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(patterns, patterns)
def test_without_a_search_no_overlap_is_missed(no_search: None, a: Access, b: Access) -> None:
    assert overlap(a, b) or not touched(a) & touched(b)


def test_without_a_search_the_answer_is_yes(no_search: None) -> None:
    a = access(TENSOR, 0, 1, ((35, 3), (15, 4), (11, 3)))
    assert not touched(a) & {50 - 1}
    assert overlap(a, access(TENSOR, 50 - 1, 1))


def test_partitions_are_apart() -> None:
    a = access(TENSOR, 0, 64, partitions=(0, 32))
    assert not overlap(a, access(TENSOR, 0, 64, partitions=(32, 64)))
    assert overlap(a, access(TENSOR, 0, 64, partitions=(31, 64)))


@settings(deadline=None, max_examples=300)
@given(patterns, patterns, st.integers(0, 100), st.integers(0, 100))
def test_addressed_tensors_alias(a: Access, b: Access, at_a: int, at_b: int) -> None:
    a = access(place(address=at_a), a.lo, a.run, a.steps)
    b = access(place(address=at_b), b.lo, b.run, b.steps)
    assert overlap(a, b) == bool(touched(a, at_a) & touched(b, at_b))


def test_other_memories_never_overlap() -> None:
    a = access(place(address=0), 0, 64)
    assert overlap(a, access(place(address=32), 0, 64))
    assert not overlap(a, access(place(address=None), 0, 64))
    assert not overlap(a, access(place(address=0, core=1), 0, 64))
    assert not overlap(a, access(place(MemoryRegion.psum, address=0), 0, 64))
    hbm = place(MemoryRegion.shared_hbm, core=None)
    assert not overlap(access(hbm, 0, 64), access(place(MemoryRegion.shared_hbm, core=None), 0, 64))
    assert overlap(access(hbm, 0, 64), access(hbm, 63, 64))
