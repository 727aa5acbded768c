"""The stage ``vae``: a tiny AutoencoderKLWan that learns to draw the world's clips."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKLWan
from torch import Tensor, nn
from torch.nn import functional

from train_tiny.captions import training_words
from train_tiny.training import Schedule
from train_tiny.world import FRAMES, Words, draw_scene, render

CHANNELS = 8
"""Of a latent position: what a shape on a ground needs; Wan's has 16."""

CONFIG = {
    "base_dim": 16,
    "z_dim": CHANNELS,
    "dim_mult": [1, 2, 2, 2],
    "num_res_blocks": 1,
    "latents_mean": [0.0] * CHANNELS,
    "latents_std": [1.0] * CHANNELS,
}

# Frames of a window, and clips in a batch of such. Many clips show many colours and shapes; nine
# frames are the parts that the model treats apart: one, four after it, and four after four.
_BATCHES = ((1, 16), (5, 4), (9, 2))
_KL_WEIGHT = 3e-5


class VaeStage:
    """See ``training.Stage``. The loss is the mean distance of levels in [-1, 1], and a little of
    what keeps the latents near a normal distribution."""

    name = "vae"
    schedule = Schedule(steps=3000, peak=1.5e-3)

    def __init__(self) -> None:
        torch.manual_seed(0)
        self._vae = AutoencoderKLWan(**CONFIG)
        _initialise(self._vae)
        self.module: nn.Module = self._vae
        self._words = training_words()

    def loss(self, generator: torch.Generator) -> Tensor:
        frames, count = _BATCHES[int(torch.randint(len(_BATCHES), (), generator=generator))]
        clips = draw_clips(self._words, count, generator)
        first = int(torch.randint(FRAMES - frames + 1, (), generator=generator))
        window = clips[:, :, first : first + frames]
        posterior = self._vae.encode(window).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator)
        drawn = unclamped(self._vae, posterior.mean + posterior.std * noise)
        kl: Tensor = (posterior.mean**2 + posterior.var - 1 - posterior.logvar).mean() / 2
        return functional.l1_loss(drawn, window) + _KL_WEIGHT * kl


@torch.no_grad()
def _initialise(vae: AutoencoderKLWan) -> None:
    """Let what differs from clip to clip come through at the start.

    With torch's own weights the biases drown it: of the decoder's output it is a twentieth, and 100
    steps on single frames come to 13.5 dB; with these to 17.9. Convolutions keep the size of what
    they are given, blocks add little to their input, and the latents' noise is small.
    """
    for name, module in vae.named_modules():
        if not isinstance(module, nn.Conv2d | nn.Conv3d):
            continue
        inputs = module.weight[0].numel()
        if module.kernel_size[0] == 3 and isinstance(module, nn.Conv3d):
            inputs //= 3  # of a first frame, all but the last are zeros
        module.weight.normal_(0, inputs**-0.5)
        module.bias.zero_()
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
    return torch.cat(parts, dim=2)


def draw_clips(words: list[Words], count: int, generator: torch.Generator) -> Tensor:
    """``[count, 3, F, SIDE, SIDE]`` of scenes drawn from ``words``."""
    chosen = torch.randint(len(words), (count,), generator=generator).tolist()
    return render([draw_scene(words[index], generator) for index in chosen])


@torch.no_grad()
def latent_scale(vae: AutoencoderKLWan, clips: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel over the latents of ``clips``."""
    latents = vae.encode(clips).latent_dist.mode().transpose(0, 1).flatten(1)
    return latents.mean(1).tolist(), latents.std(1).clamp(min=1e-3).tolist()
