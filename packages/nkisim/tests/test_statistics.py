from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim.errors import NkiValidationError
from nkisim.statistics import bn_aggr, bn_stats

# a kernel prints no warnings, however odd its numbers are
pytestmark = pytest.mark.filterwarnings("error")


def moments(values: list[float]) -> list[float]:
    if not values:
        return [0.0, 0.0, 0.0]
    mean = math.fsum(values) / len(values)
    return [len(values), mean, math.fsum((v - mean) ** 2 for v in values)]


def data(seed: int, P: int, N: int, centre: float) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=(P, N)) + centre).astype(np.float32)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 1000), N=st.integers(1, 512), centre=st.sampled_from([0.0, 3.0, -100.0]))
def test_even_and_odd_positions(seed: int, N: int, centre: float) -> None:
    x = data(seed, 3, N, centre)
    expected = [moments(row[0::2].tolist()) + moments(row[1::2].tolist()) for row in x]
    result = bn_stats(x)
    assert result.dtype == np.float32 and result.shape == (3, 6)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-7 * max(1.0, centre**2))


def test_worked_example() -> None:
    x = np.array([[1, 10, 3, 20, 5]], np.float32)
    np.testing.assert_array_equal(bn_stats(x), [[3, 3, 8, 2, 15, 50]])
    np.testing.assert_allclose(bn_aggr(bn_stats(x)), [[39 / 5, 535 / 5 - (39 / 5) ** 2]], rtol=1e-6)


def test_one_element_has_no_odd_position() -> None:
    np.testing.assert_array_equal(bn_stats(np.array([[7]], np.float32)), [[1, 7, 0, 0, 0, 0]])
    np.testing.assert_array_equal(bn_aggr(bn_stats(np.array([[7]], np.float32))), [[7, 0]])


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 1000), chunks=st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_chunks_together(seed: int, chunks: list[int]) -> None:
    # a mean far from 0, where squares less a square would leave nothing of the variance
    x = data(seed, 2, sum(chunks), 1000.0)
    parts = np.split(x, np.cumsum(chunks)[:-1], axis=1)
    result = bn_aggr(np.concatenate([bn_stats(part) for part in parts], axis=1))
    wide = x.astype(np.float64)
    assert result.dtype == np.float32 and result.shape == (2, 2)
    np.testing.assert_allclose(result[:, 0], wide.mean(axis=1), rtol=3e-7)
    np.testing.assert_allclose(result[:, 1], wide.var(axis=1), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("N", [1, 2, 8])
def test_input_is_left_alone(N: int) -> None:
    x = data(0, 2, N, 1.0)
    before = x.copy()
    bn_stats(x)
    np.testing.assert_array_equal(x, before)


def test_odd_values() -> None:
    x = np.array([[np.inf, 1, 2, 3], [np.nan, 1, 2, 3], [3e38, 1, 3e38, 3]], np.float32)
    result = bn_stats(x)
    np.testing.assert_array_equal(result[:, 3:], [[2, 2, 2]] * 3)
    assert np.isinf(result[0, 1]) and np.isnan(result[0, 2]) and np.isnan(result[1, 1:3]).all()
    assert np.isnan(bn_aggr(result)[1]).all()
    assert np.isnan(bn_aggr(np.zeros((1, 6), np.float32))).all()


def test_triples_are_checked() -> None:
    with pytest.raises(NkiValidationError, match="data has 7 elements"):
        bn_aggr(np.zeros((2, 7), np.float32))
    with pytest.raises(NkiValidationError, match="data has 0 elements"):
        bn_aggr(np.zeros((2, 0), np.float32))
