"""The feed-forward layer of a block."""

from __future__ import annotations

from torch import Tensor, nn

from wantrn.kernels import ops
from wantrn.model.config import WanConfig


class FeedForward(nn.Module):
    """Up to ``ffn_dim``, GELU (tanh form), down to H."""

    def __init__(self, config: WanConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.ffn_dim)
        self.down = nn.Linear(config.ffn_dim, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, S, H]`` to ``[B, S, H]``."""
        return ops.mlp(x, self.up.weight, self.up.bias, self.down.weight, self.down.bias)
