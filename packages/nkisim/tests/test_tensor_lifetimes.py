"""When the memory of a tensor goes, and what a new tensor in its place begins with."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from isa_tiles import Array, empty, on_core, tile

import nkisim.isa as nisa
from nkisim.enums import MemoryRegion
from nkisim.settings import Rules

SBUF = MemoryRegion.sbuf
PSUM = MemoryRegion.psum
HBM = MemoryRegion.private_hbm


@pytest.mark.parametrize("region", [SBUF, PSUM, HBM])
@pytest.mark.parametrize("address", [None, (0, 2048)])
def test_the_memory_of_a_tensor_goes_with_its_last_view(
    region: MemoryRegion, address: tuple[int, int] | None
) -> None:
    def body() -> None:
        tensor = empty((4, 8), region=region, address=None if region is HBM else address)
        storage = weakref.ref(tensor.storage)
        copy = nisa.dma_copy if region is HBM else nisa.tensor_copy
        copy(tensor, tile(np.zeros((4, 8), np.float32)))
        view = tensor[:, 0:4]
        del tensor
        copy(empty((4, 4)), view)
        assert storage() is not None
        del view
        assert storage() is None

    gc.disable()
    try:
        on_core(body)
    finally:
        gc.enable()


def test_a_tensor_that_matmuls_added_up_goes_too() -> None:
    def body() -> None:
        ones = tile(np.ones((4, 4), np.float32))
        psum = empty((4, 4), region=PSUM)
        storage = weakref.ref(psum.storage)
        nisa.nc_matmul(psum, ones, ones)
        nisa.tensor_copy(empty((4, 4)), psum)
        del psum
        assert storage() is None

    gc.disable()
    try:
        on_core(body)
    finally:
        gc.enable()


def test_a_new_psum_tensor_starts_to_accumulate_anew() -> None:
    def body() -> list[Array]:
        ones, found = tile(np.ones((4, 4), np.float32)), []
        for _ in range(2):
            psum = empty((4, 4), region=PSUM, address=(0, 2048))
            for _ in range(3):
                nisa.nc_matmul(psum, ones, ones)
            out = empty((4, 4))
            nisa.tensor_copy(out, psum)
            found.append(out.array().copy())
        return found

    first, second = on_core(body, rules=Rules.all("error"))
    assert (first == 12).all() and (second == 12).all()
