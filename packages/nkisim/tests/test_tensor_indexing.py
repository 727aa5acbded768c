"""Integers, slices and ellipses as the index of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counting_tensors import HBM, REGIONS, SBUF, counting
from isa_tiles import on_core

import nkisim.language as nl
from nkisim.enums import MemoryRegion
from nkisim.register import VirtualRegister


def test_an_integer_for_the_partitions_leaves_a_dimension() -> None:
    def body() -> list[Any]:
        chip, hbm = counting((4, 6), SBUF), counting((4, 6), HBM)
        return [chip[2].shape, chip[2, 3].shape, chip[:, 3].shape, hbm[2].shape, hbm[2, 3].shape]

    assert on_core(body) == [(1, 6), (1, 1), (4, 1), (6,), (1,)]


def test_a_free_integer_goes_as_long_as_two_dimensions_are_left() -> None:
    def body() -> list[Any]:
        tile = counting((4, 2, 3), SBUF)
        return [
            tile[:, 1].shape,
            tile[:, 1, 2].shape,
            tile[3, 1].shape,
            tile[:, :, 2].get_pattern(),
        ]

    assert on_core(body) == [(4, 3), (4, 1), (1, 3), [[6, 4], [3, 2]]]


def test_slices_kept_in_lists_and_nl_ds() -> None:
    def body() -> None:
        tile = counting((8, 4, 6), SBUF)
        keys = [slice(0, 4), nl.ds(1, 2), slice(None, None, 2)]
        wanted = np.arange(192).reshape(8, 4, 6)[0:4, 1:3, ::2]
        np.testing.assert_array_equal(tile[tuple(keys)].array(), wanted)
        np.testing.assert_array_equal(tile[tuple(keys[:1])].array(), tile[0:4].array())

    on_core(body)


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize(
    "key",
    [
        4, -5, (0, 6), (0, -7), slice(0, 5), slice(2, 2), slice(3, 1), slice(-5, 2), slice(4, None),
        slice(None, None, -1), slice(3, 0, -1), slice(0, 4, 0), (0, 0, 0), (..., ...),
        (slice(None), slice(5, 7)),
    ],
)  # fmt: skip
def test_what_is_out_of_range_empty_or_backwards_is_refused(region: MemoryRegion, key: Any) -> None:
    with pytest.raises(IndexError):
        on_core(lambda: counting((4, 6), region)[key])


@pytest.mark.parametrize("key", [None, 1.0, "a", True, [0, 1], (0, slice(0.5, 2))])
def test_other_things_are_no_index(key: Any) -> None:
    with pytest.raises(TypeError):
        on_core(lambda: counting((4, 6), HBM)[key])


def test_a_register_in_a_slice_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match=r"nl\.ds"):
        on_core(lambda: counting((4, 6), HBM)[VirtualRegister(1) : 3])


@pytest.mark.parametrize(
    "arguments", [(0, 0, 5), (0, 3, 3), (1, -1, 2), (1, 0, 6, 0), (2, 0, 1), (-3, 0, 1)]
)
def test_slice_wants_its_bounds_in_order(arguments: Any) -> None:
    with pytest.raises(IndexError):
        on_core(lambda: counting((4, 6), SBUF).slice(*arguments))


def test_assignment_copies() -> None:
    def body() -> None:
        tile, other = counting((4, 6), SBUF), counting((4, 6), SBUF)
        other.storage.coverage.full = True
        tile[0:4, 0:2] = other[:, 4:6]
        wanted = np.arange(24).reshape(4, 6)
        wanted[:, 0:2] = wanted[:, 4:6]
        np.testing.assert_array_equal(tile.array(), wanted)

    on_core(body)
