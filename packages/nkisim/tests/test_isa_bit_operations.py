"""Bit operations of `tensor_tensor` and `tensor_scalar`, against Python's on integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from elementwise_tools import three_layouts
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import INTEGERS, Array, assert_same, contents, empty, laid, on_core, tile

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.dtypes import DType
from nkisim.isa.vector import tensor_scalar, tensor_tensor

pytestmark = pytest.mark.filterwarnings("error")

BITS: dict[str, Callable[[int, int, int], int]] = {
    "bitwise_and": lambda a, b, width: a & b,
    "bitwise_or": lambda a, b, width: a | b,
    "bitwise_xor": lambda a, b, width: a ^ b,
    "left_shift": lambda a, b, width: a << b if b < width else 0,
    "right_shift": lambda a, b, width: a >> b if b < width else 0,
}


def bits_of(array: Array, dtype: DType) -> Array:
    """As unsigned integers, in Python's."""
    return array.astype(dtype.numpy).view(f"u{dtype.itemsize}").astype(object)


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(sorted(BITS)),
    dtype=st.sampled_from(INTEGERS),
    tensor=st.booleans(),
    layouts=three_layouts,
    seed=st.integers(0, 99),
)
def test_bit_operations(
    name: str, dtype: DType, tensor: bool, layouts: tuple[str, str, str], seed: int
) -> None:
    limits = np.iinfo(dtype.numpy)
    width = 8 * dtype.itemsize
    rng = np.random.default_rng(seed)
    a = rng.integers(limits.min, limits.max, (4, 12), endpoint=True)
    if "shift" in name:
        b = rng.integers(0, width + 1, (4, 12))
    else:
        b = rng.integers(limits.min, limits.max, (4, 12), endpoint=True)
    where = "plain" if layouts[1] == layouts[2] == "psum" else layouts[1]
    if not tensor:
        b[:] = b[0, 0]

    def body() -> Array:
        dst = laid(np.zeros((4, 12), np.int64), dtype, layouts[0])
        first = laid(a, dtype, where)
        if tensor:
            tensor_tensor(dst, first, laid(b, dtype, layouts[2]), getattr(nl, name))
        else:
            tensor_scalar(dst, first, getattr(nl, name), int(b[0, 0]))
        return contents(dst)

    pairs = np.frompyfunc(lambda x, y: BITS[name](x, y, width) % 2**width, 2, 1)
    wanted = pairs(bits_of(a, dtype), bits_of(b, dtype)).astype(f"u{dtype.itemsize}")
    assert_same(on_core(body), wanted.view(dtype.numpy))


def test_bits_are_not_converted_on_their_way_out() -> None:
    def body() -> tuple[Array, Array]:
        a = tile(np.array([[-1, -(2**31), 5]], np.int32))
        same_width, low_byte = empty((1, 3), dtypes.uint32), empty((1, 3), dtypes.uint8)
        tensor_scalar(same_width, a, nl.bitwise_or, 0)
        tensor_tensor(low_byte, a, a, nl.bitwise_and)
        return contents(same_width), contents(low_byte)

    same_width, low_byte = on_core(body)
    assert same_width.tolist() == [[2**32 - 1, 2**31, 5]]
    assert low_byte.tolist() == [[255, 0, 5]]


def test_fields_of_a_word() -> None:
    words = np.array([[0x12345678, -1, 0x0000FF00]], np.int32)

    def body() -> Array:
        dst = empty((1, 3), dtypes.uint8)
        tensor_scalar(dst, tile(words), nl.right_shift, 8, op1=nl.bitwise_and, operand1=0xFF)
        return contents(dst)

    assert on_core(body).tolist() == [[0x56, 0xFF, 0xFF]]


def test_shift_amounts_from_a_tensor() -> None:
    def body() -> Array:
        dst = empty((2, 2), dtypes.uint16)
        x = tile(np.array([[1, 2], [1, 2]], np.uint16))
        tensor_scalar(dst, x, nl.left_shift, tile(np.array([[1], [15]], np.int32)))
        return contents(dst)

    assert on_core(body).tolist() == [[2, 4], [1 << 15, 0]]
