"""The linear layers of a block, with bf16 or FP8 weights, and the operators that go with each."""

from __future__ import annotations

from typing import TypedDict, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wantrn.kernels import ops
from wantrn.kernels.ops import HeadNorm, Rotary
from wantrn.kernels.row_mx import ChannelWeight, dequantize_rows, kernel_layout
from wantrn.model.heads import normalise_and_rotate
from wantrn.model.lora.adapters import Delta

_PACKED_DTYPE = torch.bfloat16  # of what the operators with FP8 weights give
_HEAD_DIM = 128  # columns at a time, where a plain projection goes through an operator for heads


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


def plain_linear(x: Tensor, layer: nn.Linear, delta: Delta | None = None) -> Tensor:
    """``layer`` of ``[..., K]``, with what ``delta`` adds: ``[..., I]``."""
    if delta is None:
        return cast(Tensor, layer(x))
    return delta.add_to(F.linear(x, layer.weight, delta.bias_of(layer.bias)), x)


def qkv_proj(
    x: Tensor,
    layer: Linear,
    *,
    head_dim: int,
    num_kv_heads: int,
    norm: HeadNorm | None = None,
    rotary: Rotary | None = None,
    delta: Delta | None = None,
) -> Tensor:
    """``ops.qkv_proj`` of ``[B, S, H]``, or ``ops.row_mx_qkv_proj`` of packed rows: ``[B, S, I]``.

    The other arguments are those of either. A side path of ``delta`` comes between the product and
    the norm, where the operators have no place for it: the operator then computes the product
    alone, and norm and rotation follow by themselves, in torch.
    """
    bias = layer.bias if delta is None else delta.bias_of(layer.bias)
    apart = delta is not None and bool(delta.paths)
    arguments: _Heads = {
        "head_dim": head_dim,
        "num_kv_heads": num_kv_heads,
        "norm": None if apart else norm,
        "rotary": None if apart else rotary,
    }
    if isinstance(layer, RowMXLinear):
        out = ops.row_mx_qkv_proj(x, layer.weight, bias, **arguments)
    else:
        out = ops.qkv_proj(x, layer.weight, bias, **arguments)
    if delta is None or not apart:
        return out
    delta.add_to(out, _values(x, layer))
    return normalise_and_rotate(out, head_dim, num_kv_heads, norm, rotary)


def o_proj(
    x: Tensor, layer: Linear, *, add_bias: bool = True, delta: Delta | None = None
) -> Tensor:
    """``ops.o_proj`` or ``ops.row_mx_o_proj`` of ``[B, S, N, D]``, with the layer's bias or without
    any, and what ``delta`` adds."""
    bias = _bias(layer, delta, add_bias)
    if isinstance(layer, RowMXLinear):
        out = ops.row_mx_o_proj(x, layer.weight, bias)
    else:
        out = ops.o_proj(x, layer.weight, bias)
    return out if delta is None else delta.add_to(out, x.flatten(2))


def mlp(
    x: Tensor,
    up: Linear,
    down: Linear,
    *,
    add_bias: bool = True,
    deltas: tuple[Delta | None, Delta | None] = (None, None),
) -> Tensor:
    """``ops.mlp`` of ``[B, S, H]``, or ``ops.row_mx_mlp`` of packed rows; both layers are of one
    kind. ``add_bias`` is for that of ``down``.

    ``deltas`` are what is added to ``up`` and ``down``. The operators have no place for side paths:
    with any of them the layers are computed one after the other, each as a projection, and what
    passes between them is rounded to the dtype of the result.
    """
    if any(delta is not None and delta.paths for delta in deltas):
        width = up.out_features
        heads = _HEAD_DIM if width % _HEAD_DIM == 0 else width
        inner = qkv_proj(x, up, head_dim=heads, num_kv_heads=0, delta=deltas[0])
        inner = F.gelu(inner, approximate="tanh").view(*inner.shape[:2], -1, heads)
        return o_proj(inner, down, add_bias=add_bias, delta=deltas[1])
    up_bias, bias = _bias(up, deltas[0], True), _bias(down, deltas[1], add_bias)
    if isinstance(up, RowMXLinear):
        assert isinstance(down, RowMXLinear), "a group's layers are quantized together"
        return ops.row_mx_mlp(x, up.weight, up_bias, down.weight, bias)
    assert isinstance(down, nn.Linear), "a group's layers are quantized together"
    return ops.mlp(x, up.weight, up_bias, down.weight, bias)


class _Heads(TypedDict):
    head_dim: int
    num_kv_heads: int
    norm: HeadNorm | None
    rotary: Rotary | None


def _bias(layer: Linear, delta: Delta | None, add_bias: bool) -> Tensor | None:
    if not add_bias:
        return None
    return layer.bias if delta is None else delta.bias_of(layer.bias)


def _values(x: Tensor, layer: Linear) -> Tensor:
    """What a side path reads: the layer's input, or the values that packed rows stand for."""
    return dequantize_rows(x).to(_PACKED_DTYPE) if isinstance(layer, RowMXLinear) else x
