"""New tensors and copies between memories: `nki.language` against NumPy."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nkisim
import nkisim.isa as nisa
import nkisim.language as nl

GENERATIONS = ["gen2", "gen3", "gen4"]


def seen(look, **options):
    """What `look()` returns inside a kernel."""
    found = []

    def kernel(x):
        found.append(look())
        return x

    nkisim.simulate(kernel, **options)(np.zeros((1, 1), np.float32))
    return found[0]


def shown(make, **options):
    """The values of the tensor that `make()` gives."""

    def kernel(x):
        tile = make()
        if not tile.on_chip:
            out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(out, tile)
            return out
        if tile.buffer is nl.psum:
            tile = nl.copy(tile)
        out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    return nkisim.simulate(kernel, **options)(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("shape", [(128, 4), [2, 3, 5], (np.int64(7), 1)])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm])
def test_ndarray_has_the_shape_and_the_memory_it_is_asked_for(shape, buffer):
    tensor = seen(lambda: nl.ndarray(shape, nl.float32, buffer, name="t"))
    assert tensor.shape == tuple(shape)
    assert all(type(size) is int for size in tensor.shape)
    assert (tensor.buffer, tensor.name, tensor.dtype) == (buffer, "t", nl.float32)


@pytest.mark.parametrize(
    "spelling",
    [nl.bfloat16, "bfloat16", "bf16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16),
     torch.bfloat16],
)  # fmt: skip
def test_a_dtype_may_be_spelled_in_any_way(spelling):
    assert seen(lambda: nl.ndarray((2, 2), spelling)).dtype is nl.bfloat16


def test_hbm_takes_one_dimension_and_a_bare_size():
    assert seen(lambda: nl.ndarray(7, nl.int8, nl.shared_hbm)).shape == (7,)


@pytest.mark.parametrize("buffer", ["sbuf", "hbm", None, 3])
def test_a_buffer_must_be_an_object(buffer):
    with pytest.raises(TypeError, match=r"nl\.sbuf, nl\.psum, nl\.private_hbm"):
        seen(lambda: nl.ndarray((2, 2), nl.float32, buffer))


@pytest.mark.parametrize(
    ("shape", "error", "text"),
    [
        ((4,), nkisim.NkiValidationError, r"\(4, 1\) or \(1, 4\)"),
        (4, nkisim.NkiValidationError, "two or more"),
        ((), nkisim.NkiValidationError, "at least 1"),
        ((4, 0), nkisim.NkiValidationError, "at least 1"),
        ((4, -2), nkisim.NkiValidationError, "at least 1"),
        ((4, 2.0), TypeError, "integers"),
        ("ab", TypeError, "integers"),
        ((129, 1), nkisim.NkiValidationError, "128"),
        ((1, 200_000), nkisim.NkiCapacityError, "245752"),
    ],
)
def test_a_shape_that_sbuf_does_not_take_is_rejected(shape, error, text):
    with pytest.raises(error, match=text):
        seen(lambda: nl.ndarray(shape, nl.float32), target="gen4")


def test_psum_holds_16_kib_of_a_partition():
    seen(lambda: nl.ndarray((128, 4096), nl.float32, nl.psum))
    with pytest.raises(nkisim.NkiCapacityError, match="16384"):
        seen(lambda: nl.ndarray((128, 4097), nl.float32, nl.psum))


def test_64_bit_types_do_not_exist():
    with pytest.raises(TypeError, match="dtype"):
        seen(lambda: nl.ndarray((2, 2), np.float64))


def test_a_name_is_a_string():
    with pytest.raises(TypeError, match="name"):
        seen(lambda: nl.ndarray((2, 2), nl.float32, name=3))


def test_tensors_at_one_address_share_their_bytes():
    def make():
        whole = nl.ndarray((32, 8), nl.float32, address=(32, 64))
        part = nl.ndarray((32, 2), nl.float32, address=(32, 64 + 8))
        nisa.memset(whole, 1.0)
        nisa.memset(part, 5.0)
        nisa.memset(whole[:, 0:2], 1.0)
        return whole

    quiet = nkisim.Rules(overwritten="off")
    expected = np.ones((32, 8), np.float32)
    expected[:, 2:4] = 5
    np.testing.assert_array_equal(shown(make, rules=quiet), expected)


def test_an_address_in_hbm_is_recorded():
    tensor = seen(lambda: nl.ndarray((4, 4), nl.float32, nl.hbm, address=(4096,)))
    assert tensor.storage.place.address == 4096


@pytest.mark.parametrize(
    ("buffer", "address"),
    [
        (nl.sbuf, (0,)),
        (nl.psum, 0),
        (nl.sbuf, (-1, 0)),
        (nl.hbm, (0, 0)),
        (nl.hbm, 4),
        (nl.hbm, (-1,)),
    ],
)
def test_an_address_of_the_other_kind_is_rejected(buffer, address):
    with pytest.raises(nkisim.NkiError, match="address"):
        seen(lambda: nl.ndarray((4, 4), nl.float32, buffer, address=address))


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int32, np.uint8])
def test_filled_tensors(buffer, dtype):
    shape = (17, 3, 5)
    for make, value in (
        (lambda: nl.zeros(shape, dtype, buffer), 0),
        (lambda: nl.ones(shape, dtype, buffer), 1),
        (lambda: nl.full(shape, 7, dtype, buffer), 7),
    ):
        found = shown(make)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.full(shape, value, dtype))


@given(
    shape=st.lists(st.integers(1, 30), min_size=1, max_size=3).map(tuple)
    | st.integers(1, 600_000).map(lambda n: (n,))
)
@settings(deadline=None, max_examples=25)
def test_any_size_of_hbm_is_filled_to_the_last_element(shape):
    found = shown(lambda: nl.full(shape, 3.5, nl.bfloat16, nl.shared_hbm))
    assert found.shape == shape
    assert (found.astype(np.float32) == 3.5).all()


def test_a_fraction_does_not_fill_integers():
    with pytest.raises(nkisim.NkiValidationError, match="integer"):
        seen(lambda: nl.full((2, 2), 0.5, nl.int32))


def test_like_takes_what_is_not_said_from_the_other():
    def look():
        x = nl.ndarray((4, 6), nl.bfloat16, nl.psum)
        made = [nl.empty_like(x), nl.zeros_like(x), nl.zeros_like(x, nl.int32, nl.sbuf, "z")]
        return [(t.shape, t.dtype, t.buffer) for t in made]

    shape = (4, 6)
    assert seen(look) == [
        (shape, nl.bfloat16, nl.psum),
        (shape, nl.bfloat16, nl.psum),
        (shape, nl.int32, nl.sbuf),
    ]


def test_a_constant_holds_the_array_or_the_file(tmp_path):
    values = np.random.default_rng(0).normal(size=(3, 200, 2)).astype(np.float32)
    np.save(tmp_path / "c.npy", values)
    np.testing.assert_array_equal(shown(lambda: nl.shared_constant(values)), values)
    np.testing.assert_array_equal(shown(lambda: nl.shared_constant(tmp_path / "c.npy")), values)
    narrow = torch.from_numpy(values).to(torch.bfloat16)
    found = shown(lambda: nl.shared_constant(narrow))
    np.testing.assert_array_equal(found.astype(np.float32), narrow.float().numpy())


@pytest.mark.parametrize("constant", [[1.0, 2.0], 3.0, np.zeros(3), np.zeros(3, np.int64)])
def test_a_constant_must_be_an_array_of_a_type_that_nki_has(constant):
    with pytest.raises(TypeError, match="constant"):
        seen(lambda: nl.shared_constant(constant))


def test_both_cores_see_one_constant():
    values = np.arange(12, dtype=np.float32).reshape(2, 6)

    def kernel(x):
        constant = nl.shared_constant(values)
        out = nl.ndarray((2, 6), nl.float32, nl.shared_hbm)
        core = nl.program_id(0)
        nl.store(out[core : core + 1], nl.load(constant[core : core + 1]))
        return out

    np.testing.assert_array_equal(nkisim.simulate(kernel)[2](np.zeros((1, 1), np.float32)), values)


@pytest.mark.parametrize("dtype", [None, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("n", [1, 5, 128])
def test_identity(n, dtype):
    found = shown(
        lambda: (
            nl.shared_identity_matrix(n) if dtype is None else nl.shared_identity_matrix(n, dtype)
        )
    )
    assert found.dtype == (np.uint8 if dtype is None else dtype)
    np.testing.assert_array_equal(found.astype(np.float32), np.eye(n, dtype=np.float32))


def test_identity_into_a_given_tensor():
    def make():
        dst = nl.ndarray((6, 6), nl.float16)
        assert nl.shared_identity_matrix(6, dst=dst) is dst
        return dst

    np.testing.assert_array_equal(shown(make), np.eye(6, dtype=np.float16))


@pytest.mark.parametrize("n", [0, 129])
def test_identity_is_at_most_as_wide_as_the_array(n):
    with pytest.raises(nkisim.NkiValidationError, match=f"n is {n}"):
        seen(lambda: nl.shared_identity_matrix(n))


def test_identity_needs_a_tensor_of_its_shape():
    with pytest.raises(nkisim.NkiValidationError, match="dst"):
        seen(lambda: nl.shared_identity_matrix(4, dst=nl.ndarray((4, 5), nl.float32)))


@pytest.mark.parametrize("target", GENERATIONS)
@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16])
def test_random_values_are_uniform_and_repeatable(target, dtype):
    first, again, other = (
        shown(lambda: nl.rand((128, 500), dtype), target=target, seed=seed).astype(np.float64)
        for seed in (1, 1, 2)
    )
    assert first.min() >= 0 and first.max() <= 1
    # 64000 values: the standard error of the mean is 0.0011
    assert abs(first.mean() - 0.5) < 0.006
    assert abs(first.var() - 1 / 12) < 0.004
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.9


def test_random_values_are_made_on_chip_and_are_no_integers():
    with pytest.raises(nkisim.NkiValidationError, match="buffer"):
        seen(lambda: nl.rand((4, 4), nl.float32, nl.shared_hbm))
    with pytest.raises(nkisim.NkiValidationError, match="dtype"):
        seen(lambda: nl.rand((4, 4), nl.int32))


def test_a_seed_makes_the_same_values_again():
    def look():
        seed = nl.full((1, 1), 7, nl.uint32)
        bits = [nl.ndarray((4, 8), nl.uint32) for _ in range(3)]
        for tile in bits:
            if tile is not bits[1]:
                nl.random_seed(seed)
            nisa.rng(tile)
        return [tile.values().copy() for tile in bits]

    first, later, again = seen(look)
    np.testing.assert_array_equal(first, again)
    assert (first != later).any()


@pytest.mark.parametrize("dtype", [None, nl.bfloat16, nl.int32])
def test_load_and_store_convert(dtype):
    values = np.random.default_rng(1).normal(0, 100, (128, 9)).astype(np.float32)

    def kernel(x):
        tile = nl.load(x, dtype)
        assert tile.buffer is nl.sbuf
        out = nl.ndarray(x.shape, nl.float32, nl.shared_hbm)
        nl.store(out, tile)
        return out

    expected = {
        None: values,
        nl.bfloat16: values.astype(ml_dtypes.bfloat16).astype(np.float32),
        nl.int32: np.rint(values),
    }
    np.testing.assert_array_equal(nkisim.simulate(kernel)(values), expected[dtype])


def test_load_takes_hbm_of_two_dimensions_and_store_goes_there():
    def of_sbuf():
        nl.load(nl.zeros((2, 2), nl.float32))

    def of_a_row():
        nl.load(nl.zeros((2,), nl.float32, nl.hbm))

    def into_sbuf():
        nl.store(nl.zeros((2, 2), nl.float32), nl.zeros((2, 2), nl.float32))

    def from_psum():
        nl.store(nl.ndarray((2, 2), nl.float32, nl.hbm), nl.zeros((2, 2), nl.float32, nl.psum))

    for look, text in (
        (of_sbuf, "src"), (of_a_row, "two or more"), (into_sbuf, "dst"), (from_psum, "DMA reaches")
    ):  # fmt: skip
        with pytest.raises(nkisim.NkiValidationError, match=text):
            seen(look)


def test_assignment_copies_what_it_is_given():
    values = np.arange(24, dtype=np.float32).reshape(4, 6)

    def kernel(x):
        tile = nl.ndarray((4, 6), nl.float32)
        tile[...] = x
        accumulator = nl.ndarray((4, 6), nl.float32, nl.psum)
        accumulator[...] = tile
        tile[:, 4:6] = accumulator[:, 0:2]
        tile[0, 1] = -1
        out = nl.ndarray((5, 6), nl.float32, nl.shared_hbm)
        out[0:4] = tile
        out[4] = tile[3]
        return out

    expected = np.empty((5, 6), np.float32)
    expected[:4] = values
    expected[:4, 4:6] = values[:, 0:2]
    expected[0, 1] = -1
    expected[4] = expected[3]
    np.testing.assert_array_equal(nkisim.simulate(kernel)(values), expected)


def test_assignment_takes_tensors_and_on_chip_numbers():
    def a_number_to_hbm(x):
        nl.ndarray((2, 2), nl.float32, nl.hbm)[...] = 0.0

    def an_array(x):
        nl.ndarray((2, 2), nl.float32)[...] = np.zeros((2, 2), np.float32)

    for kernel in (a_number_to_hbm, an_array):
        with pytest.raises(TypeError, match="the value"):
            nkisim.simulate(kernel)(np.zeros((1, 1), np.float32))


def test_everything_is_made_of_recorded_instructions():
    def kernel(x):
        tile = nl.load(x)
        nl.zeros((4, 4), nl.float32)
        copy = nl.copy(tile)
        nl.shared_identity_matrix(4)
        nl.store(x, copy)

    _, trace = nkisim.World(1).launch(kernel, [(np.zeros((4, 4), np.float32),)])
    assert [instruction.op for instruction in trace.cores[0]] == [
        "dma_copy", "memset", "tensor_copy", "dma_copy", "dma_copy",
    ]  # fmt: skip
    assert {instruction.code.co_name for instruction in trace.cores[0]} == {"kernel"}


def test_reading_what_nothing_wrote_is_found():
    def kernel(x):
        nl.copy(nl.ndarray((4, 4), nl.float32))

    with pytest.warns(nkisim.NkiWarning, match="uninitialized"):
        nkisim.simulate(kernel)(np.zeros((1, 1), np.float32))


def test_a_function_outside_a_kernel_says_so():
    for call in (
        lambda: nl.ndarray((2, 2), nl.float32),
        lambda: nl.program_id(0),
        lambda: nl.shared_constant(np.zeros((2, 2), np.float32)),
    ):
        with pytest.raises(nkisim.NkiOutsideKernelError, match="outside a kernel"):
            call()


def test_a_run_without_numerics_makes_the_same_record():
    def kernel(x):
        tile = nl.softmax(nl.load(x))
        identity = nl.shared_identity_matrix(4, nl.float32)
        out = nl.zeros((4, 8), nl.float32, nl.shared_hbm)
        nl.store(out, nl.copy(nl.matmul(identity, tile, transpose_x=True)))
        return out

    x = np.ones((4, 8), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, with_values = nkisim.World(1).launch(kernel, [(x,)])
        _, without = nkisim.World(1, numerics=False).launch(kernel, [(x,)])
    assert [i.op for i in with_values.cores[0]] == [i.op for i in without.cores[0]]
