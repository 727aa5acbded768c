"""Video to normalised latents and back, with the autoencoder from diffusers."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from wantrn.model.checkpoints import TensorStore, load_module
from wantrn.model.meta_module import meta_module


def meta_autoencoder(folder: Path) -> AutoencoderKLWan:
    """The autoencoder of a checkpoint, without data; ``CheckpointError`` as ``meta_module``."""
    return meta_module(folder, AutoencoderKLWan.from_config)


class VideoAutoencoder:
    """The VAE of a checkpoint, always fp32: it runs once, and bf16 shows in flat areas."""

    def __init__(self, vae: AutoencoderKLWan) -> None:
        self._vae = vae
        shape = (1, vae.config.z_dim, 1, 1, 1)
        self._mean = torch.tensor(vae.config.latents_mean, dtype=torch.float32).view(shape)
        self._std = torch.tensor(vae.config.latents_std, dtype=torch.float32).view(shape)

    @classmethod
    def load(cls, folder: Path) -> VideoAutoencoder:
        """From a checkpoint's folder; ``CheckpointError`` names what is missing or wrong."""
        vae = meta_autoencoder(folder)
        load_module(vae, TensorStore.open(folder), torch.float32)
        return cls(vae.eval())

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Normalised latents ``[1, z, T, h, w]`` to frames ``[F, height, width, 3]`` in [0, 1]."""
        video: Tensor = self._vae.decode(latents * self._std + self._mean).sample
        return (video[0] / 2 + 0.5).clamp(0, 1).permute(1, 2, 3, 0).contiguous()

    @torch.no_grad()
    def encode(self, video: Tensor) -> Tensor:
        """Video ``[1, 3, F, height, width]`` in [-1, 1] to the mode of its latents, normalised."""
        latents: Tensor = self._vae.encode(video).latent_dist.mode()
        return (latents - self._mean) / self._std
