"""The stage ``latents``: a few thousand clips, encoded once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor
from tqdm import tqdm

from train_tiny.captions import training_words
from train_tiny.training import step_generator
from train_tiny.world import Words, draw_scene, render

_BATCH = 16


@dataclass(frozen=True, eq=False)
class LatentClips:
    """``latents`` ``[N, z, T, h, w]``, normalised, and what the clips are called."""

    latents: Tensor
    words: list[Words]

    def batch(self, count: int, generator: torch.Generator) -> tuple[Tensor, list[Words]]:
        """``count`` of them, in fp32."""
        chosen = torch.randint(len(self.words), (count,), generator=generator)
        return self.latents[chosen].float(), [self.words[index] for index in chosen.tolist()]


def encode_clips(vae: AutoencoderKLWan, count: int, folder: Path) -> LatentClips:
    """``count`` clips of what is trained on; kept in ``folder`` by parts, and taken up there."""
    words, latents, chosen = training_words(), [], []
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    parts = folder / "latents"
    parts.mkdir(parents=True, exist_ok=True)
    for part in tqdm(range(count // _BATCH), desc="latents", unit="batch"):
        generator = step_generator("latents", part)
        indices = torch.randint(len(words), (_BATCH,), generator=generator).tolist()
        chosen += [words[index] for index in indices]
        file = parts / f"{part:05}.pt"
        if not file.exists():
            clips = render([draw_scene(words[index], generator) for index in indices])
            with torch.no_grad():
                encoded = (vae.encode(clips).latent_dist.mode() - mean) / std
            torch.save(encoded, file.with_suffix(".new"))
            os.replace(file.with_suffix(".new"), file)
        latents.append(torch.load(file, weights_only=True))
    return LatentClips(torch.cat(latents), chosen)
