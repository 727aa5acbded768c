"""The feed-forward layer of a block."""

from __future__ import annotations

from torch import Tensor, nn

from wantrn.model.config import WanConfig
from wantrn.model.linears import make_linear, mlp


class FeedForward(nn.Module):
    """Up to ``ffn_dim``, GELU (tanh form), down to H; ``quantized``: in FP8, of packed rows."""

    def __init__(self, config: WanConfig, quantized: bool = False) -> None:
        super().__init__()
        self.quantized = quantized
        self.up = make_linear(config.hidden_size, config.ffn_dim, quantized)
        self.down = make_linear(config.ffn_dim, config.hidden_size, quantized)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, S, H]``, or packed rows ``[B, S, H + 4]`` if quantized, to ``[B, S, H]``."""
        return mlp(x, self.up, self.down)
