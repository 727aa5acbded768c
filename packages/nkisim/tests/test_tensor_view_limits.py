"""Views that no tensor has: others than NumPy's, or moving the partition dimension."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from counting_tensors import HBM, PSUM, REGIONS, SBUF, counting
from isa_tiles import on_core, rejected

from nkisim.enums import MemoryRegion
from nkisim.tensor import NkiTensor


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.select(0, 1),
        lambda t: t.permute((1, 0, 2)),
        lambda t: t[0:1].broadcast(0, 4),
        lambda t: t.expand_dim(0),
        lambda t: t[0:1].squeeze_dim(0),
        lambda t: t.reshape_dim(0, (2, 2)),
        lambda t: t.flatten_dims(0, 1),
        lambda t: t.reshape((2, 2, 6, 3)),
        lambda t: t.reshape((8, 9)),
        lambda t: t.rearrange(("a", "b", "c"), ("b", "a", "c")),
        lambda t: t.rearrange((("a", "d"), "b", "c"), ("a", "d", "b", "c"), {"a": 2}),
        lambda t: t.vector_select(0, t),
    ],
)
@pytest.mark.parametrize("region", [SBUF, PSUM])
def test_the_partition_dimension_stays_the_first(
    view: Callable[[NkiTensor], NkiTensor], region: MemoryRegion
) -> None:
    rejected(lambda: view(counting((4, 6, 3), region)))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.permute((0, 0, 2)),
        lambda t: t.permute((0, 1)),
        lambda t: t.broadcast(1, 2),
        lambda t: t[:, 0:1].broadcast(1, 0),
        lambda t: t.squeeze_dim(1),
        lambda t: t.reshape_dim(1, (4, 2)),
        lambda t: t.reshape_dim(1, (-1, -1)),
        lambda t: t.reshape_dim(1, (0, 6)),
        lambda t: t.flatten_dims(2, 1),
        lambda t: t.reshape((4, 17)),
        lambda t: t.reshape((4, -1, 5)),
        lambda t: t.permute((0, 2, 1)).reshape((4, 18)),
        lambda t: t[:, :, 0:2].flatten_dims(1, 2),
    ],
)
@pytest.mark.parametrize("region", REGIONS)
def test_views_that_do_not_exist(
    view: Callable[[NkiTensor], NkiTensor], region: MemoryRegion
) -> None:
    with pytest.raises(ValueError, match=r".+"):
        on_core(lambda: view(counting((4, 6, 3), region)))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.select(3, 0),
        lambda t: t.permute((0, 1, 3)),
        lambda t: t.expand_dim(4),
        lambda t: t.expand_dim(-5),
        lambda t: t.flatten_dims(1, 3),
    ],
)
def test_dimensions_that_do_not_exist(view: Callable[[NkiTensor], NkiTensor]) -> None:
    with pytest.raises(IndexError, match="dim"):
        on_core(lambda: view(counting((4, 6, 3), HBM)))


def test_a_reshape_of_one_partition_column_keeps_two_dimensions() -> None:
    assert on_core(lambda: counting((4, 1), SBUF).reshape((4,)).shape) == (4, 1)
