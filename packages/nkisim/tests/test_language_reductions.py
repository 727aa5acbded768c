"""Reductions of `nki.language` and what is composed of them, against NumPy and torch in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nkisim
import nkisim.language as nl

RNG = np.random.default_rng(6)
STRICT = nkisim.Rules.all("error")


def apply(function, *arrays, buffer=nl.sbuf, **options):
    """`function` on tiles that hold `arrays`."""

    def kernel(*inputs):
        tiles = [nl.load(x) for x in inputs]
        if buffer is nl.psum:
            for i, tile in enumerate(tiles):
                tiles[i] = nl.ndarray(tile.shape, tile.dtype, nl.psum)
                tiles[i][...] = tile
        result = function(*tiles)
        out = nl.ndarray(result.shape, result.dtype, nl.shared_hbm)
        nl.store(out, result)
        return out

    return nkisim.simulate(kernel, **({"rules": STRICT} | options))(*arrays)


def on_chip_shape(array):
    """The shape that NumPy's result has on chip, where there are two dimensions at least."""
    return array.shape if array.ndim > 1 else (*array.shape, 1)


TRUTHS = {"sum": np.sum, "max": np.max, "min": np.min, "mean": np.mean, "prod": np.prod}


@st.composite
def tiles_and_axes(draw):
    shape = (draw(st.integers(1, 6)), *draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    axes = draw(st.sets(st.integers(1, len(shape) - 1), min_size=1))
    axes = draw(st.permutations(sorted(axes)))
    signed = [axis - len(shape) * draw(st.booleans()) for axis in axes]
    axis = (
        signed[0]
        if len(signed) == 1 and draw(st.booleans())
        else draw(st.sampled_from([list, tuple]))(signed)
    )
    seed = draw(st.integers(0, 2**16))
    return np.random.default_rng(seed).uniform(0.5, 2, shape).astype(np.float32), axis


@pytest.mark.parametrize("name", TRUTHS)
@given(case=tiles_and_axes(), keepdims=st.booleans(), in_psum=st.booleans())
@settings(deadline=None, max_examples=25)
def test_reductions_along_any_free_axes(name, case, keepdims, in_psum):
    x, axis = case
    found = apply(
        lambda t: getattr(nl, name)(t, axis, keepdims=keepdims),
        x,
        buffer=nl.psum if in_psum else nl.sbuf,
    )
    axes = tuple(axis) if isinstance(axis, (list, tuple)) else axis
    expected = TRUTHS[name](x.astype(np.float64), axis=axes, keepdims=keepdims)
    assert found.shape == on_chip_shape(expected)
    np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=3e-6)


@given(case=tiles_and_axes(), keepdims=st.booleans())
@settings(deadline=None, max_examples=25)
def test_variance_keeps_its_axes(case, keepdims):
    x, axis = case
    x = x + np.float32(100)
    found = apply(lambda t: nl.var(t, axis, keepdims=keepdims), x)
    axes = tuple(axis) if isinstance(axis, (list, tuple)) else axis
    expected = np.var(x.astype(np.float64), axis=axes, keepdims=True)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-8)


@given(case=tiles_and_axes())
@settings(deadline=None, max_examples=25)
def test_all_asks_for_nonzero_values(case):
    x, axis = case
    x = np.where(x < 0.6, np.float32(0), x)
    axes = tuple(axis) if isinstance(axis, (list, tuple)) else axis
    expected = np.all(x, axis=axes)
    found = apply(lambda t: nl.all(t, axis, nl.uint8), x)
    assert (found.dtype, found.shape) == (np.uint8, on_chip_shape(expected))
    np.testing.assert_array_equal(found, expected.reshape(found.shape))


def test_sums_of_narrow_types_are_rounded_once():
    x = RNG.normal(size=(8, 4000)).astype(ml_dtypes.bfloat16)
    expected = x.astype(np.float64).sum(1, keepdims=True)
    found = apply(lambda t: nl.sum(t, 1), x)
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2**-8)
    np.testing.assert_allclose(apply(lambda t: nl.sum(t, 1, nl.float32), x), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("axis", "text"),
    [(0, "partition"), ([0, 1], "partition"), (-3, "partition"), (3, "axes 0..2"),
     (-4, "axes 0..2"), ([1, 1], "twice"), ([1, -2], "twice"), ([], "axes 0..2")],
)  # fmt: skip
@pytest.mark.parametrize("function", [nl.sum, nl.var, nl.all, nl.softmax])
def test_an_axis_that_cannot_be_reduced_is_rejected(function, axis, text):
    with pytest.raises(nkisim.NkiValidationError, match=text):
        apply(lambda t: function(t, axis), np.ones((2, 3, 4), np.float32))


def test_reductions_take_tiles():
    def kernel(x):
        nl.sum(x, 1)

    with pytest.raises(nkisim.NkiValidationError, match="load it first"):
        nkisim.simulate(kernel)(np.ones((2, 3), np.float32))


@given(case=tiles_and_axes(), shift=st.sampled_from([0, 300, -300]))
@settings(deadline=None, max_examples=25)
def test_softmax(case, shift):
    x, axis = case
    x = x * np.float32(3) + np.float32(shift)
    axes = tuple(axis) if isinstance(axis, (list, tuple)) else axis
    powers = np.exp(x.astype(np.float64) - x.max(axes, keepdims=True))
    expected = powers / powers.sum(axes, keepdims=True)
    np.testing.assert_allclose(apply(lambda t: nl.softmax(t, axis), x), expected, rtol=2e-5)


def test_softmax_is_along_the_last_axis_by_default():
    x = RNG.normal(size=(5, 3, 9)).astype(np.float32)
    expected = torch.softmax(torch.from_numpy(x).double(), -1).numpy()
    np.testing.assert_allclose(apply(nl.softmax, x), expected, rtol=1e-5)
    narrow = apply(lambda t: nl.softmax(t, dtype=nl.bfloat16), x, buffer=nl.psum)
    np.testing.assert_allclose(narrow.astype(np.float64), expected, rtol=2**-8)


@pytest.mark.parametrize("target", ["gen2", "gen3", "gen4"])
@pytest.mark.parametrize("compute", [None, nl.bfloat16])
def test_rms_norm(target, compute):
    x = RNG.normal(size=(16, 96)).astype(np.float32)
    w = np.broadcast_to(RNG.normal(size=(1, 96)), x.shape).astype(np.float32)
    found = apply(
        lambda a, b: nl.rms_norm(a, b, 1, 96, epsilon=1e-3, compute_dtype=compute),
        x,
        w,
        target=target,
    )
    expected = torch.nn.functional.rms_norm(
        torch.from_numpy(x).double(), (96,), torch.from_numpy(w[0]).double(), 1e-3
    ).numpy()
    tolerance = 1e-5 if compute is None else 0.03
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e-7)


def test_rms_norm_divides_by_the_number_it_is_given():
    x = RNG.normal(size=(4, 10)).astype(np.float32)
    w = RNG.normal(size=(4, 1)).astype(np.float32)
    found = apply(lambda a, b: nl.rms_norm(a, b, [-1], 20, dtype=nl.bfloat16), x, w)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).sum(1, keepdims=True) / 20 + 1e-6) * w
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2**-8)


def test_rms_norm_checks_its_weights_and_its_count():
    x = np.ones((4, 10), np.float32)
    for w in (np.ones((1, 10), np.float32), np.ones((4, 5), np.float32)):
        with pytest.raises(nkisim.NkiValidationError, match="rms_norm: w is"):
            apply(lambda a, b: nl.rms_norm(a, b, 1, 10), x, w)
    with pytest.raises(nkisim.NkiValidationError, match="n is 0"):
        apply(lambda a: nl.rms_norm(a, a, 1, 0), x)
