"""What a tensor says of itself, and how it compares."""

from __future__ import annotations

import pytest
from counting_tensors import SBUF, counting
from isa_tiles import on_core

import nkisim.language as nl


def test_a_tensor_is_true_equal_to_itself_and_not_none() -> None:
    def body() -> None:
        tile, other = counting((4, 6), SBUF), counting((4, 6), SBUF)
        assert (tile != None) is True and (tile == None) is False  # noqa: E711
        assert (tile == tile) is True and (tile == other) is False
        assert tile and (tile or None) is tile and tile in [other, tile]

    on_core(body)


def test_a_tensor_is_not_iterated_over() -> None:
    with pytest.raises(TypeError, match="iterated"):
        on_core(lambda: list(counting((4, 6), SBUF)))


def test_what_a_tensor_says_of_itself() -> None:
    def body() -> None:
        tile = nl.ndarray((4, 6), nl.bfloat16, nl.psum, name="acc")
        assert (tile.name, tile.dtype, tile.buffer) == ("acc", nl.bfloat16, nl.psum)
        assert (tile.strides, tile.offset, tile.size, tile.ndim) == ((6, 1), 0, 24, 2)
        assert tile.get_pattern() == [[6, 4], [1, 6]]
        assert not tile.is_indirect() and tile.is_contiguous() and tile[:, 0:1].is_contiguous()
        assert repr(tile[0:2]) == "NkiTensor('acc', [2, 6], bfloat16, psum)"
        assert nl.ndarray((4,), nl.int8, nl.hbm).strides == (1,)

    on_core(body)
