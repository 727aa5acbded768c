"""The stages ``frames`` and ``vae``: a tiny AutoencoderKLWan that learns to draw the world's clips.

It is made as that of Wan2.2's TI2V-5B, with residuals around every change of size, but for one
halving less. Learning from clips alone, with as many frames in a batch, it drew no colours after
half an hour: a batch has few scenes then. So it first learns from single frames of many scenes,
and then from windows of clips.
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify
from torch import Tensor, nn
from torch.nn import functional

from train_tiny.captions import training_words
from train_tiny.training import Schedule
from train_tiny.world import FRAMES, Words, draw_scene, render

CHANNELS = 8
"""Of a latent position: what a shape on a ground needs; Wan's has 16."""

_PATCH = 2

CONFIG = {
    "base_dim": 24,
    "decoder_base_dim": 24,
    "z_dim": CHANNELS,
    "dim_mult": [1, 2, 2],
    "temperal_downsample": [True, True],
    "num_res_blocks": 1,
    "is_residual": True,
    "patch_size": _PATCH,
    "in_channels": 3 * _PATCH**2,
    "out_channels": 3 * _PATCH**2,
    "latents_mean": [0.0] * CHANNELS,
    "latents_std": [1.0] * CHANNELS,
}

_KL_WEIGHT = 3e-5
_SQUARES = 2.0  # of squares in the loss, to one of distances

Batches = tuple[tuple[int, int], ...]
"""Frames of a window, and clips of such in a batch; one of these is drawn for each step."""

SINGLE: Batches = ((1, 16),)
WINDOWS: Batches = ((5, 8), (9, 4))
"""Nine frames are the parts that the model treats apart: one, four after it, four after four."""


def make_vae() -> AutoencoderKLWan:
    """With weights of seed 0."""
    torch.manual_seed(0)
    vae = AutoencoderKLWan(**CONFIG)
    _initialise(vae)
    return vae


class VaeStage:
    """See ``training.Stage``.

    The loss is of levels in [-1, 1]: their distance, which makes edges sharp; its square, without
    which a small shape is worth less than the ground that it hides; and a little of what keeps the
    latents near a normal distribution.
    """

    def __init__(
        self, name: str, schedule: Schedule, batches: Batches, vae: AutoencoderKLWan
    ) -> None:
        self.name = name
        self.schedule = schedule
        self._batches = batches
        self._vae = vae
        self.module: nn.Module = vae
        self._words = training_words()

    def loss(self, generator: torch.Generator) -> Tensor:
        kind = int(torch.randint(len(self._batches), (), generator=generator))
        frames, count = self._batches[kind]
        clips = draw_clips(self._words, count, generator)
        first = int(torch.randint(FRAMES - frames + 1, (), generator=generator))
        window = clips[:, :, first : first + frames]
        posterior = self._vae.encode(window).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator)
        drawn = unclamped(self._vae, posterior.mean + posterior.std * noise)
        kl: Tensor = (posterior.mean**2 + posterior.var - 1 - posterior.logvar).mean() / 2
        distance, squares = functional.l1_loss(drawn, window), functional.mse_loss(drawn, window)
        return distance + _SQUARES * squares + _KL_WEIGHT * kl


@torch.no_grad()
def _initialise(vae: AutoencoderKLWan) -> None:
    """Let what differs from clip to clip come through at the start.

    Convolutions keep the size of what they are given, blocks add little to their input, the
    latents' noise is small, and nothing is read from frames before: what is learnt from single
    frames holds for clips.
    """
    for name, module in vae.named_modules():
        if not isinstance(module, nn.Conv2d | nn.Conv3d):
            continue
        inputs = module.weight[0].numel()
        spatial = module.kernel_size == (3, 3, 3)
        module.weight.normal_(0, (inputs // 3 if spatial else inputs) ** -0.5)
        assert module.bias is not None, "all of this model's have one"
        module.bias.zero_()
        if spatial:
            module.weight[:, :, :2] = 0
        if name.endswith(("conv2", ".proj")):
            module.weight.mul_(0.2)
    vae.quant_conv.weight[CHANNELS:].mul_(0.1)
    vae.quant_conv.bias[CHANNELS:] = -6  # the logarithm of the noise's variance


def unclamped(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """What ``vae.decode`` gives before it is clamped to [-1, 1], beyond which nothing is learnt."""
    parts: list[Tensor] = []
    hook = vae.decoder.register_forward_hook(lambda module, given, part: parts.append(part))
    try:
        vae.decode(latents)
    finally:
        hook.remove()
    drawn: Tensor = unpatchify(torch.cat(parts, dim=2), patch_size=_PATCH)
    return drawn


def draw_clips(words: list[Words], count: int, generator: torch.Generator) -> Tensor:
    """``[count, 3, F, SIDE, SIDE]`` of scenes drawn from ``words``."""
    chosen = torch.randint(len(words), (count,), generator=generator).tolist()
    return render([draw_scene(words[index], generator) for index in chosen])


@torch.no_grad()
def latent_scale(vae: AutoencoderKLWan, clips: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel over the latents of ``clips``."""
    latents = vae.encode(clips).latent_dist.mode().transpose(0, 1).flatten(1)
    return latents.mean(1).tolist(), latents.std(1).clamp(min=1e-3).tolist()
