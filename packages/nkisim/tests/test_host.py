"""Arrays of the caller: which are taken, what the kernel sees of them, and what comes back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from rank_support import bounded, share

import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.errors import NkiValidationError
from nkisim.host import TensorSpec
from nkisim.simulation import World, simulate

GENERATIONS = ["gen2", "gen3", "gen4"]
DTYPES = [
    np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3,
    ml_dtypes.float8_e8m0fnu, np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32,
]  # fmt: skip


def copied(x):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    share(out, x)
    return out


def bits(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    if dtype is np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    size = np.dtype(dtype).itemsize
    return rng.integers(0, 256, (*shape[:-1], shape[-1] * size), np.uint8).view(dtype)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_come_back_bit_for_bit(dtype, lnc):
    x = bits((6, 5), dtype)
    found = bounded(lambda: simulate(copied)[lnc](x))
    assert found.dtype == x.dtype and found.tobytes() == x.tobytes()


@pytest.mark.parametrize("target", GENERATIONS)
def test_e4m3fn_is_read_as_e4m3_before_gen4(target):
    seen = []

    def kernel(x):
        seen.append(x.dtype)
        return copied(x)

    x = bits((4, 8), ml_dtypes.float8_e4m3fn)
    found = simulate(kernel, target=target)(x)
    wanted = nl.float8_e4m3fn if target == "gen4" else nl.float8_e4m3
    assert seen == [wanted] and found.dtype == wanted and found.tobytes() == x.tobytes()
    simulate(kernel, target=target, numerics=False)(TensorSpec((4, 8), "float8_e4m3fn"))
    assert seen[1] is wanted


TORCH = [
    torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e8m0fnu, torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.uint16, torch.uint32,
]  # fmt: skip


@pytest.mark.parametrize("target", ["gen3", "gen4"])
@pytest.mark.parametrize("dtype", TORCH)
def test_torch_tensors_come_back_as_torch_tensors(dtype, target):
    raw = torch.from_numpy(bits((4, 6 * dtype.itemsize), np.uint8))
    x = (raw % 2).bool() if dtype is torch.bool else raw.view(dtype)
    found = simulate(copied, target=target)(x)
    assert type(found) is torch.Tensor and found.dtype == dtype and found.shape == (4, 6)
    assert torch.equal(found.contiguous().view(torch.uint8), x.contiguous().view(torch.uint8))


def test_torch_tensors_are_found_wherever_they_are():
    def kernel(x, more):
        return {"x": copied(x), "rest": [copied(more["w"][0])], "n": 3}

    w = torch.arange(8.0).reshape(2, 4).requires_grad_()
    found = simulate(kernel)(np.ones((2, 2), np.float32), {"w": (w, None)})
    assert type(found["x"]) is torch.Tensor and found["n"] == 3
    assert torch.equal(found["rest"][0], w.detach())
    # of the ranks, those with torch tensors
    mixed = World(2).run(copied, [(np.ones((2, 2), np.float32),), (torch.ones(2, 2),)])
    assert [type(result) for result in mixed] == [np.ndarray, torch.Tensor]


def test_packed_results_are_integers_to_torch():
    def kernel(x):
        return x.view(nl.float8_e4m3fn_x4)

    x = torch.arange(32, dtype=torch.uint8).reshape(2, 16)
    found = simulate(lambda x: copied(kernel(x.view(nl.float8_e4m3fn))), target="gen4")(x)
    assert found.dtype == torch.uint32
    assert torch.equal(found.view(torch.uint8), x)


# Refused


@pytest.mark.parametrize(
    "dtype", [np.float64, np.int64, np.uint64, np.complex64, "S4", "O", "M8[s]", ">f4", ">i2"]
)
def test_types_that_the_hardware_lacks_are_refused_by_name(dtype):
    def kernel(x, weights):
        return x

    good = np.ones((2, 2), np.float32)
    bad = np.zeros((2, 2), dtype)
    for ranks in (1, 2):
        with pytest.raises(TypeError, match="the dtype of argument weights is"):
            World(ranks).run(kernel, [(good, bad)] * ranks)
    with pytest.raises(TypeError, match=r"argument weights\[1\]\['b'\] is"):
        simulate(kernel)(good, weights=[good, {"b": bad}])


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64])
def test_torch_types_too(dtype):
    for ranks in (1, 2):
        with pytest.raises(TypeError, match="the dtype of argument x is"):
            World(ranks).run(copied, [(torch.zeros(2, 2, dtype=dtype),)] * ranks)


def test_arrays_without_elements_are_refused_by_name():
    for shape in ((0,), (4, 0), (0, 4)):
        with pytest.raises(ValueError, match="argument x has shape"):
            simulate(copied)(np.zeros(shape, np.float32))


def test_arguments_of_a_variable_number_are_numbered():
    with pytest.raises(TypeError, match="argument 1 is"):
        simulate(lambda *xs: xs[0])(np.ones((2, 2), np.float32), np.ones((2, 2)))


def test_a_scalar_is_one_element_and_what_is_no_array_stays():
    seen = []

    def kernel(x, y, z):
        seen.extend([x.shape, y, z])
        return copied(x)

    found = simulate(kernel)(np.array(3, np.float32), np.float32(2.5), [1, "a"])
    assert seen == [(1,), 2.5, [1, "a"]]
    np.testing.assert_array_equal(found, [3.0])


# In place


def negate(x):
    """-x into x, and the old x as the result."""
    tile, old = (nl.ndarray(x.shape, x.dtype, nl.sbuf) for _ in range(2))
    nisa.dma_copy(tile, x)
    nisa.tensor_copy(old, tile)
    nisa.tensor_scalar(tile, tile, nl.multiply, -1.0)
    nisa.dma_copy(x, tile)
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(out, old)
    return out


VALUES = np.arange(1, 25, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a,
        lambda a: a[1:3],
        lambda a: a[:, ::2],
        lambda a: a[::-1],
        lambda a: a.T,
        lambda a: np.asfortranarray(a),
        lambda a: a.reshape(2, 2, 6)[:, 1],
        lambda a: a[0],
    ],
)
def test_what_a_kernel_writes_to_an_input_is_there_afterwards(view):
    whole = VALUES.copy()
    x = view(whole)
    if x.ndim == 1:
        x = x.reshape(6, 1)
    before = x.copy()
    untouched = whole.copy()
    np.testing.assert_array_equal(simulate(negate)(x), before)
    np.testing.assert_array_equal(x, -before)
    if np.shares_memory(x, whole):
        # and nothing else
        assert np.count_nonzero(whole != untouched) == x.size


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_inputs_are_written_in_place_too(dtype, strided):
    whole = torch.arange(24.0).reshape(4, 6).to(dtype)
    x = whole[:, 1:4] if strided else whole
    before = x.clone()
    assert torch.equal(simulate(negate)(x), before)
    assert torch.equal(x, -before)


def test_a_read_only_array_may_be_read():
    for x in (VALUES.copy(), VALUES.copy()[:, ::2], np.broadcast_to(np.float32(3), (4, 6))):
        before = x.copy()
        x.flags.writeable = False
        np.testing.assert_array_equal(simulate(copied)(x), before)
        with pytest.raises(NkiValidationError, match="wrote to argument x, whose array is read-on"):
            simulate(negate)(x)
        np.testing.assert_array_equal(x, before)


def test_nan_in_a_read_only_array_is_no_change():
    x = np.full((2, 2), np.nan, np.float32)
    x.flags.writeable = False
    assert np.isnan(simulate(copied)(x)).all()


def test_results_are_arrays_of_their_own():
    x = VALUES.copy()
    found = simulate(lambda x: (x, copied(x)))(x)
    for result in found:
        result[:] = 0
    np.testing.assert_array_equal(x, VALUES)


# TensorSpec


def test_a_spec_is_a_shape_and_a_type():
    spec = TensorSpec([2, np.int64(3)], "bf16")
    assert (spec.shape, spec.dtype) == ((2, 3), nl.bfloat16)
    assert spec == TensorSpec((2, 3), ml_dtypes.bfloat16) and hash(spec) == hash(
        TensorSpec((2, 3), nl.bfloat16)
    )
    for shape in ((), (2, 0), (-1,)):
        with pytest.raises(ValueError, match="shape is"):
            TensorSpec(shape, np.float32)
    with pytest.raises(TypeError):
        TensorSpec((2.5,), np.float32)
    with pytest.raises(TypeError, match="float64"):
        TensorSpec((2,), np.float64)


@pytest.mark.parametrize("lnc", [1, 2])
def test_a_run_without_numerics_gives_specs_and_changes_nothing(lnc):
    def kernel(x, y):
        old = copied(x)
        share(x, y)
        return [old, x, old.reshape((24,)), y]

    y = VALUES[:, ::-1]
    x = VALUES.copy()
    x.flags.writeable = False
    for first in (x, TensorSpec((4, 6), np.float32), torch.from_numpy(VALUES.copy())):
        found = bounded(lambda first=first: simulate(kernel, numerics=False)[lnc](first, y))
        assert found == [TensorSpec(shape, np.float32) for shape in ((4, 6), (4, 6), (24,), (4, 6))]
    np.testing.assert_array_equal(x, VALUES)


def test_values_need_arrays():
    with pytest.raises(NkiValidationError, match="argument x is TensorSpec"):
        simulate(copied)(TensorSpec((2, 2), np.float32))
