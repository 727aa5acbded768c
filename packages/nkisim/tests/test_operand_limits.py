"""On which partitions an operand may start, and how much of a tensor one instruction takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from isa_tiles import Array, core, empty, on_core, rejected, tile

import nkisim
import nkisim.isa as nisa
from nkisim import dtypes
from nkisim.isa import checks
from nkisim.settings import Rules
from nkisim.tensor import NkiTensor


def test_where_operands_may_start() -> None:
    """Up to 32 partitions in any quadrant, up to 64 in either half, more at the first one."""
    rules = Rules()
    legal = set()

    def body() -> None:
        table = tile(np.zeros((128, 2), np.float32))
        for first in range(128):
            for count in range(1, 129 - first):
                operand = table[first : first + count]
                try:
                    checks.operand(core(), "op", "dst", operand)
                except nkisim.NkiValidationError as error:
                    assert f"starts at partition {first} with {count}" in str(error)
                else:
                    legal.add((first, count))

    on_core(body, rules=rules)
    wanted = {(first, count) for first in (0, 32, 64, 96) for count in range(1, 33)}
    wanted |= {(first, count) for first in (0, 64) for count in range(33, 65)}
    wanted |= {(0, count) for count in range(65, 129)}
    assert legal == wanted


def test_where_an_addressed_operand_starts_counts_from_its_memory() -> None:
    def body(count: int, first: int, rows: slice) -> None:
        nisa.memset(empty((count, 2), address=(first, 0))[rows], 0.0)

    on_core(lambda: body(32, 96, slice(0, 32)))
    on_core(lambda: body(64, 32, slice(32, 48)))
    rejected(lambda: body(32, 80, slice(0, 32)), "partition 80")
    rejected(lambda: body(64, 32, slice(0, 64)), "partition 32")


def test_partitions_follow_one_another() -> None:
    words = ("partition_start", "follow one another")
    rejected(lambda: nisa.memset(empty((8, 2))[::2], 0.0), *words)
    rejected(lambda: nisa.dma_copy(empty((4, 2)), tile(np.zeros((8, 2), np.float32))[::2]), *words)
    rejected(lambda: nisa.dma_copy(empty((8, 2))[::2], tile(np.zeros((4, 2), np.float32))), *words)


def test_dma_starts_at_any_partition() -> None:
    def body() -> Array:
        target = tile(np.zeros((8, 2), np.float32))
        nisa.dma_copy(target[5:7], tile(np.ones((2, 2), np.float32)))
        return target.array().copy()

    found = on_core(body)
    assert found[5:7].all() and not found[:5].any() and not found[7:].any()


@pytest.mark.parametrize("shape", [(4, 3, 3, 4, 5), (4, 3, 3, 3, 4, 5)])
def test_an_access_pattern_has_four_free_dimensions(shape: tuple[int, ...]) -> None:
    def body(view: Callable[[NkiTensor], NkiTensor]) -> None:
        nisa.memset(view(empty(shape)), 0.0)

    # what is contiguous is one dimension
    on_core(lambda: body(lambda t: t))
    every_other = tuple(slice(None, None, 2) for _ in shape[1:])
    if len(shape) == 5:
        on_core(lambda: body(lambda t: t[(slice(None), *every_other)]))
    else:
        rejected(lambda: body(lambda t: t[(slice(None), *every_other)]), "4 free dimensions")


def test_an_instruction_takes_64_k_elements() -> None:
    on_core(lambda: nisa.memset(empty((1, 65536), dtypes.uint8), 0))
    rejected(lambda: nisa.memset(empty((1, 65537), dtypes.uint8), 0), "65536 elements")
