"""`o_proj` and `mlp` on tensors as `wantrn.kernels.ops` has them."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.kernels.machine import Machine
from wantrn.kernels.projections.capability import mlp_refusal, o_proj_refusal
from wantrn.kernels.projections.mlp import mlp
from wantrn.kernels.projections.o_proj import o_proj
from wantrn.kernels.projections.options import MlpSizes, OProjSizes
from wantrn.kernels.projections.planner import best_mlp_plan, best_o_proj_plan
from wantrn.kernels.row_mx import ChannelWeight, kernel_weight
from wantrn.kernels.words import values_of

Weight = Tensor | ChannelWeight
"""bf16 as torch has it, or FP8."""


def o_proj_refusal_of(x: Tensor, weight: Weight, machine: Machine) -> str | None:
    """Why the kernel does not run this, or None.

    Args:
        x: `[B, S, N, D]`.
        weight: `[H, N * D]`.
    """
    sizes = _o_proj_sizes(x, weight, None)
    return _wrong_dtype(x, sizes.packed) or o_proj_refusal(sizes, machine.lnc, machine.target)


def o_proj_computed(x: Tensor, weight: Weight, bias: Tensor | None, machine: Machine) -> Tensor:
    """By the kernel: `[B, S, H]`; `bias` `[H]` or None."""
    sizes = _o_proj_sizes(x, weight, bias)
    plan = best_o_proj_plan(sizes, machine.lnc, machine.target)
    heads = x.permute(0, 2, 3, 1).contiguous()
    operand, scales = kernel_weight(weight)
    out: Tensor = machine.run(o_proj, heads, operand, plan, scales, _row(bias))
    return out


def mlp_refusal_of(x: Tensor, up: Weight, down: Weight, machine: Machine) -> str | None:
    """Why the kernel does not run this, or None.

    Args:
        x: `[B, S, H]`, or with FP8 weights packed rows `[B, S, H + 4]`.
        up: `[F, H]`; down: `[H_out, F]`; both bf16, or both FP8.
    """
    sizes = _mlp_sizes(x, up, down, (None, None))
    return _wrong_dtype(x, sizes.packed) or mlp_refusal(sizes, machine.lnc, machine.target)


def mlp_computed(
    x: Tensor,
    weights: tuple[Weight, Weight],
    biases: tuple[Tensor | None, Tensor | None],
    machine: Machine,
) -> Tensor:
    """By the kernel: `[B, S, H_out]`.

    Args:
        weights: `up` `[F, H]` and `down` `[H_out, F]`.
        biases: `[F]` and `[H_out]`, or None.
    """
    sizes = _mlp_sizes(x, *weights, biases)
    plan = best_mlp_plan(sizes, machine.lnc, machine.target)
    (up, up_scales), (down, down_scales) = map(kernel_weight, weights)
    scales = (up_scales, down_scales)
    rows = (_row(bias) for bias in biases)
    out: Tensor = machine.run(mlp, x.contiguous(), up, down, plan, *scales, *rows)
    return out


def _wrong_dtype(x: Tensor, packed: bool) -> str | None:
    if packed or x.dtype == torch.bfloat16:
        return None
    return f"x is {x.dtype}; the Tensor engine takes four times as long for it, so only bf16 runs"


def _row(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.reshape(1, -1).contiguous()


def _bytes(bias: Tensor | None) -> int:
    return 0 if bias is None else bias.dtype.itemsize


def _width(weight: Weight) -> int:
    return weight.width if isinstance(weight, ChannelWeight) else weight.shape[0]


def _o_proj_sizes(x: Tensor, weight: Weight, bias: Tensor | None) -> OProjSizes:
    batch, tokens, heads, d = x.shape
    packed = isinstance(weight, ChannelWeight)
    return OProjSizes(batch, tokens, heads * d, _width(weight), packed, _bytes(bias))


def _mlp_sizes(
    x: Tensor, up: Weight, down: Weight, biases: tuple[Tensor | None, Tensor | None]
) -> MlpSizes:
    batch, tokens, row = x.shape
    packed = isinstance(up, ChannelWeight)
    return MlpSizes(
        tokens=batch * tokens,
        hidden=values_of(row, packed),
        inner=_width(up),
        width=_width(down),
        packed=packed,
        up_bias_bytes=_bytes(biases[0]),
        down_bias_bytes=_bytes(biases[1]),
    )
