"""How a first frame, or none, enters the transformer: the difference between the three models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Conditioning(Protocol):
    """Turns the latents of a run into what the transformer is given."""

    def apply(self, latents: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """From latents ``[1, z, T, h, w]`` and a timestep (a scalar) to the transformer's input
        ``[1, C_in, T, h, w]`` and its timesteps, ``[1]`` or ``[1, T]`` (one a latent frame)."""

    def finish(self, latents: Tensor) -> Tensor:
        """The latents to decode, from those after the last step."""


@dataclass(frozen=True)
class TextOnly:
    """T2V, and TI2V without an image: nothing but the noise."""

    def apply(self, latents: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return latents, t.view(1)

    def finish(self, latents: Tensor) -> Tensor:
        return latents


@dataclass(frozen=True)
class ImageChannels:
    """I2V: mask and image latents stand beside the noise as further channels.

    ``channels`` ``[1, 4 + z, T, h, w]``: four mask channels, one for each video frame that a
    latent frame stands for (1 where the frame is given), then the latents of the video that is the
    image followed by zeros.
    """

    channels: Tensor

    @classmethod
    def of(cls, video_latents: Tensor, temporal_stride: int) -> ImageChannels:
        """From the latents ``[1, z, T, h, w]`` of the image and zeros. The first latent frame
        stands for one video frame, the given one, so all its mask channels are 1."""
        _, _, *sizes = video_latents.shape
        mask = video_latents.new_zeros((1, temporal_stride, *sizes))
        mask[:, :, 0] = 1
        return cls(torch.cat([mask, video_latents], dim=1))

    def apply(self, latents: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([latents, self.channels], dim=1), t.view(1)

    def finish(self, latents: Tensor) -> Tensor:
        return latents


@dataclass(frozen=True)
class FirstFrame:
    """TI2V with an image: the first latent frame is the image's, clean, at timestep 0.

    ``latents`` ``[1, z, 1, h, w]`` are the image's.
    """

    latents: Tensor

    def apply(self, latents: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        timesteps = t.repeat(1, latents.shape[2])
        timesteps[:, 0] = 0
        return self.finish(latents), timesteps

    def finish(self, latents: Tensor) -> Tensor:
        return torch.cat([self.latents, latents[:, :, 1:]], dim=2)
