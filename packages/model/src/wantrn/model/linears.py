"""The linear layers of a block, with bf16 or FP8 weights, and the operators that go with each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from wantrn.kernels import ops
from wantrn.kernels.ops import HeadNorm, Rotary
from wantrn.kernels.row_mx import ChannelWeight, kernel_layout


class RowMXLinear(nn.Module):
    """A linear layer in ROW_MX: an FP8 weight with one scale an output channel.

    ``codes`` ``[in/4, out, 4]`` float8_e4m3fn and ``scales`` ``[1, out]`` fp32 are a
    ``ChannelWeight``; ``bias`` ``[out]`` is a parameter as that of ``nn.Linear``. All are created
    uninitialised.
    """

    codes: Tensor
    scales: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        codes = torch.empty(kernel_layout(out_features, in_features), dtype=torch.float8_e4m3fn)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", torch.empty(1, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))

    @property
    def weight(self) -> ChannelWeight:
        """The weight as the operators take it."""
        return ChannelWeight(self.codes, self.scales)

    def extra_repr(self) -> str:
        """What ``print`` shows of it."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


Linear = nn.Linear | RowMXLinear
"""A layer whose weight is bf16 or fp32, or FP8."""


def make_linear(in_features: int, out_features: int, quantized: bool) -> Linear:
    """A layer with an FP8 weight, or with one of the model's dtype."""
    kind = RowMXLinear if quantized else nn.Linear
    return kind(in_features, out_features)


def qkv_proj(
    x: Tensor,
    layer: Linear,
    *,
    head_dim: int,
    num_kv_heads: int,
    norm: HeadNorm | None = None,
    rotary: Rotary | None = None,
) -> Tensor:
    """``ops.qkv_proj`` of ``[B, S, H]``, or ``ops.row_mx_qkv_proj`` of packed rows: ``[B, S, I]``.

    The other arguments are those of either.
    """
    if isinstance(layer, RowMXLinear):
        return ops.row_mx_qkv_proj(
            x,
            layer.weight,
            layer.bias,
            head_dim=head_dim,
            num_kv_heads=num_kv_heads,
            norm=norm,
            rotary=rotary,
        )
    return ops.qkv_proj(
        x,
        layer.weight,
        layer.bias,
        head_dim=head_dim,
        num_kv_heads=num_kv_heads,
        norm=norm,
        rotary=rotary,
    )


def o_proj(x: Tensor, layer: Linear, *, add_bias: bool = True) -> Tensor:
    """``ops.o_proj`` or ``ops.row_mx_o_proj`` of ``[B, S, N, D]``, with the layer's bias or without
    any."""
    bias = layer.bias if add_bias else None
    if isinstance(layer, RowMXLinear):
        return ops.row_mx_o_proj(x, layer.weight, bias)
    return ops.o_proj(x, layer.weight, bias)


def mlp(x: Tensor, up: Linear, down: Linear, *, add_bias: bool = True) -> Tensor:
    """``ops.mlp`` of ``[B, S, H]``, or ``ops.row_mx_mlp`` of packed rows; both layers are of one
    kind. ``add_bias`` is for that of ``down``."""
    bias = down.bias if add_bias else None
    if isinstance(up, RowMXLinear):
        assert isinstance(down, RowMXLinear), "a group's layers are quantized together"
        return ops.row_mx_mlp(x, up.weight, up.bias, down.weight, bias)
    assert isinstance(down, nn.Linear), "a group's layers are quantized together"
    return ops.mlp(x, up.weight, up.bias, down.weight, bias)
