"""Video to normalised latents and back, with the autoencoder from diffusers."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from wantrn.model.checkpoints import TensorStore, load_module
from wantrn.model.meta_module import meta_module
from wantrn.model.vae_tiles import TilePlan, Tiling
from wantrn.parallel.group import Group

_ALONE = Group.single()


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
    def decode(
        self, latents: Tensor, tiling: Tiling | None = None, group: Group = _ALONE
    ) -> Tensor:
        """Normalised latents ``[1, z, T, h, w]`` to frames ``[F, height, width, 3]`` in [0, 1].

        Without ``tiling`` the whole is decoded at once. With it, tiles are decoded one by one, each
        as if it were a video of its own, and blended: this takes the memory of one tile and of the
        frames, and differs a little from the whole. The ranks of ``group``, which all have the
        same latents, share the tiles; each gets all frames, with the bits that one rank alone
        gets with the same number of threads.

        Raises:
            ValueError: a group of several ranks without ``tiling``.
        """
        if tiling is None and group.size > 1:
            raise ValueError(f"tiling must be given for a group of {group.size} ranks, got None")
        raw = latents * self._std + self._mean
        if tiling is None:
            frames = self._decode(raw).permute(1, 2, 3, 0)
        else:
            scale = self._vae.config.scale_factor_spatial
            plan = TilePlan.of(raw.shape[-2], raw.shape[-1], tiling, scale)
            frames = self._decode_tiles(raw, plan, group)
        return frames.div_(2).add_(0.5).clamp_(0, 1).contiguous()

    @torch.no_grad()
    def encode(self, video: Tensor) -> Tensor:
        """Video ``[1, 3, F, height, width]`` in [-1, 1] to the mode of its latents, normalised."""
        latents: Tensor = self._vae.encode(video).latent_dist.mode()
        return (latents - self._mean) / self._std

    def _decode(self, raw: Tensor) -> Tensor:
        """``[1, z, T, h, w]`` to pixels ``[3, F, height, width]`` in [-1, 1]."""
        video: Tensor = self._vae.decode(raw).sample
        return video[0]

    def _decode_tiles(self, raw: Tensor, plan: TilePlan, group: Group) -> Tensor:
        """Frames ``[F, height, width, 3]`` in [-1, 1]; one tile a rank, then all are exchanged."""
        count = (raw.shape[2] - 1) * self._vae.config.scale_factor_temporal + 1
        frames = raw.new_zeros((count, *plan.picture_pixels, 3))
        for first in range(0, len(plan), group.size):
            mine = first + group.position
            if mine < len(plan):
                tile = self._decode(raw[..., *plan.latents[mine]])
            else:  # the last round may have fewer tiles than ranks
                tile = raw.new_zeros((3, count, *plan.tile_pixels))
            # in the order of the plan, whoever decoded them
            for index, decoded in zip(range(first, len(plan)), group.gather(tile), strict=False):
                plan.blend_in(frames, index, decoded)
        return frames
