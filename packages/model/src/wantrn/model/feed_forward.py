"""The feed-forward layer of a block."""

from __future__ import annotations

from torch import Tensor, nn

from wantrn.model.config import WanConfig
from wantrn.model.linears import make_linear, mlp
from wantrn.model.lora.adapters import NONE, Adapters
from wantrn.model.parallelism import Parallelism


class FeedForward(nn.Module):
    """Up to ``ffn_dim``, GELU (tanh form), down to H; ``quantized``: in FP8, of packed rows.

    The ranks of the tensor-parallel group share the channels between.
    """

    def __init__(self, config: WanConfig, parallel: Parallelism, quantized: bool = False) -> None:
        super().__init__()
        self.quantized, self.parallel = quantized, parallel
        local = config.ffn_dim // parallel.groups.tp.size
        self.up = make_linear(config.hidden_size, local, quantized)
        self.down = make_linear(local, config.hidden_size, quantized)

    def forward(self, x: Tensor, adapters: Adapters = NONE) -> Tensor:
        """``[B, S, H]``, or packed rows ``[B, S, H + 4]`` if quantized, to ``[B, S, H]``."""
        parallel = self.parallel
        out = mlp(
            parallel.enter(x),
            self.up,
            self.down,
            add_bias=parallel.adds_bias,
            deltas=(adapters.delta("up"), adapters.delta("down")),
        )
        return parallel.leave(out)
