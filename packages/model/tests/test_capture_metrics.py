"""Errors and their overlap against plain loops, and what holds for all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from wantrn.model.capture import Error, overlap
from wantrn.model.capture.metrics import ratio

Array = NDArray[np.float64]


def normal(count: int, seed: int, size: float = 1.0) -> Tensor:
    return size * torch.randn(count, generator=torch.Generator().manual_seed(seed))


def overlap_by_loops(one: Array, other: Array) -> float:
    """Each element into its bin by comparing it with all edges, in plain Python."""
    squares = [float(x) ** 2 for x in (*one, *other)]
    common = math.sqrt(math.fsum(squares) / len(squares))
    edges = [common * 2 ** (-8 + quarter / 4) for quarter in range(49)]

    def shares(errors: Array) -> dict[tuple[int, int], float]:
        counts: dict[tuple[int, int], float] = {}
        for error in map(float, errors):
            place = sum(abs(error) > edge for edge in edges)
            sign = 0 if place == 0 else (1 if error > 0 else -1)
            counts[sign, place] = counts.get((sign, place), 0) + 1 / len(errors)
        return counts

    p, q = shares(one), shares(other)
    return sum(math.sqrt(p[place] * q.get(place, 0.0)) for place in p)


ELEMENTS = st.one_of(
    st.just(0.0),
    st.floats(-1.0, 1.0, width=32),
    st.floats(-(2.0**60), 2.0**60, width=32),
    st.floats(-(2.0**-60), 2.0**-60, width=32),
)


@st.composite
def two_errors(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    count = draw(st.integers(1, 40))
    one, other = (draw(st.lists(ELEMENTS, min_size=count, max_size=count)) for _ in range(2))
    return torch.tensor(one), torch.tensor(other)


@settings(deadline=None)
@given(two_errors())
def test_overlap_is_symmetric_and_between_0_and_1(errors: tuple[Tensor, Tensor]) -> None:
    one, other = errors
    found = overlap(one, other)
    assert 0 <= found <= 1
    assert found == overlap(other, one)


@settings(deadline=None)
@given(two_errors())
def test_an_error_overlaps_itself_in_any_order(errors: tuple[Tensor, Tensor]) -> None:
    one, _ = errors
    assert overlap(one, one) == 1
    assert overlap(one, one.flip(0)) == 1


@settings(deadline=None)
@given(two_errors(), st.integers(-20, 20))
def test_overlap_has_no_unit(errors: tuple[Tensor, Tensor], exponent: int) -> None:
    one, other = (error.double() for error in errors)  # so that nothing is rounded to 0
    assert overlap(one * 2.0**exponent, other * 2.0**exponent) == overlap(one, other)


@settings(deadline=None)
@given(two_errors())
def test_nothing_alike(errors: tuple[Tensor, Tensor]) -> None:
    """Of opposite signs, and neither small."""
    one, other = (1 + error.abs().clamp(max=1) for error in errors)
    assert overlap(one, -other) == 0


@pytest.mark.parametrize("size", [0.2, 1.0, 1.4, 5.0, 300.0])
def test_overlap_against_loops(size: float) -> None:
    one, other = normal(500, 0), normal(500, 1, size)
    other[::7] = 0
    wanted = overlap_by_loops(one.double().numpy(), other.double().numpy())
    assert overlap(one, other) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("size", [1.0, 1.5, 2.0, 3.0, 10.0])
def test_overlap_of_normal_errors(size: float) -> None:
    """``integral of sqrt(p q)`` of two normal densities; bins lose some of a percent."""
    found = overlap(normal(10**6, 0), normal(10**6, 1, size))
    assert found == pytest.approx(math.sqrt(2 * size / (1 + size**2)), abs=4e-3)


def test_an_outlier_hides_nothing() -> None:
    one, other = normal(10**5, 0), normal(10**5, 1, 3.0)
    other[0] = 1e3  # a linear scale up to it would have nearly all in one bin
    assert overlap(one, other) < 0.8


def test_more_elements_than_are_taken_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = normal(1000, 0), normal(1000, 1, 2.0)
    whole = overlap(one, other)
    monkeypatch.setattr("wantrn.model.capture.metrics._CHUNK", 7)
    assert overlap(one, other) == whole


def test_what_has_no_overlap() -> None:
    for one, other in (([1.0], [1.0, 2.0]), ([], [])):
        with pytest.raises(ValueError, match="equally many"):
            overlap(torch.tensor(one), torch.tensor(other))
    for wrong in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            overlap(torch.tensor([1.0]), torch.tensor([wrong]))


def test_an_error_against_loops() -> None:
    exact, difference = normal(777, 0, 4.0), normal(777, 1)
    values = [float(x) for x in difference]
    error = Error.of(difference.view(3, 7, 37), exact.view(3, 7, 37))
    assert error.largest == max(abs(x) for x in values)
    squares = math.fsum(x * x for x in values) / len(values)
    assert error.rms == pytest.approx(math.sqrt(squares), rel=1e-12)
    exact_squares = math.fsum(float(x) ** 2 for x in exact) / len(exact)
    assert error.relative == pytest.approx(math.sqrt(squares / exact_squares), rel=1e-12)


def test_an_error_that_is_none_or_no_number() -> None:
    zero, one = torch.zeros(3), torch.ones(3)
    assert Error.of(zero, one) == Error.of(zero, zero) == Error(0, 0, 0)
    assert Error.of(one, zero) == Error(1, 1, math.inf)
    for wrong in (math.nan, math.inf, -math.inf):
        infinite = Error(math.inf, math.inf, math.inf)
        assert Error.of(torch.tensor([0.0, wrong, 1.0]), one) == infinite


def test_ratio() -> None:
    assert ratio(0, 0) == 1
    assert ratio(2, 4) == 0.5
    assert ratio(1, 0) == math.inf
    assert ratio(0, 1) == 0
    assert ratio(math.inf, 1) == math.inf
