from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wantrn.model.rope import rotary_tables


@settings(max_examples=30, deadline=None)
@given(
    grid=st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 6)),
    head_dim=st.sampled_from([12, 16, 64, 128]),
)
def test_angles(grid: tuple[int, int, int], head_dim: int) -> None:
    """Token by token and axis by axis, as the model's paper has it."""
    tables = rotary_tables(grid, head_dim)
    spatial = 2 * (head_dim // 6)
    widths = (head_dim - 2 * spatial, spatial, spatial)
    expected = []
    for position in np.ndindex(*grid):
        angles = [
            p / 10_000 ** (2 * i / width)
            for p, width in zip(position, widths, strict=True)
            for i in range(width // 2)
        ]
        expected.append(np.exp(1j * np.array(angles)))
    table = np.array(expected)
    assert tables.cos.dtype == tables.sin.dtype == torch.float32
    np.testing.assert_allclose(tables.cos.numpy(), table.real, atol=1e-7)
    np.testing.assert_allclose(tables.sin.numpy(), table.imag, atol=1e-7)


def test_last_position_is_exact() -> None:
    """Position 1023 at frequency 1, where an angle in fp32 would be off by 3e-5."""
    tables = rotary_tables((1024, 1, 1), 12)
    assert abs(float(tables.cos[-1, 0]) - np.cos(1023.0)) < 1e-7


@pytest.mark.parametrize(
    ("grid", "axis"), [((0, 1, 1), "frames"), ((1, 1025, 1), "rows"), ((1, 1, 2000), "columns")]
)
def test_grid_out_of_range(grid: tuple[int, int, int], axis: str) -> None:
    with pytest.raises(ValueError, match=f"grid's {axis} must be in 1..1024"):
        rotary_tables(grid, 128)
