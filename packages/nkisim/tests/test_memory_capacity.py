"""What fits into SBUF and PSUM, and the addresses at which a tensor may begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from isa_tiles import empty, on_core, rejected, warned

import nkisim
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiCapacityError
from nkisim.settings import Rules

SBUF = MemoryRegion.sbuf
PSUM = MemoryRegion.psum

# usable bytes of a partition of SBUF
SBUF_BYTES = {"gen2": 180224, "gen3": 212984, "gen4": 245752}
GENERATIONS = tuple(SBUF_BYTES)


def full(body: Callable[[], Any], *words: str, target: str = "gen4") -> None:
    """`body` does not fit, and the text has all of `words`."""
    with pytest.raises(NkiCapacityError) as raised:
        on_core(body, target)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("target", GENERATIONS)
@pytest.mark.parametrize("region", [SBUF, PSUM])
@pytest.mark.parametrize("address", [None, (0, 0)])
def test_one_tensor_may_take_a_whole_partition(
    target: str, region: MemoryRegion, address: tuple[int, int] | None
) -> None:
    limit = SBUF_BYTES[target] if region is SBUF else 16384

    def body(size: int) -> None:
        nisa.memset(nl.ndarray((2, size), nl.uint8, region, "huge", address)[:, 0:1], 0)

    on_core(lambda: body(limit), target)
    full(lambda: body(limit + 1), "huge", str(limit + 1), str(limit), target=target)


@pytest.mark.parametrize("region", [SBUF, PSUM])
def test_a_tensor_beyond_the_end(region: MemoryRegion) -> None:
    limit = SBUF_BYTES["gen4"] if region is SBUF else 16384
    start = limit - 2048

    def body(size: int) -> None:
        nl.ndarray((1, size), nl.uint8, region, "last", (0, start // 2048 * 2048))

    on_core(lambda: body(2048))
    full(lambda: body(4097), "last", str(limit))


@pytest.mark.parametrize(("first", "count"), [(0, 129), (96, 33), (128, 1), (64, 65)])
def test_a_tensor_on_too_many_partitions(first: int, count: int) -> None:
    rejected(lambda: empty((count, 1), address=(first, 0)), "128")


def test_more_than_128_partitions() -> None:
    rejected(lambda: empty((129, 1)), "129 partitions", "128")


@pytest.mark.parametrize("address", [(-1, 0), (0, -1)])
def test_addresses_are_not_negative(address: tuple[int, int]) -> None:
    rejected(lambda: empty((1, 1), address=address), "address")


@pytest.mark.parametrize("address", [3, (1,), (1, 2, 3), ("a", 0)])
def test_what_is_no_address(address: Any) -> None:
    with pytest.raises(nkisim.NkiError, match="address"):
        on_core(lambda: empty((1, 1), address=address))


def test_tensors_that_live_at_once_must_fit_together() -> None:
    size = SBUF_BYTES["gen4"] // 4 // 3 + 1000

    def kernel(count: int, apart: bool) -> Callable[[Any], Any]:
        def body(x: Any) -> Any:
            tiles = []
            for position in range(count):
                tiles.append(nl.ndarray((1, size), nl.float32, nl.sbuf, f"tile{position}"))
                nisa.memset(tiles[-1], 0)
                if apart:
                    nisa.dma_copy(x[0:1, 0:1], tiles[-1][:, 0:1])
            for tensor in () if apart else tiles:
                nisa.dma_copy(x[0:1, 0:1], tensor[:, 0:1])
            return x

        return body

    x = np.zeros((1, 1), np.float32)
    nkisim.simulate(kernel(2, False), target="gen4")(x)
    # one after the other, any number of them fits
    nkisim.simulate(kernel(9, True), target="gen4")(x)
    with pytest.raises(NkiCapacityError) as raised:
        nkisim.simulate(kernel(3, False), target="gen4")(x)
    for word in ("tile0", "tile1", "tile2", str(size * 4), str(SBUF_BYTES["gen4"])):
        assert word in str(raised.value)


def test_addressed_tensors_at_one_address_count_once() -> None:
    size = SBUF_BYTES["gen4"] // 4 // 2

    def kernel(x: Any) -> Any:
        for _ in range(5):
            tensor = nl.ndarray((1, size), nl.float32, nl.sbuf, address=(0, 0))
            nisa.memset(tensor, 0)
            nisa.dma_copy(x, tensor[:, 0:1])
        return x

    nkisim.simulate(kernel, target="gen4")(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("byte", [512, 2047, 4 * 2048 + 4])
def test_psum_tensors_begin_with_a_bank(byte: int) -> None:
    def body() -> None:
        empty((1, 1), region=PSUM, address=(0, byte))

    warned(body, "bank_start")
    rejected(body, "2048", rules=Rules(bank_start="error"))


@pytest.mark.parametrize("bank", range(8))
def test_every_bank_is_a_beginning(bank: int) -> None:
    def body() -> None:
        empty((1, 1), region=PSUM, address=(0, bank * 2048))

    on_core(body, rules=Rules.all("error"))
