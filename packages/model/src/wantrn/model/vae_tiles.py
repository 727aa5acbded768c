"""How a latent is cut into tiles that overlap, and how their pixels become one picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tiling:
    """How large tiles are, in latents, so that any value fits any autoencoder.

    A latent is 8 x 8 pixels in Wan2.1's autoencoder and 16 x 16 in Wan2.2's.

    Attributes:
        tile: the most latents that a tile has along an edge.
        overlap: the least that neighbours share, and the width of the blend between them; at most
            a third of ``tile``, so that no pixel of an axis lies in three tiles.
    """

    tile: int = 32
    overlap: int = 8

    def __post_init__(self) -> None:
        if self.tile < 1:
            raise ValueError(f"tile must be at least 1 latent, got {self.tile}")
        if not 0 <= 3 * self.overlap <= self.tile:
            raise ValueError(
                f"overlap must be 0 to {self.tile // 3} latents, a third of the tile of "
                f"{self.tile}, got {self.overlap}"
            )


@dataclass(frozen=True)
class Cuts:
    """One axis of ``size`` latents, cut into pieces of one ``length`` that cover it.

    Attributes:
        starts: the first latent of each piece, ascending.
    """

    size: int
    length: int
    starts: tuple[int, ...]

    @classmethod
    def of(cls, size: int, tiling: Tiling) -> Cuts:
        """As few pieces as the tiling allows, as short as their overlaps allow, spread evenly.

        Raises ``ValueError`` for a size below 1.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1 latent, got {size}")
        if size <= tiling.tile:
            return cls(size, size, (0,))
        count = math.ceil((size - tiling.overlap) / (tiling.tile - tiling.overlap))
        length = math.ceil((size + (count - 1) * tiling.overlap) / count)
        last = size - length
        return cls(size, length, tuple(index * last // (count - 1) for index in range(count)))

    @property
    def strides(self) -> tuple[int, ...]:
        """From the start of each piece to that of the next, in latents."""
        return tuple(b - a for a, b in zip(self.starts, self.starts[1:], strict=False))

    @property
    def overlaps(self) -> tuple[int, ...]:
        """What each piece shares with the next, in latents: the width of the blend."""
        return tuple(self.length - stride for stride in self.strides)

    def weights(self, index: int, scale: int) -> Tensor:
        """Weights of a piece's pixels, ``[length * scale]`` float64, ``scale`` pixels a latent.

        1, but for the pixels shared with a neighbour: there one piece goes down to 0 in equal steps
        as the other goes up. All pieces' weights of a pixel sum to 1.
        """
        weights = torch.ones(self.length * scale, dtype=torch.float64)
        if index > 0:
            ramp = _ramp(self.overlaps[index - 1] * scale)
            weights[: len(ramp)] = ramp
        if index < len(self.starts) - 1:
            ramp = _ramp(self.overlaps[index] * scale)
            weights[len(weights) - len(ramp) :] = 1 - ramp
        return weights


def _ramp(width: int) -> Tensor:
    """``0, 1 / width, 2 / width ...``, as diffusers has it."""
    return torch.arange(width, dtype=torch.float64) / width


@dataclass(frozen=True)
class TilePlan:
    """The tiles of a latent of ``rows.size`` x ``columns.size``, counted row by row.

    All have one shape, so that ranks exchange equal buffers and a compiler sees one program.

    Attributes:
        scale: pixels along the edge of a latent.
    """

    rows: Cuts
    columns: Cuts
    scale: int

    @classmethod
    def of(cls, height: int, width: int, tiling: Tiling, scale: int) -> TilePlan:
        """The plan for a latent of ``height`` x ``width``; ``ValueError`` if one is below 1."""
        return cls(Cuts.of(height, tiling), Cuts.of(width, tiling), scale)

    def __len__(self) -> int:
        """How many tiles."""
        return len(self.rows.starts) * len(self.columns.starts)

    @cached_property
    def latents(self) -> tuple[tuple[slice, slice], ...]:
        """Rows and columns of latents of each tile."""
        return self._slices(1)

    @cached_property
    def pixels(self) -> tuple[tuple[slice, slice], ...]:
        """Rows and columns of pixels of each tile."""
        return self._slices(self.scale)

    @property
    def tile_pixels(self) -> tuple[int, int]:
        """Height and width of every tile."""
        return self.rows.length * self.scale, self.columns.length * self.scale

    @property
    def picture_pixels(self) -> tuple[int, int]:
        """Height and width of the whole."""
        return self.rows.size * self.scale, self.columns.size * self.scale

    def weights(self, index: int) -> Tensor:
        """Weights of a tile's pixels, ``[height, width]`` float64; see ``Cuts.weights``."""
        row, column = divmod(index, len(self.columns.starts))
        down, across = self.rows.weights(row, self.scale), self.columns.weights(column, self.scale)
        return down[:, None] * across[None, :]

    def blend_in(self, frames: Tensor, index: int, tile: Tensor) -> None:
        """Add a tile ``[3, F, height, width]`` to the frames ``[F, height, width, 3]`` it is of.

        The frames are zeros at first, and complete after the last tile. The order of the tiles
        decides the last bits. ``tile`` is overwritten.
        """
        tile *= self.weights(index).to(tile)
        frames[:, *self.pixels[index]] += tile.permute(1, 2, 3, 0)

    def _slices(self, scale: int) -> tuple[tuple[slice, slice], ...]:
        return tuple(
            (
                slice(row * scale, (row + self.rows.length) * scale),
                slice(column * scale, (column + self.columns.length) * scale),
            )
            for row in self.rows.starts
            for column in self.columns.starts
        )
