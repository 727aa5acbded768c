"""Transposes, products, gathers, broadcasts and prints of `nki.language`, against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import nkisim
import nkisim.language as nl

RNG = np.random.default_rng(7)


def apply(function, *arrays, loaded=True, **options):
    """`function` on tiles that hold `arrays`, or on the tensors in HBM."""

    def kernel(*inputs):
        result = function(*[nl.load(x) for x in inputs] if loaded else inputs)
        if result.buffer is nl.psum:
            result = nl.copy(result)
        out = nl.ndarray(result.shape, result.dtype, nl.shared_hbm)
        nl.store(out, result)
        return out

    return nkisim.simulate(kernel, **options)(*arrays)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(128, 128), (5, 77), (96, 1)])
def test_transposes(shape, dtype):
    x = RNG.normal(size=shape).astype(dtype)

    def in_psum(t):
        result = nl.transpose(t)
        assert result.buffer is nl.psum
        return result

    np.testing.assert_array_equal(apply(in_psum, x), x.T)
    np.testing.assert_array_equal(apply(nl.load_transpose2d, x, loaded=False), x.T)
    for function, loaded in ((nl.transpose, True), (nl.load_transpose2d, False)):
        found = apply(lambda t, f=function: f(t, nl.float16), x, loaded=loaded)
        np.testing.assert_array_equal(found, x.T.astype(np.float32).astype(np.float16))


def test_a_load_may_be_longer_than_the_partitions_when_it_is_transposed():
    x = RNG.normal(size=(1000, 64)).astype(np.float32)
    np.testing.assert_array_equal(apply(nl.load_transpose2d, x, loaded=False), x.T)


def test_transposes_are_of_matrices_in_their_memory():
    cube = np.ones((2, 3, 4), np.float32)
    with pytest.raises(nkisim.NkiValidationError, match="two dimensions"):
        apply(nl.transpose, cube)
    with pytest.raises(nkisim.NkiValidationError, match="two dimensions"):
        apply(nl.load_transpose2d, cube, loaded=False)
    with pytest.raises(nkisim.NkiValidationError, match="must be in HBM"):
        apply(nl.load_transpose2d, cube[0])
    with pytest.raises(nkisim.NkiValidationError, match="load it first"):
        apply(nl.transpose, cube[0], loaded=False)
    with pytest.raises(nkisim.NkiValidationError, match="128"):
        apply(nl.transpose, np.ones((4, 200), np.float32))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_product_of_a_transposed_matrix(dtype):
    x = RNG.normal(size=(100, 32)).astype(dtype)
    y = RNG.normal(size=(100, 300)).astype(dtype)

    def product(a, b):
        result = nl.matmul(a, b, transpose_x=True)
        assert (result.buffer, result.dtype) == (nl.psum, nl.float32)
        return result

    found = apply(product, x, y, rules=nkisim.Rules.all("error"))
    expected = x.astype(np.float64).T @ y.astype(np.float64)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_a_product_without_the_transpose_is_computed_and_reported():
    x = RNG.normal(size=(32, 100)).astype(np.float32)
    y = RNG.normal(size=(100, 20)).astype(np.float32)
    with pytest.warns(nkisim.NkiWarning, match="only True compiles"):
        found = apply(nl.matmul, x, y)
    np.testing.assert_allclose(found, x.astype(np.float64) @ y, rtol=1e-5, atol=1e-4)


def test_a_product_needs_equal_contractions():
    with pytest.raises(nkisim.NkiValidationError, match="8 partitions and moving 9"):
        apply(
            lambda a, b: nl.matmul(a, b, transpose_x=True),
            np.ones((8, 4), np.float32),
            np.ones((9, 4), np.float32),
        )


@pytest.mark.parametrize("dtype", [None, nl.bfloat16])
def test_gathers_count_the_elements_of_a_partition(dtype):
    data = RNG.integers(-100, 100, (16, 4, 6)).astype(np.float32)
    indices = RNG.integers(0, 24, (16, 3, 7)).astype(np.uint32)
    found = apply(lambda a, b: nl.gather_flattened(a, b, dtype=dtype), data, indices)
    flat = data.reshape(16, 24)
    expected = np.take_along_axis(flat, indices.reshape(16, 21).astype(int), 1)
    np.testing.assert_array_equal(found.astype(np.float32), expected.reshape(16, 3, 7))


def test_gathers_have_one_axis():
    data, indices = np.ones((16, 4), np.float32), np.zeros((16, 2), np.uint32)
    with pytest.raises(nkisim.NkiValidationError, match="axis is 1"):
        apply(lambda a, b: nl.gather_flattened(a, b, axis=1), data, indices)


def test_expand_dims_is_a_view():
    x = RNG.normal(size=(4, 6)).astype(np.float32)

    def kernel(x):
        tile = nl.load(x)
        view = nl.expand_dims(tile, 1)
        assert view.shape == (4, 1, 6) and view.storage is tile.storage
        assert nl.expand_dims(tile, 2).shape == nl.expand_dims(tile, -1).shape == (4, 6, 1)
        assert nl.expand_dims(x, 0).shape == (1, 4, 6)
        return x

    nkisim.simulate(kernel)(x)
    with pytest.raises(nkisim.NkiValidationError, match="dimension there"):
        apply(lambda t: nl.expand_dims(t, 0), x)


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize(
    ("shape", "wanted"),
    [((4, 1), (4, 9)), ((4, 1, 5, 1), (4, 3, 5, 2)), ((1, 6), (128, 6)), ((1, 6), (70, 6)),
     ((1, 1, 6), (33, 4, 6)), ((4, 6), (4, 6))],
)  # fmt: skip
def test_broadcasts(shape, wanted, loaded):
    x = RNG.normal(size=shape).astype(np.float32)
    for dtype in (None, nl.bfloat16):
        found = apply(lambda t, d=dtype: nl.broadcast_to(t, wanted, d), x, loaded=loaded)
        expected = np.broadcast_to(x, wanted)
        if dtype is not None:
            expected = expected.astype(ml_dtypes.bfloat16)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("wanted", [(4, 7), (8, 6), (4, 1, 6), (4,)])
@pytest.mark.parametrize("loaded", [True, False])
def test_a_broadcast_that_does_not_fit_is_rejected(wanted, loaded):
    with pytest.raises(nkisim.NkiValidationError, match="broadcast_to: x is"):
        apply(lambda t: nl.broadcast_to(t, wanted), np.ones((4, 6), np.float32), loaded=loaded)


def test_device_print_shows_the_values_of_the_moment(capsys):
    def kernel(x):
        tile = nl.load(x)
        nl.device_print("before", tile)
        tile[...] = 7.0
        nl.device_print("after", tile[0:1, 0:2])

    nkisim.simulate(kernel)(np.array([[1.5, 2.5, -3.0]], ml_dtypes.bfloat16))
    assert capsys.readouterr().out == (
        "before [1, 3] bfloat16\n[[ 1.5  2.5 -3. ]]\nafter [1, 2] bfloat16\n[[7. 7.]]\n"
    )


def test_device_print_says_who_prints_where_there_are_several(capsys):
    def kernel(x):
        if nl.program_id(0) == 1:
            nl.device_print("x", x)

    nkisim.simulate(kernel)[2](np.zeros((1, 1), np.int32))
    assert capsys.readouterr().out == "x [rank 0, core 1] [1, 1] int32\n[[0]]\n"


def test_device_print_without_numerics_shows_what_there_is(capsys):
    nkisim.simulate(lambda x: nl.device_print("x", x), numerics=False)(
        nkisim.TensorSpec((2, 3), nl.float32)
    )
    assert capsys.readouterr().out == "x [2, 3] float32\n"
