"""Both cores of a rank do the same on shared HBM, or nearly the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nkisim
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.errors import NkiValidationError

X = np.arange(64, dtype=np.float32).reshape(8, 8)


def twice_through_hbm(x: Any, differ_in: int = -1) -> Any:
    """`2 x` by way of a scratch tensor; in one row of it the cores may differ."""
    scratch = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="scratch")
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="out")
    tile = nl.load(x)
    if differ_in >= 0:
        nisa.dma_copy(
            tile[differ_in : differ_in + 1, :], nl.full((1, 8), nl.program_id(0), x.dtype)
        )
    nisa.dma_copy(scratch, tile)
    again = nl.load(scratch)
    doubled = nl.ndarray(x.shape, x.dtype)
    nisa.tensor_tensor(doubled, again, again, nl.add)
    nisa.dma_copy(out, doubled)
    return out


def test_a_kernel_that_does_not_divide_its_work_runs_on_two_cores() -> None:
    for _ in range(3):
        np.testing.assert_array_equal(nkisim.simulate(twice_through_hbm)[2](X), 2 * X)


@pytest.mark.parametrize("row", [0, 5])
def test_one_row_of_other_values_is_a_race(row: int) -> None:
    for _ in range(3):
        with pytest.raises(NkiValidationError, match=r"'scratch'.*core_race"):
            nkisim.simulate(twice_through_hbm)[2](X, row)


def test_without_values_equal_writes_of_one_line_are_taken_for_the_same() -> None:
    (spec,) = [nkisim.simulate(twice_through_hbm, numerics=False)[2](X)]
    assert spec.shape == X.shape


def add_to_it(x: Any) -> Any:
    """Each core adds 1, which makes 2."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="out")
    nisa.dma_copy(out, nl.load(x))
    ones = nl.ones(x.shape, x.dtype)
    nisa.dma_compute(out, [out, ones], nl.add)
    return out


def test_adding_in_place_on_both_cores_is_a_race() -> None:
    with pytest.raises(NkiValidationError, match=r"'out'.*core_race"):
        nkisim.simulate(add_to_it)[2](X)
    np.testing.assert_array_equal(nkisim.simulate(add_to_it)(X), X + 1)


def scatter(x: Any, rows: Any, shift: int) -> Any:
    """Each core puts its half of `x` where `rows` says; the second moved by `shift` rows."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="out")
    core = nl.program_id(0)
    half = x.shape[0] // 2
    index = nl.load(rows[core * half : (core + 1) * half, :])
    if core and shift:
        nisa.tensor_scalar(index, index, nl.subtract, shift)
    tile = nl.load(x[core * half : (core + 1) * half, :])
    width = x.shape[1]
    nisa.dma_copy(out.ap([[width, half], [1, width]], vector_offset=index), tile)
    return out


@pytest.mark.parametrize("seed", [0, 1])
def test_scattered_rows_are_compared_by_where_they_go(seed: int) -> None:
    order: npt.NDArray[np.int64] = np.random.default_rng(seed).permutation(8)
    rows = order.astype(np.int32)[:, None]
    expected = np.empty_like(X)
    expected[order] = X
    np.testing.assert_array_equal(nkisim.simulate(scatter)[2](X, rows, 0), expected)
    ordered = np.arange(8, dtype=np.int32)[:, None]
    with pytest.raises(NkiValidationError, match=r"'out'.*core_race"):
        nkisim.simulate(scatter)[2](X, ordered, 1)


def rows_by_register(x: Any) -> Any:
    """Each core writes the rows whose numbers a register of its own holds."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="out")
    half, width = x.shape[0] // 2, x.shape[1]
    register = nisa.register_alloc()
    for row in range(half):
        nisa.register_move(register, nl.program_id(0) * half + row)
        source = x.ap([[width, 1], [1, width]], scalar_offset=register)
        nisa.dma_copy(out.ap([[width, 1], [1, width]], scalar_offset=register), source)
    return out


@pytest.mark.parametrize("numerics", [True, False])
def test_rows_that_registers_choose_are_told_apart(numerics: bool) -> None:
    found = nkisim.simulate(rows_by_register, numerics=numerics)[2](X)
    if numerics:
        np.testing.assert_array_equal(found, X)
