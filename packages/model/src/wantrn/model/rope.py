"""Rotary position tables of the three-dimensional token grid."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.kernels.ops import Rotary

_THETA = 10_000.0  # base of the geometric frequency ladder, as in the released models


def rotary_tables(
    grid: tuple[int, int, int],
    head_dim: int,
    max_positions: int = 1024,
    device: torch.device | None = None,
) -> Rotary:
    """Cosine and sine for every token of a ``grid`` of (frames, rows, columns).

    A head's ``D/2`` rotated pairs are shared out among the axes: rows and columns get ``D // 6``
    pairs each, frames the rest (22 / 21 / 21 for D = 128). Pair ``i`` of an axis with ``n`` pairs
    turns by ``position / theta ** (i / n)``; angles are computed in float64.

    Returns:
        ``Rotary`` with fp32 ``[S, D/2]`` tables, ``S`` the product of ``grid``, tokens ordered
        frames, rows, columns (columns fastest).

    Raises:
        ValueError: an axis of ``grid`` that is empty or longer than ``max_positions``.
    """
    for name, length in zip(("frames", "rows", "columns"), grid, strict=True):
        if not 1 <= length <= max_positions:
            raise ValueError(f"grid's {name} must be in 1..{max_positions}, got {length}")
    spatial_pairs = head_dim // 6
    pairs = (head_dim // 2 - 2 * spatial_pairs, spatial_pairs, spatial_pairs)
    angles = []
    for axis in range(3):
        shape = [1, 1, 1, pairs[axis]]
        shape[axis] = grid[axis]
        angles.append(_axis_angles(grid[axis], pairs[axis]).view(shape).expand(*grid, -1))
    table = torch.cat(angles, dim=-1).flatten(0, 2)
    return Rotary(table.cos().float().to(device), table.sin().float().to(device))


def _axis_angles(length: int, pairs: int) -> Tensor:
    frequencies = _THETA ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    return torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
