"""Random transformers whose output channels differ in magnitude, as those of trained ones do.

Nothing in training fixes the scale of a channel that the next layer can undo: V against the output
projection, Q and K against the weights of their norms, the feed-forward's first matrix against its
second. Channels of one trained matrix may differ by orders of magnitude for that reason (Nagel et
al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019, measure it). So
the rows of such a matrix are multiplied by ``exp(spread * normal)`` here, and what comes after is
divided by the same. Small channels then count as much as large ones, and the velocity stays of
order one.

At a spread of 2, half of the channels are within a factor of 4 of the median, and the largest of
1024 is about 600 times the median: an outlier that a scale for the whole matrix must reach.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.model.config import WanConfig

State = dict[str, Tensor]


def spread_channels(state: State, config: WanConfig, spread: float, seed: int) -> State:
    """The native fp32 parameters ``state`` with channels that differ by ``exp(spread * normal)``.

    ``spread`` 0 changes nothing. ``seed`` decides which channels are large.
    """
    changed = dict(state)
    generator = torch.Generator().manual_seed(seed)

    def draw(width: int) -> Tensor:
        return torch.exp(spread * torch.randn(width, generator=generator))

    for index in range(config.num_layers):
        block = f"blocks.{index}"
        for attention in ("self_attention", "cross_attention"):
            q, k, v = (draw(config.hidden_size) for _ in range(3))
            name = f"{block}.{attention}"
            if attention == "self_attention":
                _scale_rows(changed, f"{name}.qkv", torch.cat([q, k, v]))
            else:
                for part, sizes in (("q", q), ("k", k), ("v", v)):
                    _scale_rows(changed, f"{name}.{part}", sizes)
            for part, sizes in (("q", q), ("k", k)):
                # the norm divides by the root mean square of all channels
                changed[f"{name}.{part}_norm.weight"] = (
                    changed[f"{name}.{part}_norm.weight"] * sizes.square().mean().sqrt() / sizes
                )
            changed[f"{name}.out.weight"] = changed[f"{name}.out.weight"] / v
        hidden = draw(config.ffn_dim)
        _scale_rows(changed, f"{block}.feed_forward.up", hidden)
        down = f"{block}.feed_forward.down.weight"
        changed[down] = changed[down] / hidden
    return changed


def _scale_rows(state: State, layer: str, sizes: Tensor) -> None:
    state[f"{layer}.weight"] = state[f"{layer}.weight"] * sizes.unsqueeze(1)
    state[f"{layer}.bias"] = state[f"{layer}.bias"] * sizes
