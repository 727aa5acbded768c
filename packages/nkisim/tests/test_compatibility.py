"""Spellings of other versions of NKI that kernels still use; see the migration guide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import nkisim
import nkisim.collectives as ncc
import nkisim.isa as nisa
import nkisim.language as nl


def run(kernel: Callable[..., Any], *args: Any) -> Any:
    return nkisim.simulate(kernel, target="gen4")(*args)


def loaded(x: Any) -> Any:
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    return tile


def stored(tile: Any) -> Any:
    out = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(out, tile)
    return out


X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "trace"},
        {"debug_kernel": True, "show_compiler_tb": True},
        {"experimental_flags": "x", "platform_target": "trn2", "version": 3},
        {"additional_compile_opt": "--x"},
    ],
)
def test_former_options_of_jit_are_taken(options: dict[str, Any]) -> None:
    @nkisim.jit(**options)
    def kernel(x: Any) -> Any:
        return stored(loaded(x))

    np.testing.assert_array_equal(kernel(X), X)


def test_an_option_that_never_was_is_refused() -> None:
    with pytest.raises(TypeError, match="'grid'"):
        nkisim.jit(grid=2)


def test_positional_arguments_in_the_order_of_0_3() -> None:
    def kernel(x: Any) -> Any:
        total = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_compute(total, [x, x], nl.add, [1.0, 1.0])
        numbers = nl.ndarray((3, 4), nl.int32)
        nisa.iota(numbers, [[1, 4]], 5, 10)
        tile, reduced = loaded(x), nl.ndarray((3, 1), nl.float32)
        scaled = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_scalar_reduce(scaled, tile, nl.multiply, 2.0, nl.add, reduced)
        return total, stored(numbers), stored(reduced)

    total, numbers, reduced = run(kernel, X)
    np.testing.assert_array_equal(total, 2 * X)
    assert numbers.tolist() == [[5, 6, 7, 8], [15, 16, 17, 18], [25, 26, 27, 28]]
    np.testing.assert_array_equal(reduced[:, 0], 2 * X.sum(1))


def test_a_register_moves_imm() -> None:
    def kernel() -> Any:
        register = nisa.register_alloc()
        nisa.register_move(register, imm=7)
        tile = nl.ndarray((1, 1), nl.int32)
        nisa.register_store(tile, register)
        return stored(tile)

    assert run(kernel).tolist() == [[7]]


@pytest.mark.parametrize(("lnc", "expected"), [(1, [0, 1, 1, 1]), (2, [0, 2, 2, 1])])
def test_the_grid(lnc: int, expected: list[int]) -> None:
    def kernel() -> Any:
        facts = [nl.program_id(0), nl.num_programs(), nl.num_programs(axes=None), nl.program_ndim()]
        out = nl.ndarray((4, 1), nl.int32, buffer=nl.shared_hbm)
        if nl.program_id() == 0:
            for row, fact in enumerate(facts):
                tile = nl.ndarray((1, 1), nl.int32)
                nisa.memset(tile, fact)
                nisa.dma_copy(out[row : row + 1], tile)
        return out

    assert nkisim.simulate(kernel)[lnc]()[:, 0].tolist() == expected


@pytest.mark.parametrize(
    "dtype",
    [nl.bfloat16, "bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), torch.bfloat16],
)
def test_spellings_of_a_dtype(dtype: Any) -> None:
    def kernel(x: Any) -> Any:
        tile = nl.ndarray(x.shape, dtype)
        nisa.tensor_copy(tile, loaded(x))
        assert tile.dtype == nl.bfloat16 == dtype
        return stored(tile)

    assert run(kernel, X).dtype == ml_dtypes.bfloat16


def test_other_names_of_engines() -> None:
    assert nisa.vector_engine is nisa.engine.vector
    assert nisa.scalar_engine is nisa.engine.scalar
    assert nisa.gpsimd_engine is nisa.engine.gpsimd
    assert nisa.tensor_engine is nisa.engine.tensor
    assert nisa.unknown_engine is nisa.engine.unknown


def test_generations_compare_with_each_other_and_with_numbers() -> None:
    def kernel() -> None:
        version = nisa.get_nc_version()
        assert version == nisa.nc_version.gen3 and version < nisa.nc_version.gen4
        assert version >= 3 and not version > 3

    nkisim.simulate(kernel, target="trn2")()


def test_range_is_a_loop_and_types_are_for_annotations() -> None:
    assert list(nl.range(2, 8, 3)) == [2, 5]
    for name in ("bool", "dtype", "tensor", "NkiTensor", "MemoryRegion", "NKIObject"):
        assert hasattr(nl, name)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (nl.max, X.max(1)), (np.maximum, X.max(1)), ("maximum", X.max(1)), (max, X.max(1)),
        (nl.min, X.min(1)), (nl.sum, X.sum(1)), (np.add, X.sum(1)),
    ],
    ids=str,
)  # fmt: skip
def test_spellings_of_an_operator(op: Any, expected: Any) -> None:
    def kernel(x: Any) -> Any:
        reduced = nl.ndarray((3, 1), nl.float32)
        nisa.tensor_reduce(reduced, op, loaded(x), axis=1)
        return stored(reduced)

    np.testing.assert_array_equal(run(kernel, X)[:, 0], expected)


def test_members_of_enumerations_as_strings() -> None:
    def kernel(x: Any) -> Any:
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(tile, x, dge_mode="hwdge", engine="sync")
        copied = nl.ndarray(x.shape, x.dtype)
        nisa.tensor_copy(copied, tile, engine="gpsimd")
        psum = nl.ndarray((4, 4), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(psum, copied, tile, perf_mode="none")
        out = nl.ndarray((4, 4), nl.float32)
        nisa.tensor_copy(out, psum)
        return stored(out)

    np.testing.assert_allclose(run(kernel, X), X.T @ X)


def test_a_number_is_no_member_of_an_enumeration() -> None:
    def kernel(x: Any) -> None:
        nisa.tensor_copy(loaded(x), loaded(x), engine=5)

    with pytest.raises(TypeError, match=r"engine is 5; it must be one of engine\.unknown"):
        run(kernel, X)


def test_an_unknown_keyword_is_an_error() -> None:
    def kernel(x: Any) -> None:
        nisa.tensor_copy(loaded(x), loaded(x), mask=None)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="unexpected keyword argument 'mask'"):
        run(kernel, X)


def test_replica_groups_may_be_plain_tuples() -> None:
    def kernel(x: Any) -> Any:
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm, name="src")
        dst = nl.ndarray(x.shape, x.dtype, buffer=nl.private_hbm, name="dst")
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(src, x)
        ncc.all_reduce(dsts=[dst], srcs=[src], replica_group=((0, 1),), op=nl.add)
        nisa.dma_copy(out, dst)
        return out

    for result in nkisim.World(ranks=2).run(kernel, [(X,), (2 * X,)]):
        np.testing.assert_array_equal(result, 3 * X)
