"""What enters the blocks: tokens from latents, the timestep and the text."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wantrn.kernels import ops
from wantrn.model.config import WanConfig
from wantrn.model.linears import mlp, plain_linear
from wantrn.model.local_tokens import LocalTokens
from wantrn.model.lora.adapters import NONE, Adapters, Delta


class PatchEmbedding(nn.Module):
    """A convolution whose kernel is its stride, that is, one linear map a patch.

    ``weight`` ``[H, C * pt * ph * pw]`` is the flattened convolution kernel.
    """

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.patch = config.patch_size
        width = config.in_channels * config.patch_volume
        self.weight = nn.Parameter(torch.empty(config.hidden_size, width))
        self.bias = nn.Parameter(torch.empty(config.hidden_size))

    def forward(self, latents: Tensor, tokens: LocalTokens, delta: Delta | None = None) -> Tensor:
        """``[B, C, T, height, width]`` to ``[B, S, H]`` of this rank's tokens, which are ordered as
        in ``rotary_tables``; of zeros where a token is padding."""
        batch, channels, *sizes = latents.shape
        (t, h, w), (pt, ph, pw) = sizes, self.patch
        split = latents.reshape(batch, channels, t // pt, pt, h // ph, ph, w // pw, pw)
        patches = tokens.take(split.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3))
        patches = patches.to(self.weight.dtype)
        if delta is None:
            return ops.linear(patches, self.weight, self.bias)
        return delta.add_to(ops.linear(patches, self.weight, delta.bias_of(self.bias)), patches)


def unpatchify(
    patches: Tensor, grid: tuple[int, int, int], patch: tuple[int, int, int], channels: int
) -> Tensor:
    """``[B, S, pt * ph * pw * C]`` back to ``[B, C, T, height, width]``."""
    (t, h, w), (pt, ph, pw) = grid, patch
    split = patches.reshape(patches.shape[0], t, h, w, pt, ph, pw, channels)
    return split.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(
        patches.shape[0], channels, t * pt, h * ph, w * pw
    )


class TimeEmbedding(nn.Module):
    """The timestep as a vector, and as the six modulation rows that all blocks share.

    Always fp32: its output scales every token of every block.
    """

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.freq_dim = config.freq_dim
        self.linear_1 = nn.Linear(config.freq_dim, hidden)
        self.linear_2 = nn.Linear(hidden, hidden)
        self.proj = nn.Linear(hidden, 6 * hidden)

    def forward(self, timestep: Tensor, adapters: Adapters = NONE) -> tuple[Tensor, Tensor]:
        """``[B, G]`` in 0..1000 to the vector ``[B, G, H]`` and the rows ``[B, G, 6, H]``, fp32."""
        wave = sinusoid(timestep, self.freq_dim)
        inner = F.silu(plain_linear(wave, self.linear_1, adapters.delta("linear_1")))
        vector = plain_linear(inner, self.linear_2, adapters.delta("linear_2"))
        rows = plain_linear(F.silu(vector), self.proj, adapters.delta("proj"))
        return vector, rows.view(*timestep.shape, 6, -1)


def sinusoid(timestep: Tensor, width: int) -> Tensor:
    """``[cos(t * f_i) | sin(t * f_i)]`` with ``f_i = 10000 ** (-i / (width/2))``; fp32.

    The angles are rounded to fp32, as in diffusers. That moves a cosine or sine by up to 6e-5 (at
    t = 979) from the float64 of the original code: more than all other differences together.
    """
    half = width // 2
    index = torch.arange(half, dtype=torch.float32, device=timestep.device)
    frequencies = torch.exp(-math.log(10_000) * index / half)
    angles = timestep.float().unsqueeze(-1) * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class TextEmbedding(nn.Module):
    """Two linear maps with a GELU (tanh form) between, from the text encoder's width to H."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(config.text_dim, config.hidden_size)
        self.linear_2 = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, text: Tensor, adapters: Adapters = NONE) -> Tensor:
        """``[B, L, text_dim]`` to ``[B, L, H]`` in the weights' dtype."""
        return mlp(
            text.to(self.linear_1.weight.dtype),
            self.linear_1,
            self.linear_2,
            deltas=(adapters.delta("linear_1"), adapters.delta("linear_2")),
        )
