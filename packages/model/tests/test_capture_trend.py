from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wantrn.model.capture import Trend, TrendRules, classify

ERRORS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30)


def by_its_definition(errors: list[float]) -> Trend:
    """The thresholds as they are written down, with NumPy."""
    grown = np.count_nonzero(np.diff(errors) > 0)
    if errors[-1] > 2 * errors[0] and 10 * grown >= 7 * (len(errors) - 1):
        return Trend.ACCUMULATING
    return Trend.SPIKE if np.max(errors) > 3 * np.median(errors) else Trend.STABLE


@settings(deadline=None)
@given(ERRORS)
def test_is_what_it_says(errors: list[float]) -> None:
    assert classify(errors) == by_its_definition(errors)


@settings(deadline=None)
@given(ERRORS, st.integers(-30, 30))
def test_has_no_unit(errors: list[float], exponent: int) -> None:
    assert classify([math.ldexp(error, exponent) for error in errors]) == classify(errors)


@settings(deadline=None)
@given(st.lists(st.floats(1.0, 1.9), min_size=1, max_size=30))
def test_what_varies_by_less_than_two_is_stable(errors: list[float]) -> None:
    assert classify(errors) == Trend.STABLE


@settings(deadline=None)
@given(st.lists(st.floats(1.0, 1.9), min_size=3, max_size=30), st.data())
def test_one_step_that_stands_out(errors: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(errors) - 1))
    errors[place] = 10.0
    rising = sum(b > a for a, b in pairwise(errors))
    assume(rising < 0.7 * (len(errors) - 1) or place < len(errors) - 1)
    assert classify(errors) == Trend.SPIKE


@settings(deadline=None)
@given(st.floats(1e-6, 1.0), st.floats(1.01, 4.0), st.integers(2, 40))
def test_growth_by_a_factor_accumulates(first: float, factor: float, steps: int) -> None:
    errors = [first * factor**step for step in range(steps)]
    wanted = Trend.ACCUMULATING if errors[-1] > 2 * errors[0] else Trend.STABLE
    assert classify(errors) == wanted
    # the other way round it only fades
    assert classify(errors[::-1]) != Trend.ACCUMULATING


@pytest.mark.parametrize(
    ("errors", "trend"),
    [
        ([1.0], Trend.STABLE),
        ([0.0, 0.0, 0.0], Trend.STABLE),
        ([0.0, 0.1, 0.2, 0.3], Trend.ACCUMULATING),
        ([1, 1, 1, 3.0], Trend.STABLE),
        ([1, 1, 1, 3.1], Trend.SPIKE),
        ([1, 1.2, 1.1, 1.4, 1.6, 1.9, 2.1], Trend.ACCUMULATING),
        ([1, 1.2, 1.1, 1.4, 1.3, 1.9, 2.1], Trend.STABLE),  # four of six grow
        ([1, 2, 4, 8, 16], Trend.ACCUMULATING),  # although 16 is above three times 4
        ([1, 1, math.inf, 1], Trend.SPIKE),
    ],
)
def test_examples(errors: list[float], trend: Trend) -> None:
    assert classify(errors) == trend


def test_other_rules() -> None:
    assert classify([1, 1, 1, 2.5]) == Trend.STABLE
    assert classify([1, 1, 1, 2.5], TrendRules(spike=2)) == Trend.SPIKE
    assert classify([1, 1.1, 1.3]) == Trend.STABLE
    assert classify([1, 1.1, 1.3], TrendRules(growth=1.2)) == Trend.ACCUMULATING
    assert classify([1, 0.9, 2.5], TrendRules(growing=0.5)) == Trend.ACCUMULATING


@pytest.mark.parametrize("wrong", [[], [-1.0], [1.0, math.nan]])
def test_no_errors(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="errors must be numbers from 0 up"):
        classify(wrong)


@pytest.mark.parametrize(
    "wrong", [{"spike": 0.5}, {"growth": math.nan}, {"growing": 1.1}, {"growing": -0.1}]
)
def test_no_rules(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        TrendRules(**wrong)
