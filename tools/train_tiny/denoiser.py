"""The stages ``base``, ``high`` and ``low``: the text encoder and the two experts.

All are trained by flow matching: at level ``sigma`` the transformer sees
``(1 - sigma) * clean + sigma * noise`` and is to say ``noise - clean``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from diffusers import WanTransformer3DModel
from diffusers.models.attention_processor import Attention
from torch import Tensor, nn
from torch.nn import functional

from train_tiny.autoencoder import CHANNELS
from train_tiny.captions import caption
from train_tiny.latents import LatentClips
from train_tiny.text import ROWS, PromptEncoder
from train_tiny.training import Schedule
from wantrn.model.schedulers.flow import shift_level

SHIFT = 3.0
"""Of the levels, here and in sampling."""

BOUNDARY = 0.875
"""The level that the high-noise expert goes down to."""

CONFIG = {
    "num_attention_heads": 2,
    "attention_head_dim": 128,
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "text_dim": 128,
    "freq_dim": 256,
    "ffn_dim": 768,
    "num_layers": 4,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 1024,
}

_BATCH = 32
_NO_CAPTION = 0.1  # share of clips whose caption is empty
_FIRST_FRAME = 0.3  # share of batches that are given the first frame
_TEXT_LENGTH = 512  # rows that Wan's transformer reads, zeros after the prompt


class PaddedCrossAttention:
    """Cross-attention to ``ROWS`` rows that weighs the last, of zeros, as all zeros up to
    ``_TEXT_LENGTH``. The sum over equal keys is one of them, times their number."""

    def __init__(self) -> None:
        self._bias = torch.zeros(1, ROWS)
        self._bias[0, -1] = math.log(_TEXT_LENGTH - ROWS + 1)

    def __call__(
        self,
        attn: Attention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        rotary_emb: Tensor | None = None,
    ) -> Tensor:
        query, key, value = (
            x.unflatten(2, (attn.heads, -1)).transpose(1, 2)
            for x in (
                attn.norm_q(attn.to_q(hidden_states)),
                attn.norm_k(attn.to_k(encoder_hidden_states)),
                attn.to_v(encoder_hidden_states),
            )
        )
        read = functional.scaled_dot_product_attention(query, key, value, attn_mask=self._bias)
        out: Tensor = attn.to_out[0](read.transpose(1, 2).flatten(2))
        return out


def make_transformer() -> WanTransformer3DModel:
    """With weights of seed 0."""
    torch.manual_seed(0)
    transformer = WanTransformer3DModel(**CONFIG)
    for block in transformer.blocks:
        block.attn2.set_processor(PaddedCrossAttention())
    return transformer


class TextToVideo(nn.Module):
    """What ``base`` trains."""

    def __init__(self, text: PromptEncoder, transformer: WanTransformer3DModel) -> None:
        super().__init__()
        self.text = text
        self.transformer = transformer


@dataclass(frozen=True)
class Levels:
    """Even levels from ``low`` to ``high``, before the shift, are what is trained."""

    low: float = 0.0
    high: float = 1.0

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        even = self.low + (self.high - self.low) * torch.rand(count, generator=generator)
        return shift_level(even, SHIFT)


_EVEN_BOUNDARY = shift_level(BOUNDARY, 1 / SHIFT)
ALL = Levels()
HIGH = Levels(low=_EVEN_BOUNDARY)
LOW = Levels(high=_EVEN_BOUNDARY)


class DenoiserStage:
    """See ``training.Stage``. The loss is the mean square error of the velocity."""

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        levels: Levels,
        clips: LatentClips,
        text: PromptEncoder,
        transformer: WanTransformer3DModel,
        train_text: bool,
    ) -> None:
        self.name = name
        self.schedule = schedule
        self._levels = levels
        self._clips = clips
        self._text = text
        self._transformer = transformer
        self.module: nn.Module = TextToVideo(text, transformer) if train_text else transformer

    def loss(self, generator: torch.Generator) -> Tensor:
        clean, words = self._clips.batch(_BATCH, generator)
        dropped = (torch.rand(_BATCH, generator=generator) < _NO_CAPTION).tolist()
        captions = [
            "" if drop else caption(each, generator)
            for drop, each in zip(dropped, words, strict=True)
        ]
        given = bool(torch.rand((), generator=generator) < _FIRST_FRAME)
        sigma = self._levels.draw(_BATCH, generator)
        noise = torch.randn(clean.shape, generator=generator)
        level = sigma.view(-1, 1, 1, 1, 1)
        noisy, wanted = torch.lerp(clean, noise, level), noise - clean
        timestep = sigma * 1000
        if given:
            noisy[:, :, 0] = clean[:, :, 0]
            _, _, frames, height, width = clean.shape
            timestep = timestep.view(-1, 1).repeat(1, frames)
            timestep[:, 0] = 0
            timestep = timestep.repeat_interleave(height * width // 4, dim=1)  # one a token
        (velocity,) = self._transformer(noisy, timestep, self._text(captions), return_dict=False)
        free = slice(1 if given else 0, None)  # frames that are not given
        return functional.mse_loss(velocity[:, :, free], wanted[:, :, free])
