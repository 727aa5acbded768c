"""The bytes of a tensor as another type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from counting_tensors import REGIONS
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import empty, on_core, rejected

from nkisim import dtypes
from nkisim.errors import NkiValidationError
from nkisim.tensor import NkiTensor


@st.composite
def _reinterpreted(draw: st.DrawFn) -> tuple[Any, ...]:
    region = draw(st.sampled_from(REGIONS))
    old = draw(st.sampled_from([dtypes.uint8, dtypes.float8_e4m3, dtypes.bfloat16, dtypes.float32]))
    new = draw(
        st.sampled_from(
            [dtypes.uint8, dtypes.int16, dtypes.float32, dtypes.float8_e4m3fn_x4,
             dtypes.float4_e2m1fn_x4]
        )
    )  # fmt: skip
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    return region, old, new, (*shape, draw(st.sampled_from([1, 2, 3, 4, 8, 12])))


@settings(deadline=None, max_examples=100)
@given(_reinterpreted())
def test_view_is_the_view_of_numpy(case: tuple[Any, ...]) -> None:
    region, old, new, shape = case
    values = np.random.default_rng(0).integers(0, 256, math.prod(shape) * old.itemsize)
    array = values.astype(np.uint8).view(old.numpy).reshape(shape)

    def body() -> None:
        tensor = empty(shape, old, region)
        tensor.array()[...] = array
        row = shape[-1] * old.itemsize
        if row % new.itemsize:
            with pytest.raises(NkiValidationError, match="do not divide"):
                tensor.view(new)
            return
        view = tensor.view(new)
        assert view.dtype is new
        bits = {1: np.uint8, 2: np.uint16, 4: np.uint32}[new.itemsize]
        np.testing.assert_array_equal(view.array().view(bits), array.view(bits))
        # and there and back again
        same = {1: np.uint8, 2: np.uint16, 4: np.uint32}[old.itemsize]
        back = view.reinterpret_cast(old)
        assert back.shape == shape
        np.testing.assert_array_equal(back.array().view(same), array.view(same))

    on_core(body)


def test_a_column_of_fp32_is_four_columns_of_fp8() -> None:
    def body() -> None:
        scale = empty((4, 3), dtypes.float32)
        scale.array()[...] = np.arange(12).reshape(4, 3)
        view = scale[:, 1:2].view(dtypes.float8_e4m3fn)
        assert (view.shape, view.strides, view.offset) == ((4, 4), (12, 1), 4)
        wanted = scale.array()[:, 1:2].copy().view(np.uint8)
        np.testing.assert_array_equal(view.array().view(np.uint8), wanted)

    on_core(body)


def test_only_the_last_dimension_of_packed_values_scales() -> None:
    def body() -> list[Any]:
        weights = empty((128, 3, 4 * 5), dtypes.float8_e4m3fn)
        packed = weights.view(dtypes.float8_e4m3fn_x4)
        return [packed.shape, packed.strides, packed[:, 1:3].offset]

    assert on_core(body) == [(128, 3, 5), (15, 5, 1), 5]


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[:, 0:6].view(dtypes.float32),  # 6 bytes
        lambda t: t[:, 2:6].view(dtypes.float32),  # from byte 2 on
        lambda t: t[:, ::2].view(dtypes.float32),  # not contiguous
        lambda t: t.reshape((4, 4, 3)).permute((0, 2, 1)).view(dtypes.int16),
        lambda t: t.reshape((4, 4, 3))[:, :, 0:2].view(dtypes.int16),  # a step of 3 bytes
        lambda t: t[:, 0:1].broadcast(1, 4).view(dtypes.int16),
    ],
)
def test_views_whose_bytes_do_not_fit(view: Callable[[NkiTensor], NkiTensor]) -> None:
    rejected(lambda: view(empty((4, 12), dtypes.uint8)))


def test_a_partition_that_does_not_divide_has_no_wider_view() -> None:
    # the first partition alone would do, but the memory has no stride for it
    rejected(lambda: empty((4, 6), dtypes.uint8)[0:1, 0:4].view(dtypes.float32), "6 bytes")


def test_a_view_of_the_same_size_keeps_everything() -> None:
    def body() -> list[Any]:
        view = empty((4, 6), dtypes.uint8)[:, ::2].view(dtypes.float8_e5m2)
        return [view.shape, view.strides, view.dtype]

    assert on_core(body) == [(4, 3), (6, 2), dtypes.float8_e5m2]
