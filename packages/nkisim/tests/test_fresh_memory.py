"""Tiles that are not filled before the instruction that fills them: nothing of it is to be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from isa_tiles import Array, empty, on_core, tile, warned
from matmul_tiles import BF16, F32, PSUM, ones, psum

from nkisim import storage
from nkisim.isa.activations import activation
from nkisim.isa.dma import dma_copy
from nkisim.isa.matmul import nc_matmul, nc_transpose
from nkisim.isa.reductions import tensor_reduce
from nkisim.isa.vector import (
    memset,
    reciprocal,
    tensor_copy,
    tensor_copy_predicated,
    tensor_scalar,
    tensor_tensor,
)
from nkisim.operations import add, copy, multiply
from nkisim.settings import Rules

OFF = Rules(uninitialized="off", accumulate="off")


@pytest.fixture(autouse=True)
def used_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory holds what someone has left there, which is no poison."""

    def left(size: Any, dtype: Any = float) -> Array:
        found = np.zeros(size, dtype)
        if found.dtype == np.uint8:
            found[...] = 0x3F
        return found

    class Numpy:
        empty = staticmethod(left)

        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

    monkeypatch.setattr(storage, "np", Numpy())


def is_poison(values: Array) -> bool:
    return bool(np.isnan(values).all())


def test_what_nothing_wrote_is_poison() -> None:
    assert is_poison(on_core(lambda: empty((4, 6)).array().copy()))
    assert is_poison(on_core(lambda: empty((4, 6), F32, PSUM).array().copy()))


@pytest.mark.parametrize("first", [0, 2])
def test_what_is_beside_the_first_write(first: int) -> None:
    def body() -> Array:
        dst = empty((4, 6))
        memset(dst[:, first : first + 2], 1.0)
        return dst.array().copy()

    found = on_core(body)
    assert (found[:, first : first + 2] == 1).all()
    assert is_poison(np.delete(found, [first, first + 1], axis=1))


def test_reading_before_the_first_write() -> None:
    def read() -> Array:
        dst, copied = empty((4, 6)), empty((4, 6))
        tensor_copy(copied, dst)
        memset(dst, 1.0)
        return copied.array().copy()

    def update() -> Array:
        dst = empty((4, 6))
        tensor_tensor(dst, dst, dst, add)
        return dst.array().copy()

    for body in (read, update):
        assert is_poison(on_core(body, rules=OFF))
        assert is_poison(warned(body, "nothing has written", uninitialized="warn"))


def test_adding_to_what_nothing_wrote() -> None:
    def body() -> Array:
        dst = psum((4, 6))
        nc_matmul(dst, ones((3, 4)), ones((3, 6)), accumulate=True)
        return dst.array().copy()

    assert is_poison(on_core(body, rules=OFF))


def test_two_halves_by_matmuls() -> None:
    def body() -> Array:
        dst = psum((4, 6))
        nc_matmul(dst[:, :3], ones((3, 4)), ones((3, 3)))
        nc_matmul(dst[:, 3:], ones((2, 4)), ones((2, 3)))
        return dst.array().copy()

    assert (on_core(body) == np.repeat([3, 2], 3)).all()


def test_rows_that_a_predicate_leaves() -> None:
    def body() -> Array:
        dst = empty((4, 6))
        chosen = np.zeros((4, 6), np.uint8)
        chosen[:, ::2] = 1
        tensor_copy_predicated(dst, tile(np.ones((4, 6)), F32), tile(chosen))
        return dst.array().copy()

    found = on_core(body, rules=OFF)
    assert (found[:, ::2] == 1).all()
    assert is_poison(found[:, 1::2])


FILLING: list[tuple[str, Callable[[Any, Any], Any], bool]] = [
    ("memset", lambda dst, src: memset(dst, 2.0), False),
    ("tensor_copy", tensor_copy, False),
    ("dma_copy", dma_copy, False),
    ("tensor_tensor", lambda dst, src: tensor_tensor(dst, src, src, add), False),
    ("tensor_scalar", lambda dst, src: tensor_scalar(dst, src, multiply, 2.0), False),
    ("activation", lambda dst, src: activation(dst, copy, src), False),
    ("reciprocal", reciprocal, False),
    ("nc_transpose", nc_transpose, True),
    ("nc_matmul", lambda dst, src: nc_matmul(dst, src, src), True),
    ("tensor_reduce", lambda dst, src: tensor_reduce(dst, add, src, 2), False),
]


@pytest.mark.parametrize(("name", "fill", "in_psum"), FILLING)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_instructions_that_fill_a_tile_leave_nothing_of_what_was_there(
    name: str, fill: Callable[[Any, Any], Any], in_psum: bool, dtype: Any
) -> None:
    """Those for which the tile is not poisoned before."""

    def body() -> tuple[Array, bool]:
        dst = (
            psum((6, 6), F32 if name == "nc_matmul" else dtype) if in_psum else empty((6, 6), dtype)
        )
        was_fresh = dst.storage.fresh
        fill(dst, tile(np.ones((6, 6, 1) if name == "tensor_reduce" else (6, 6)), dtype))
        return dst.array().astype(np.float32), was_fresh

    found, was_fresh = on_core(body)
    assert was_fresh
    assert np.isin(found, [1.0, 2.0, 6.0]).all()
