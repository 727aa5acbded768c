"""A picture of latents without the autoencoder: good enough to see what a run is coming to.

Colour is nearly linear in a video autoencoder's latents, position by position. The map is fitted to
the checkpoint's own autoencoder, once, so that it fits whatever that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

_PICTURES = 8
_SIDE = 8  # positions along each side of a picture
_RIDGE = 1e-3  # keeps channels that carry no colour out of the map


class Encoder(Protocol):
    """The half of ``VideoAutoencoder`` that is needed here."""

    def encode(self, video: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class LatentPreview:
    """``colour``: ``[z + 1, 3]`` fp32, from a position's channels and a 1 to RGB in [-1, 1]."""

    colour: Tensor

    @classmethod
    @torch.inference_mode()
    def fit(cls, encoder: Encoder, stride: int) -> LatentPreview:
        """Fit to what ``encoder`` makes of smooth random pictures; the same each time.

        ``stride`` is the number of pixels in a latent position, along a side.
        """
        generator = torch.Generator().manual_seed(0)
        rows, colours = [], []
        for _ in range(_PICTURES):
            coarse = torch.rand((1, 3, 3, 3), generator=generator) * 2 - 1
            size = (_SIDE * stride, _SIDE * stride)
            picture = functional.interpolate(
                coarse, size, mode="bicubic", align_corners=True
            ).clamp_(-1, 1)
            latents = encoder.encode(picture[:, :, None])
            rows.append(latents[0, :, 0].flatten(1).T)
            colours.append(functional.avg_pool2d(picture, stride)[0].flatten(1).T)
        known = _with_one(torch.cat(rows).double())
        wanted = torch.cat(colours).double()
        ridge = _RIDGE * len(known) * torch.eye(known.shape[1], dtype=known.dtype)
        solved = torch.linalg.solve(known.T @ known + ridge, known.T @ wanted)
        return cls(solved.float())

    def picture(self, latents: Tensor) -> Tensor:
        """The middle frame of ``[1, z, T, h, w]`` as uint8 ``[h, w, 3]``."""
        frame = latents[0, :, latents.shape[2] // 2].permute(1, 2, 0)
        rgb = _with_one(frame) @ self.colour
        return (rgb.clamp(-1, 1) * 127.5 + 127.5).round().to(torch.uint8)


def _with_one(x: Tensor) -> Tensor:
    """``x`` with a 1 behind the channels of each position."""
    return torch.cat([x, x.new_ones((*x.shape[:-1], 1))], dim=-1)
